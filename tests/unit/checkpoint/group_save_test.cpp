// A save by many ranks succeeds on all of them or fails on all of them, with the same words, and leaves nothing behind.
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>

#include "base/file.h"
#include "layout_fixture.h"

using namespace scaletrain;

namespace {

// Knows which keys are there.
class RecordedStore final : public KeyValueStore {
 public:
  struct Keys {
    std::mutex mutex;
    std::set<std::string> present;
    std::set<std::string> all;
  };
  RecordedStore(KeyValueStore& store, Keys& keys) : store_(store), keys_(keys) {}
  void set(const std::string& key, const std::string& value) override {
    note(key);
    store_.set(key, value);
  }
  std::optional<std::string> find(const std::string& key) override { return store_.find(key); }
  std::optional<std::string> find_within(const std::string& key, double seconds) override {
    return store_.find_within(key, seconds);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    note(key);
    return store_.add(key, amount);
  }
  void remove(const std::string& key) override {
    store_.remove(key);
    const std::lock_guard lock(keys_.mutex);
    keys_.present.erase(key);
  }

 private:
  void note(const std::string& key) {
    const std::lock_guard lock(keys_.mutex);
    keys_.present.insert(key);
    keys_.all.insert(key);
  }
  KeyValueStore& store_;
  Keys& keys_;
};

// A rank that is held up between hearing of a save and taking part in it.
class LateStore final : public KeyValueStore {
 public:
  LateStore(KeyValueStore& store, std::function<void()> before_writing)
      : store_(store), before_writing_(std::move(before_writing)) {}
  void set(const std::string& key, const std::string& value) override {
    if (key.find("/report/") != std::string::npos) report = value;
    store_.set(key, value);
  }
  std::optional<std::string> find(const std::string& key) override { return store_.find(key); }
  std::optional<std::string> find_within(const std::string& key, double seconds) override {
    auto value = store_.find_within(key, seconds);
    if (key.ends_with("/begin")) before_writing_();
    return value;
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override { return store_.add(key, amount); }
  void remove(const std::string& key) override { store_.remove(key); }

  std::string report;

 private:
  KeyValueStore& store_;
  std::function<void()> before_writing_;
};

// As of a rank that watches the others: waiting for the report of one that is gone ends.
class BereavedStore final : public KeyValueStore {
 public:
  explicit BereavedStore(KeyValueStore& store) : store_(store) {}
  void set(const std::string& key, const std::string& value) override { store_.set(key, value); }
  std::optional<std::string> find(const std::string& key) override { return store_.find(key); }
  std::optional<std::string> find_within(const std::string& key, double seconds) override {
    if (key.ends_with("/report/3")) throw PeerError("rank 3 is gone");
    return store_.find_within(key, seconds);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override { return store_.add(key, amount); }
  void remove(const std::string& key) override { store_.remove(key); }

 private:
  KeyValueStore& store_;
};

struct Attempt {
  std::vector<std::string> messages;  // of the InputErrors, by rank
  std::vector<SaveResult> results;
};

constexpr Layout four{2, 2, 1, 1};

struct FourRanks {
  TempFolder folder;
  ParamTable table = layout_table(false, true);
  RecordedStore::Keys keys;

  std::filesystem::path checkpoints() const { return folder / "checkpoints"; }
  // Ranks change their requests as they like. All attempts go through one world's store.
  std::vector<Attempt> save(
      int attempts, const std::function<void(Rank, int, SaveRequest&)>& change,
      const std::function<void(Rank, int, KeyValueStore&)>& afterwards = [](Rank, int, KeyValueStore&) {}) {
    std::vector<Attempt> out(static_cast<std::size_t>(attempts));
    for (Attempt& attempt : out) {
      attempt.messages.resize(4);
      attempt.results.resize(4);
    }
    run_layout(table, four, [&](Rank rank, RankStore& store, KeyValueStore& rendezvous) {
      RecordedStore recorded(rendezvous, keys);
      store.fill(5);
      for (int number = 0; number < attempts; ++number) {
        SaveRequest request = save_request(checkpoints(), 10);
        request.group = save_group(table, four, rank, recorded, number + 1);
        change(rank, number, request);
        const auto index = static_cast<std::size_t>(rank.value());
        Attempt& attempt = out[static_cast<std::size_t>(number)];
        attempt.messages[index] =
            message_of<InputError>([&] { attempt.results[index] = save_checkpoint(store.store(), request); });
        afterwards(rank, number, rendezvous);
      }
    });
    return out;
  }
  bool nothing_left() const { return !std::filesystem::exists(checkpoints()) || names_in(checkpoints()).empty(); }
  void check_failed(const Attempt& attempt, const std::string& part) {
    CHECK(contains(attempt.messages[0], part));
    for (const std::string& message : attempt.messages) CHECK(message == attempt.messages[0]);
  }
  void check_saved(const Attempt& attempt) {
    for (std::size_t rank = 0; rank < 4; ++rank) {
      CHECK(attempt.messages[rank].empty());
      CHECK(attempt.results[rank].path == checkpoints() / "step-00000010");
      CHECK(attempt.results[rank].save_id == attempt.results[0].save_id);
      CHECK(attempt.results[rank].bytes == attempt.results[0].bytes);
      CHECK(attempt.results[rank].seconds == attempt.results[0].seconds);
    }
    std::uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(attempt.results[0].path)) bytes += entry.file_size();
    CHECK(attempt.results[0].bytes == bytes);
    CHECK(verifies(attempt.results[0].path));
    CHECK(read_manifest(attempt.results[0].path).save_id == attempt.results[0].save_id);
    CHECK(names_in(checkpoints()) == std::vector<std::string>{"step-00000010"});
  }
};

}  // namespace

TEST_CASE("group_save_gives_every_rank_the_same_result_and_removes_its_keys") {
  FourRanks ranks;
  ranks.check_saved(ranks.save(1, [](Rank, int, SaveRequest&) {})[0]);
  CHECK(ranks.keys.all.size() >= 6);
  for (const std::string& key : ranks.keys.all) CHECK(key.starts_with("save/0/10/1/"));
  CHECK(ranks.keys.present.empty());
}

TEST_CASE("group_save_fails_on_all_ranks_when_one_cannot_write_and_the_next_attempt_succeeds") {
  for (const std::int64_t bad : {0, 1, 3}) {
    CAPTURE(bad);
    FourRanks ranks;
    const auto in_the_way = ranks.folder.write("file", "x");
    const auto attempts = ranks.save(2, [&](Rank rank, int number, SaveRequest& request) {
      if (rank == Rank(bad) && number == 0) request.folder = in_the_way;
    });
    const std::string& message = attempts[0].messages[0];
    CHECK(contains(message, "rank " + std::to_string(bad) + ": "));
    CHECK(contains(message, in_the_way.string()));
    ranks.check_failed(attempts[0], "rank " + std::to_string(bad));
    ranks.check_saved(attempts[1]);
    CHECK(ranks.keys.present.empty());
  }
}

TEST_CASE("group_save_that_rank_0_may_not_commit_or_cannot_plan_fails_on_all_and_leaves_nothing") {
  FourRanks ranks;
  auto attempts = ranks.save(1, [](Rank, int, SaveRequest& request) { request.may_commit = [] { return false; }; });
  ranks.check_failed(attempts[0], "no longer owns the run");
  CHECK(ranks.nothing_left());
  attempts = ranks.save(1, [](Rank, int, SaveRequest& request) {
    request.group.plan_of = [](Rank) -> std::vector<SavePiece> { throw std::bad_alloc(); };
  });
  ranks.check_failed(attempts[0], "not enough memory");
  CHECK(ranks.nothing_left());
  // Another version of the program, or another config: what rank 2 wrote is not what rank 0 expects of it.
  attempts = ranks.save(1, [&](Rank rank, int, SaveRequest& request) {
    if (rank == Rank(2)) request.max_file_bytes = 1000;
  });
  ranks.check_failed(attempts[0], "the same config");
  CHECK(ranks.nothing_left());
  CHECK(ranks.keys.present.empty());
}

TEST_CASE("group_save_error_of_another_kind_keeps_it_where_it_was_thrown_and_fails_the_others") {
  FourRanks ranks;
  std::atomic<int> peer_errors{0};
  std::vector<std::string> messages(4);
  run_layout(ranks.table, four, [&](Rank rank, RankStore& store, KeyValueStore& rendezvous) {
    SaveRequest request = save_request(ranks.checkpoints(), 10);
    request.group = save_group(ranks.table, four, rank, rendezvous);
    request.may_commit = []() -> bool { throw PeerError("the lease is lost"); };
    try {
      messages[static_cast<std::size_t>(rank.value())] =
          message_of<InputError>([&] { save_checkpoint(store.store(), request); });
    } catch (const PeerError&) {
      ++peer_errors;
    }
  });
  CHECK(peer_errors == 1);
  CHECK(messages[0].empty());
  for (std::size_t rank = 1; rank < 4; ++rank) CHECK(contains(messages[rank], "the lease is lost"));
  CHECK(ranks.nothing_left());
}

TEST_CASE("group_save_gives_up_a_rank_that_does_not_come_which_hears_of_it_when_it_does") {
  FourRanks ranks;
  const auto attempts = ranks.save(
      2,
      [&](Rank rank, int number, SaveRequest& request) {
        if (number > 0) return;
        // The others have ended their attempt when the last rank enters its own.
        if (rank == Rank(3)) request.group.store->wait("given up", 60.0);
        if (rank == Rank(0)) request.group.deadline = 2.0;
      },
      [](Rank rank, int number, KeyValueStore& store) {
        if (number == 0 && rank == Rank(0)) store.set("given up", "");
      });
  ranks.check_failed(attempts[0], "no report within");
  CHECK(contains(attempts[0].messages[0], "rank 3"));
  ranks.check_saved(attempts[1]);
}

TEST_CASE("group_save_rank_that_writes_after_it_was_given_up_fails_like_the_others_and_leaves_nothing") {
  // The folder is gone when it begins to write; or it makes files after all the others have left, as when its next file
  // met rank 0's removal.
  for (const bool folder_is_there : {false, true}) {
    CAPTURE(folder_is_there);
    FourRanks ranks;
    std::string abandoned;  // the folder's name
    std::unique_ptr<LateStore> late;
    const auto attempts = ranks.save(
        2,
        [&](Rank rank, int number, SaveRequest& request) {
          if (number > 0) return;
          if (rank == Rank(0)) request.group.deadline = 2.0;
          if (rank != Rank(3)) return;
          KeyValueStore& store = *request.group.store;
          late = std::make_unique<LateStore>(store, [&] {
            abandoned = names_in(ranks.checkpoints()).at(0);
            for (const char* other : {"0", "1", "2"}) store.wait(std::string("given up/") + other, 60.0);
            if (folder_is_there) std::filesystem::create_directory(ranks.checkpoints() / abandoned);
          });
          request.group.store = late.get();
        },
        [&](Rank rank, int number, KeyValueStore& store) {
          if (number == 0) store.set("given up/" + std::to_string(rank.value()), "");
        });
    CHECK(abandoned.starts_with(".saving-step-00000010-"));
    ranks.check_failed(attempts[0], "rank 3: no report within");
    REQUIRE(late != nullptr);
    CHECK(contains(late->report, "rank 0 has given this save up") == !folder_is_there);
    CHECK(contains(late->report, abandoned) == !folder_is_there);
    CHECK(contains(late->report, "model-00003-000.safetensors"));
    // The next save: nothing else is in the folder.
    ranks.check_saved(attempts[1]);
  }
}

TEST_CASE("group_save_with_a_rank_that_is_known_to_be_gone_is_a_peers_failure_and_not_the_storages") {
  FourRanks ranks;
  std::vector<std::string> messages(4);
  run_layout(ranks.table, four, [&](Rank rank, RankStore& store, KeyValueStore& rendezvous) {
    BereavedStore bereaved(rendezvous);
    SaveRequest request = save_request(ranks.checkpoints(), 10);
    request.group = save_group(ranks.table, four, rank, bereaved);
    if (rank != Rank(0)) request.group.deadline = 1.0;  // nobody tells them
    if (rank == Rank(3)) return;
    try {
      save_checkpoint(store.store(), request);
    } catch (const PeerError& error) {
      messages[static_cast<std::size_t>(rank.value())] = error.what();
    }
  });
  CHECK(messages[0] == "rank 3 is gone");
  for (const std::size_t rank : {1, 2}) CHECK_FALSE(messages[rank].empty());
  CHECK(ranks.nothing_left());
}

TEST_CASE("group_save_that_finds_no_space_says_so_to_every_rank_unless_something_else_failed_too") {
  for (const bool something_else : {false, true}) {
    CAPTURE(something_else);
    FourRanks ranks;
    std::atomic<int> without_space{0};
    std::atomic<int> failed{0};
    run_layout(ranks.table, four, [&](Rank rank, RankStore& store, KeyValueStore& rendezvous) {
      SaveRequest request = save_request(ranks.checkpoints(), 10);
      request.group = save_group(ranks.table, four, rank, rendezvous);
      request.is_abandoned = [&, rank]() -> bool {
        if (rank == Rank(2)) throw NoSpaceError("model-00002-000.safetensors: no space");
        if (rank == Rank(1) && something_else) throw InputError("model-00001-000.safetensors: a broken disk");
        return false;
      };
      try {
        save_checkpoint(store.store(), request);
      } catch (const NoSpaceError&) {
        ++without_space;
      } catch (const InputError&) {
        ++failed;
      }
    });
    CHECK(without_space == (something_else ? 0 : 4));
    CHECK(failed == (something_else ? 4 : 0));
    CHECK(ranks.nothing_left());
  }
}
