// What stays of a run's checkpoints, whatever happens to it: a model of the rules against random histories, and the
// disk that is full.
#include <algorithm>
#include <map>
#include <random>

#include "catalog_run.h"
#include "support/sanitizers.h"

using namespace scaletrain;

namespace {

using Paths = std::set<std::string>;

std::vector<CatalogEntry> usable(const std::filesystem::path& folder) {
  std::vector<CatalogEntry> entries = list_checkpoints(folder);
  std::erase_if(entries, [](const CatalogEntry& entry) { return !entry.problem.empty(); });
  return entries;
}

Paths abandoned_in(const std::filesystem::path& folder) {
  Paths names;
  for (const std::string& name : names_in(folder))
    if (name.starts_with(".abandoned-")) names.insert(name);
  return names;
}

// One run's life as a seed has it: saves, saves that fail, starts under another config, rollbacks, damage.
class RandomRun {
 public:
  explicit RandomRun(unsigned seed) : random_(seed) {}

  void live(int events) {
    for (int i = 0; i < events; ++i) {
      switch (below(10)) {
        case 0:
          fail_a_save();
          break;
        case 1:
          start_again();
          break;
        case 2:
          go_back();
          break;
        default:
          save();
      }
    }
  }
  int pruned = 0;
  int rollbacks = 0;

 private:
  std::uint32_t below(std::uint32_t end) { return static_cast<std::uint32_t>(random_()) % end; }

  void save() {
    step_ += every_;
    const std::filesystem::path path = run_.save(step_, generation_);
    const std::string id = Checkpoint(path).manifest().save_id;
    known_.insert(id);
    if (below(4) == 0) policy_.best_save_id = id;
    best_of_[id] = policy_.best_save_id;
    prune();
  }

  void fail_a_save() const {
    std::filesystem::create_directories(run_.folder / (".saving-step-" + std::to_string(step_ + every_) + "-x"));
  }

  // A process that knows what was read for it, the newest; with another config, and maybe with an old one damaged.
  void start_again() {
    const std::vector<CatalogEntry> entries = usable(run_.folder.path());
    if (entries.empty()) return;
    if (entries.size() > 3 && below(2) == 0) run_.damage(entries[1 + below(2)].path);
    known_ = {entries.front().save_id};
    policy_.keep = 1 + below(4);
    policy_.keep_every.reset();
    if (below(2) == 0) policy_.keep_every = 20 + 10 * below(2);
    every_ = 5 * (1 + below(3));
    if (count_let_go(run_.folder.path(), policy_) > 1) prune();
  }

  void go_back() {
    const std::vector<CatalogEntry> entries = usable(run_.folder.path());
    if (entries.size() < 3) return;
    const CatalogEntry& to = entries[1 + below(2)];
    if (!verifies(to.path)) return;
    quarantine_later(run_.folder.path(), to.step);
    step_ = to.step;
    ++generation_;
    policy_.best_save_id = best_of_[to.save_id];
    ++rollbacks;
  }

  std::size_t num_verified() const {
    std::size_t count = 0;
    for (const CatalogEntry& entry : usable(run_.folder.path())) count += verifies(entry.path) ? 1 : 0;
    return count;
  }

  bool is_kept_by_name(const CatalogEntry& entry) const {
    return (policy_.keep_every && entry.step % *policy_.keep_every == 0) || policy_.best_save_id == entry.save_id;
  }

  void prune() {
    const std::vector<CatalogEntry> before = usable(run_.folder.path());
    const std::size_t verified_before = num_verified();
    const Paths abandoned_before = abandoned_in(run_.folder.path());
    Paths must;
    Paths may;
    for (std::size_t i = 0; i < before.size(); ++i) {
      const bool is_new = static_cast<std::int64_t>(i) < policy_.keep;
      if (is_new || is_kept_by_name(before[i])) must.insert(before[i].path.string());
    }
    // Two that verify stay, whatever the policy: the newest of the others are taken until there are so many.
    std::size_t verified = 0;
    for (const bool of_policy : {true, false}) {
      for (const CatalogEntry& entry : before) {
        if (must.contains(entry.path.string()) != of_policy || verified >= 2 || !verifies(entry.path)) continue;
        may.insert(entry.path.string());
        ++verified;
      }
    }
    may.insert(must.begin(), must.end());
    const std::vector<std::filesystem::path> removed =
        prune_checkpoints(run_.folder.path(), policy_, known_, run_.report());
    pruned += static_cast<int>(removed.size());
    Paths after;
    for (const CatalogEntry& entry : usable(run_.folder.path())) after.insert(entry.path.string());
    CHECK(std::includes(after.begin(), after.end(), must.begin(), must.end()));
    CHECK(num_verified() >= std::min<std::size_t>(2, verified_before));
    if (verified_before >= 2) {
      CHECK(after == may);
      const Paths abandoned = abandoned_in(run_.folder.path());
      CHECK(abandoned.size() == std::min<std::size_t>(2, abandoned_before.size()));
    } else {
      CHECK(removed.empty());
    }
    for (const std::string& name : names_in(run_.folder.path())) CHECK_FALSE(name.starts_with(".saving-"));
  }

  std::mt19937 random_;
  CatalogRun run_;
  RetentionPolicy policy_{.keep = 2, .keep_every = {}, .best_save_id = {}};
  std::set<std::string> known_;
  std::map<std::string, std::optional<std::string>> best_of_;  // as each checkpoint's manifest has it
  std::int64_t step_ = 0;
  std::int64_t every_ = 5;
  std::int64_t generation_ = 0;
};

}  // namespace

TEST_CASE("retention_holds_in_random_histories_of_saves_failures_starts_rollbacks_and_damage") {
  for (const unsigned seed : is_sanitized ? std::vector{1u} : std::vector{1u, 2u}) {
    CAPTURE(seed);
    RandomRun run(seed);
    run.live(is_sanitized ? 30 : 50);
    CHECK(run.pruned > (is_sanitized ? 5 : 10));
    CHECK(run.rollbacks > (is_sanitized ? 0 : 1));
  }
}

TEST_CASE("retention_of_abandoned_branches_is_their_two_newest_once_two_others_verify") {
  CatalogRun run;
  for (const std::int64_t step : {5, 10, 15, 20}) run.save(step);
  quarantine_later(run.folder.path(), 5);
  std::set<std::string> known = run.written;
  const RetentionPolicy policy{.keep = 3, .keep_every = {}, .best_save_id = {}};
  // The branch that is gone on with has one checkpoint: nothing of the other goes.
  CHECK(prune_checkpoints(run.folder.path(), policy, known, run.report()).empty());
  CHECK(run.reports.empty());
  CHECK(abandoned_in(run.folder.path()).size() == 3);
  known.insert(Checkpoint(run.save(10, 1)).manifest().save_id);
  const auto removed = prune_checkpoints(run.folder.path(), policy, known, run.report());
  CHECK(removed == std::vector<std::filesystem::path>{run.folder / ".abandoned-step-00000010-0"});
  CHECK(abandoned_in(run.folder.path()) == Paths{".abandoned-step-00000015-0", ".abandoned-step-00000020-0"});
  REQUIRE(run.reports.size() == 1);
  CHECK(contains(run.reports[0], ".abandoned-step-00000010-0: removed"));
  CHECK(run.steps() == std::vector<std::int64_t>{10, 5});
}

TEST_CASE("retention_what_did_not_verify_and_was_quarantined_is_never_removed") {
  CatalogRun run;
  for (const std::int64_t step : {1, 2, 3, 4, 5}) run.save(step);
  for (const char* name : {"step-00000003", "step-00000004", "step-00000005"}) run.damage(run.folder / name);
  CHECK(newest_usable(run.folder.path(), run.report())->manifest().step == 2);
  std::set<std::string> known = run.written;
  const RetentionPolicy policy{.keep = 2, .keep_every = {}, .best_save_id = {}, .keep_abandoned = 0};
  for (int i = 0; i < 4; ++i) prune_for_space(run.folder.path(), policy, known, run.report());
  CHECK(names_in(run.folder.path()) == std::vector<std::string>{".damaged-step-00000003-0", ".damaged-step-00000004-0",
                                                                ".damaged-step-00000005-0", "step-00000001",
                                                                "step-00000002"});
}

TEST_CASE("retention_for_space_goes_from_what_nobody_keeps_to_two_and_no_further") {
  CatalogRun run;
  for (const std::int64_t step : {10, 20, 30, 40, 50, 60, 70, 80}) run.save(step);
  quarantine_later(run.folder.path(), 70);
  const std::string best = list_checkpoints(run.folder.path())[5].save_id;  // step 20
  std::set<std::string> known = run.written;
  const RetentionPolicy policy{.keep = 5, .keep_every = 30, .best_save_id = best};
  const auto make_room = [&] {
    std::vector<std::string> names;
    for (const auto& path : prune_for_space(run.folder.path(), policy, known, run.report()))
      names.push_back(path.filename().string());
    return names;
  };
  using Names = std::vector<std::string>;
  CHECK(make_room() == Names{"step-00000010"});  // the policy's
  CHECK(make_room() == Names{".abandoned-step-00000080-0"});
  CHECK(make_room() == Names{"step-00000040"});  // of the newest five; 30 is a multiple
  CHECK(make_room() == Names{"step-00000050"});
  CHECK(make_room().empty());
  CHECK(run.steps() == std::vector<std::int64_t>{70, 60, 30, 20});
}

TEST_CASE("retention_spares_what_training_begins_from_until_it_has_saved_wherever_that_lies") {
  CatalogRun run;
  for (const std::int64_t step : {10, 20, 27}) run.save(step);
  quarantine_later(run.folder.path(), 20);
  const std::string start = Checkpoint(run.folder / ".abandoned-step-00000027-0").manifest().save_id;
  for (const std::int64_t step : {30, 40, 50}) run.save(step, 1);
  quarantine_later(run.folder.path(), 27);
  std::set<std::string> known = run.written;
  RetentionPolicy policy{.keep = 3, .keep_every = {}, .best_save_id = {}, .start_save_id = start};
  // Besides it, two of the three that are newer stay at first, and none where there is no space.
  CHECK(prune_checkpoints(run.folder.path(), policy, known, run.report()).size() == 1);
  CHECK(abandoned_in(run.folder.path()) ==
        Paths{".abandoned-step-00000027-0", ".abandoned-step-00000040-0", ".abandoned-step-00000050-0"});
  CHECK(prune_for_space(run.folder.path(), policy, known, run.report()).size() == 2);
  CHECK(prune_for_space(run.folder.path(), policy, known, run.report()).empty());
  CHECK(abandoned_in(run.folder.path()) == Paths{".abandoned-step-00000027-0"});
  policy.start_save_id.reset();
  CHECK(prune_for_space(run.folder.path(), policy, known, run.report()).size() == 1);
  CHECK(run.steps() == std::vector<std::int64_t>{20, 10});
}

TEST_CASE("retention_for_space_lets_nothing_go_while_fewer_than_two_others_verify") {
  CatalogRun run;
  for (const std::int64_t step : {1, 2, 3, 4}) run.save(step);
  for (const char* name : {"step-00000002", "step-00000003", "step-00000004"}) run.damage(run.folder / name);
  std::set<std::string> known;
  CHECK(prune_for_space(run.folder.path(), {.keep = 4, .keep_every = {}, .best_save_id = {}}, known, run.report())
            .empty());
  CHECK(run.steps().size() == 4);
}
