// A power cut at any moment of a save: whatever the disk had not synced yet, the old checkpoint or the new one is used.
// SCALETRAIN_SOAK_ALL: every state that a cut may leave, instead of some.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "power_cut.h"
#include "storage.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr int cut_save = 3;  // the one that is under way
constexpr std::size_t ordinary_cases = 40;

struct Cut {
  CutKind kind = CutKind::everything;
  std::string text;
  DiskModel::State state;
  bool must_be_new = false;
};

// Every state that differs, after each change from the beginning of the save to the next one's.
std::vector<Cut> cuts_of_save(const StorageFault& fault) {
  const fs::path run = run_of_step("journalled", cut_save - 1);
  DiskModel disk(run);
  StorageFault recorded = fault;
  recorded.journal = (workspace() / "journal").string();
  fs::remove(recorded.journal);
  const Ended end = go_on("journalled", recorded);
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  const std::vector<DiskChange> changes = read_journal(recorded.journal, run);
  const std::string begin = ".saving-" + checkpoint("", cut_save).filename().string();
  const std::string next = ".saving-" + checkpoint("", cut_save + 1).filename().string();
  const std::string committed = "checkpoints/" + checkpoint("", cut_save).filename().string();
  std::vector<Cut> cuts;
  std::set<DiskModel::State> seen;
  bool is_under_way = false;
  bool is_durable = false;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const DiskChange& change = changes[i];
    if (change.path.find(next) != std::string::npos) break;
    disk.apply(change);
    is_under_way = is_under_way || change.path.find(begin) != std::string::npos;
    if (!is_under_way) continue;
    is_durable = is_durable || disk.is_durable(committed);
    for (const CutKind kind : all_cuts) {
      DiskModel::State state = disk.after_cut(kind, static_cast<unsigned>(i));
      if (!seen.insert(state).second) continue;
      cuts.push_back(
          {kind, "after change " + std::to_string(i) + " (" + change.kind + " " + change.path + "), " + name_of(kind),
           std::move(state), is_durable});
    }
  }
  CHECK(is_durable);
  return cuts;
}

std::string after_cut(const std::string& name, const Cut& cut, const StorageFault& fault) {
  const fs::path run = workspace() / name;
  restore(cut.state, run);
  const fs::path older = checkpoint(run, cut_save - 1);
  const fs::path newer = checkpoint(run, cut_save);
  if (!verifies(older)) return "the checkpoint before does not verify";
  if (cut.must_be_new && !fs::exists(newer)) return "a checkpoint that was synced is lost";
  if (fs::exists(newer) && !verifies(newer)) return "a name of a checkpoint without the checkpoint";
  const bool is_new = fs::exists(newer);
  const Ended again = go_on(name, {.settings = fault.settings});
  if (again.exit_code != 0) return "exit code " + std::to_string(again.exit_code) + "\n" + again.errors;
  if (!again.says("resuming from " + (is_new ? newer : older).string()))
    return "not resumed as expected\n" + again.errors;
  // What a cut has left of a checkpoint that was being removed may be found damaged and quarantined.
  return problem_of_steps(run, {fault_steps - 1, fault_steps});
}

void check_cuts(const StorageFault& fault) {
  const std::vector<Cut> cuts = cuts_of_save(fault);
  const std::size_t wanted = std::getenv("SCALETRAIN_SOAK_ALL") != nullptr ? cuts.size() : ordinary_cases;
  std::vector<SweepCase> cases;
  // Spread over the whole save, another way of cutting each time.
  const std::size_t count = std::min(wanted, cuts.size());
  for (std::size_t i = 0; i < count; ++i) {
    const Cut& cut = cuts[i * cuts.size() / count];
    cases.push_back({cut.text, [&cut, &fault](const std::string& name) { return after_cut(name, cut, fault); }});
  }
  MESSAGE(cases.size() << " of " << cuts.size() << " states that a power cut may leave");
  // How many differ depends on when other threads write; of every kind there are some, with and without the new one.
  for (const CutKind kind : all_cuts) {
    CAPTURE(name_of(kind));
    CHECK(std::any_of(cuts.begin(), cuts.end(), [kind](const Cut& cut) { return cut.kind == kind; }));
  }
  for (const bool is_new : {false, true})
    CHECK(std::count_if(cuts.begin(), cuts.end(), [is_new](const Cut& cut) { return cut.must_be_new == is_new; }) > 10);
  for (const std::string& problem : sweep(cases)) FAIL_CHECK(problem);
}

TEST_CASE("a_power_cut_at_any_moment_of_a_save_leaves_the_old_checkpoint_or_the_new_one") {
  check_cuts({.save = 0});
}

TEST_CASE("a_power_cut_at_any_moment_of_a_save_in_the_background_leaves_the_old_checkpoint_or_the_new_one") {
  check_cuts({.save = 0, .settings = {"checkpoint.background=true"}});
}

}  // namespace
}  // namespace scaletrain
