// What a run leaves for others to read and write: what the umask says, and secrets for nobody else.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <csignal>
#include <map>
#include <string>

#include "ranks.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// Of this process and those that it starts, while it lives.
class Umask {
 public:
  explicit Umask(mode_t mask) : before_(::umask(mask)) {}
  ~Umask() { ::umask(before_); }
  Umask(const Umask&) = delete;
  Umask& operator=(const Umask&) = delete;

 private:
  mode_t before_;
};

// Permission bits of a folder and everything below it. Files come and go while a run is alive.
std::map<std::string, mode_t> modes_below(const fs::path& folder) {
  std::map<std::string, mode_t> modes;
  const auto look = [&](const fs::path& path) {
    struct stat status {};
    if (::lstat(path.c_str(), &status) == 0) modes[path.lexically_relative(folder)] = status.st_mode;
  };
  look(folder);
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error); !error && entry != fs::recursive_directory_iterator();
       entry.increment(error))
    look(entry->path());
  return modes;
}

// But for secrets, and for the guard of the lock, which is never for others: whoever may open it can keep a start
// waiting.
void check_follows(mode_t mask, const std::map<std::string, mode_t>& modes) {
  for (const auto& entry : modes) {
    mode_t expected = (S_ISDIR(entry.second) ? 0777 : 0666) & ~mask;
    if (entry.first == ".lock.json.guard") expected = 0660 & ~mask;
    if (entry.first == "rendezvous.json" || entry.first == ".lock.json.refused") expected = 0600;
    CHECK_MESSAGE((entry.second & 07777) == expected, entry.first, " has the mode ",
                  std::to_string(entry.second & 07777), " (decimal)");
  }
}

bool has(const std::map<std::string, mode_t>& modes, const std::string& name) {
  for (const auto& entry : modes)
    if (entry.first.find(name) != std::string::npos) return true;
  return false;
}

}  // namespace

TEST_CASE("what_a_run_creates_is_for_whom_the_umask_says") {
  const mode_t mask = 022;
  const Umask umask(mask);
  const Settings settings = {"parallel.data=2", "train.steps=100000"};
  Program agent(layout_launch("modest", settings));
  const fs::path run = layout_folder("modest");
  REQUIRE(wait_until([&] { return checkpoint_names(run).size() >= 2 || !agent.running(); }, ranks_patience));
  const auto alive = modes_below(run);
  agent.signal(SIGTERM);
  const Ended end = agent.wait(ranks_patience);
  CHECK_MESSAGE(end.exit_code == 75, end.errors);
  check_follows(mask, alive);
  CHECK(has(alive, "lock.json"));
  CHECK(has(alive, ".lock.json.guard"));
  const auto left = modes_below(run);
  check_follows(mask, left);
  for (const char* name : {"config.yaml", "config.source.yaml", "metrics.jsonl", "logs/rank-00000.log",
                           "logs/rank-00001.log", "logs/agent-00.log", "manifest.json", ".safetensors"})
    CHECK_MESSAGE(has(left, name), name, " was not looked at");
}

TEST_CASE("the_secret_of_launched_ranks_is_for_their_owner_alone") {
  const Umask none(0);
  const fs::path run = layout_folder("discreet");
  LaunchedRanks ranks(2);
  const Settings settings = {"parallel.data=2", "train.steps=100000"};
  ranks.start(0, "discreet", settings);
  REQUIRE(wait_until([&] { return fs::exists(run / "rendezvous.json") || !ranks.rank(0).running(); }, ranks_patience));
  const auto alone = modes_below(run);
  ranks.start(1, "discreet", settings);
  REQUIRE_MESSAGE(reaches_step(ranks.rank(0), "discreet", 3), ranks.errors());
  const auto alive = modes_below(run);
  ranks.rank(0).signal(SIGTERM);
  CHECK_MESSAGE((ranks.wait() == std::vector<int>{75, 75}), ranks.errors());
  for (const auto* modes : {&alone, &alive}) {
    check_follows(0, *modes);
    REQUIRE(modes->count("rendezvous.json") == 1);
    CHECK((modes->at("rendezvous.json") & 07777) == 0600);
  }
  check_follows(0, modes_below(run));
}

TEST_CASE("a_refused_starts_note_is_for_its_owner_alone") {
  const Umask none(0);
  const fs::path run = layout_folder("noted");
  LaunchedRanks ranks(2);
  // Rank 1 never comes, so that rank 0 leaves a note.
  ranks.start(0, "noted", {"parallel.data=2", "data.train.0.path=/no/such/text"});
  CHECK(ranks.wait(60.0) == std::vector<int>{2});
  const auto modes = modes_below(run);
  check_follows(0, modes);
  REQUIRE(modes.count(".lock.json.refused") == 1);
  CHECK((modes.at(".lock.json.refused") & 07777) == 0600);
}

}  // namespace scaletrain
