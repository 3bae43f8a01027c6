// Ranks whose hosts hold other files under the same paths never train together.
#include "train/data/data_agreement.h"

#include <functional>
#include <nlohmann/json.hpp>

#include "comm/rendezvous/memory_store.h"
#include "train/start/start_up.h"
#include "unit/train/ranks_run.h"

using namespace scaletrain;

namespace {

DataClaim claim_of(const std::string& host, std::vector<SourceContent> sources) {
  return {host, 5, std::move(sources)};
}

SourceContent corpus(std::vector<FileContent> files, std::uint64_t identity, std::int64_t tokens = 1000) {
  SourceContent source;
  source.key = "data.train.0";
  source.path = "/data/corpus";
  source.tokens = tokens;
  source.identity = identity;
  source.files = std::move(files);
  return source;
}

// What every rank's agreement ended with; empty: it agrees.
std::vector<std::string> agree(int world_size, const std::function<DataClaim(Rank)>& claim) {
  InProcessWorld world(world_size);
  std::vector<std::string> ends(static_cast<std::size_t>(world_size));
  run_threads(world, [&](Rank rank) {
    const auto store = world.make_store();
    StartUp start_up({.rank = rank, .world = world_size, .local_rank = rank.value(), .rendezvous = store.get()}, 1);
    std::string& end = ends[static_cast<std::size_t>(rank.value())];
    try {
      agree_on_data(start_up, rank, claim(rank));
      start_up.wait_for_all();
    } catch (const InputError& error) {
      end = std::string("input: ") + error.what();
      start_up.failed(error.what());
    } catch (const PeerError& error) {
      end = std::string("peer: ") + error.what();
    }
  });
  return ends;
}

}  // namespace

TEST_CASE("ranks_with_the_same_data_agree") {
  const auto ends = agree(3, [](Rank) { return claim_of("a", {corpus({{"/data/corpus/a.bin", 10, 1}}, 7)}); });
  CHECK(ends == std::vector<std::string>(3));
}

TEST_CASE("a_rank_with_another_file_is_refused_and_named_with_host_file_and_size") {
  const auto ends = agree(3, [](Rank rank) {
    const bool is_odd = rank == Rank(2);
    return claim_of(
        is_odd ? "node-b" : "node-a",
        {corpus({{"/data/corpus/a.bin", 10, 1}, {"/data/corpus/b.bin", is_odd ? 2000u : 4000u, 2}}, is_odd ? 8 : 7)});
  });
  CHECK(ends[2] ==
        "input: rank 2 on host node-b has other data than rank 0 on host node-a: data.train.0: /data/corpus/b.bin has "
        "2,000 bytes here and 4,000 bytes there. Copy the data again to the host that has it wrong, or have all hosts "
        "read one file system");
  for (const std::size_t rank : {0u, 1u}) {
    CHECK(ends[rank].starts_with("peer: "));
    CHECK(contains(ends[rank], "rank 2 on host node-b has other data"));
  }
}

TEST_CASE("a_rank_0_that_fails_before_it_has_data_is_the_reason_that_others_give") {
  const auto ends = agree(3, [](Rank rank) {
    if (rank == Rank(0)) throw InputError("the corpus is damaged");
    return claim_of("a", {});
  });
  CHECK(ends[0] == "input: the corpus is damaged");
  for (const std::size_t rank : {1u, 2u}) {
    CHECK(ends[rank].starts_with("peer: "));
    CHECK(contains(ends[rank], "rank 0: the corpus is damaged"));
  }
}

TEST_CASE("differences_of_data_are_told_by_source_and_file") {
  const DataClaim there = claim_of("a", {corpus({{"/d/a.txt", 10, 1}, {"/d/b.txt", 20, 2}}, 7)});
  const auto difference = [&](std::vector<FileContent> files, std::int64_t tokens = 1000) {
    return data_differences(claim_of("b", {corpus(std::move(files), 8, tokens)}), there);
  };
  CHECK(data_differences(there, there).empty());
  CHECK(contains(difference({{"/d/a.txt", 10, 1}, {"/d/b.txt", 20, 3}}), "/d/b.txt has other content (20 bytes both)"));
  CHECK(contains(difference({{"/d/a.txt", 10, 1}}), "/d/b.txt is missing on this host"));
  CHECK(contains(difference({{"/d/a.txt", 9, 1}}), "/d/a.txt has 9 bytes here and 10 bytes there, and 1 more file"));
  CHECK(contains(difference({{"/d/a.txt", 10, 1}, {"/d/b.txt", 20, 2}, {"/d/c.txt", 1, 1}}),
                 "/d/c.txt is there on this host only"));
  // The files are the same, and something else is not, as their order.
  CHECK(contains(difference({{"/d/a.txt", 10, 1}, {"/d/b.txt", 20, 2}}, 999), "other tokens (999 here, 1,000 there)"));
  DataClaim other = there;
  other.tokenizer = 6;
  CHECK(contains(data_differences(other, there), "data.tokenizer"));
  other.sources[0].identity = 9;  // the same text, other tokens
  CHECK_FALSE(contains(data_differences(other, there), "data.train.0"));
  other.sources.clear();
  CHECK(contains(data_differences(other, there), "0 sources here and 1 there"));
}

TEST_CASE("a_claim_is_read_as_it_was_told_and_names_a_hundred_files_at_most") {
  std::vector<FileContent> files;
  files.reserve(250);
  for (int i = 0; i < 250; ++i) files.push_back({"/d/" + std::to_string(1000 + i), 10, static_cast<std::uint64_t>(i)});
  DataClaim claim = claim_of("a", {corpus(files, ~std::uint64_t{0}, 1LL << 60)});
  claim.sources[0].holds = {1, ~std::uint64_t{0}};
  claim.sources[0].caches = {{"/c/1.tokens", 7}, {"", 0}};
  const DataClaim read = parse_claim(claim_text(claim));
  CHECK(read.host == "a");
  CHECK(read.tokenizer == 5);
  REQUIRE(read.sources.size() == 1);
  CHECK(read.sources[0].files.size() == 100);
  CHECK(read.sources[0].tokens == 1LL << 60);
  CHECK(read.sources[0].holds == claim.sources[0].holds);
  REQUIRE(read.sources[0].caches.size() == 2);
  CHECK(read.sources[0].caches[0].path == "/c/1.tokens");
  CHECK(read.sources[0].caches[0].identity == 7);
  CHECK(data_differences(claim, read).empty());
  // What stands behind the cut is not taken for missing.
  DataClaim changed = claim;
  changed.sources[0].identity = 1;
  CHECK(contains(data_differences(changed, read), "other tokens ("));
  CHECK(contains(message_of<InputError>([] { parse_claim("{}"); }), "host"));
}

TEST_CASE("a_claim_about_any_number_of_files_fits_into_the_store_and_what_it_leaves_out_is_not_missing") {
  // 250 folders of 100 files with long names are 26 MB, and each file holds something.
  std::vector<SourceContent> sources;
  for (int i = 0; i < 250; ++i) {
    std::vector<FileContent> files;
    files.reserve(100);
    for (int k = 0; k < 100; ++k)
      files.push_back(
          {"/d/" + std::string(1000, 'x') + std::to_string(1000 * i + k), 10, static_cast<std::uint64_t>(k)});
    sources.push_back(corpus(std::move(files), 7));
    sources.back().holds.assign(1200, 1);
  }
  const DataClaim claim = claim_of("a", std::move(sources));
  const std::string text = claim_text(claim);
  CHECK(text.size() <= MemoryStore::max_value_bytes);
  const DataClaim read = parse_claim(text);
  CHECK(read.sources[0].has_all_files);
  CHECK(read.sources[0].files.size() == 100);
  CHECK_FALSE(read.sources[249].has_all_files);
  CHECK(data_differences(claim, read).empty());
  DataClaim changed = claim;
  changed.sources[249].identity = 1;
  CHECK(contains(data_differences(changed, read), "other tokens ("));
  // Whoever was told so by its host's first rank knows no more.
  CHECK_FALSE(parse_claim(claim_text(read)).sources[249].has_all_files);
}

TEST_CASE("caches_are_told_as_far_as_there_is_room_for_them_in_the_store") {
  std::vector<SourceContent> sources;
  for (int i = 0; i < 200; ++i) {
    sources.push_back(corpus({{"/d/a.txt", 10, 1}}, 7));
    sources.back().caches.assign(10, {"/c/" + std::string(4000, '\n'), 7});
  }
  sources[1].caches.assign(1025, {"/c/1.tokens", 7});
  const std::string text = claim_text(claim_of("a", std::move(sources)));
  CHECK(text.size() <= MemoryStore::max_value_bytes);
  const DataClaim read = parse_claim(text);
  CHECK(read.sources[0].caches.size() == 10);
  CHECK(read.sources[1].caches.empty());
  CHECK(read.sources[199].caches.empty());
}

TEST_CASE("a_claim_that_says_more_than_any_rank_would_is_an_input_error_that_names_the_field") {
  DataClaim claim = claim_of("a", {corpus({{"/d/a.txt", 10, 1}}, 7)});
  claim.sources[0].caches = {{"/c/1.tokens", 7}};
  const nlohmann::json good = nlohmann::json::parse(claim_text(claim));
  const auto refused = [&](const char* place, const nlohmann::json& value, const std::string& named) {
    CAPTURE(place);
    nlohmann::json bad = good;
    bad[nlohmann::json::json_pointer(place)] = value;
    const std::string message = message_of<InputError>([&] { parse_claim(bad.dump()); });
    CHECK_MESSAGE(contains(message, "what another rank says of its data: " + named), message);
  };
  const auto many = [&](const char* place, std::size_t count) {
    return nlohmann::json(std::vector<nlohmann::json>(count, good.at(nlohmann::json::json_pointer(place))));
  };
  const std::string long_path(40000, 'x');
  refused("/host", std::string(2000, 'x'), "host: 2000 bytes, at most 1024");
  refused("/sources", many("/host", 70000), "sources: 70000 entries, at most 65536");
  refused("/sources", nullptr, "sources: a list is expected");
  refused("/sources/0/key", std::string(2000, 'x'), "key: 2000 bytes");
  refused("/sources/0/path", long_path, "path: 40000 bytes, at most 32768");
  refused("/sources/0/holds", std::string(std::size_t{5} << 20, '0'), "holds: 5242880 bytes");
  refused("/sources/0/caches", many("/sources/0/caches/0", 1025), "caches: 1025 entries, at most 1024");
  refused("/sources/0/caches", {{"a", 1}}, "caches: a list is expected");
  refused("/sources/0/caches/0/path", long_path, "path: 40000 bytes");
  refused("/sources/0/files", many("/sources/0/files/0", 101), "files: 101 entries, at most 100");
  refused("/sources/0/files/0/path", long_path, "path: 40000 bytes");
  CHECK(parse_claim(good.dump()).sources.size() == 1);
}

TEST_CASE("what_each_file_holds_is_told_within_the_host_only") {
  InProcessWorld world(2);
  run_threads(world, [&](Rank rank) {
    const auto store = world.make_store();
    StartUp start_up({.rank = rank, .world = 2, .local_rank = rank.value(), .rendezvous = store.get()}, 1);
    DataClaim claim = claim_of("a", {corpus({{"/d/a.txt", 10, 1}}, 7)});
    claim.sources[0].holds = {0xabcdef0123456789};
    claim.sources[0].caches = {{"/c/1.tokens", 7}};
    agree_on_data(start_up, rank, claim);
    const std::string told = store->wait("start/1/first-data", 60.0);
    CHECK(contains(told, "/d/a.txt"));
    CHECK_FALSE(contains(told, "abcdef0123456789"));
    CHECK_FALSE(contains(told, "/c/1.tokens"));
    start_up.wait_for_all();
  });
}

TEST_CASE("a task whose file holds other questions on another host is told") {
  const TempFolder folder;
  const auto task_of = [&](const std::string& name, const char* choice) {
    const auto file = folder.write(
        name, std::string("{\"question\": \"q\", \"choices\": [\"a\", \"") + choice + "\"], \"answer\": 0}\n");
    return content_of_task("evaluate.tasks.0", "/tasks/t.jsonl",
                           ChoiceTask("t", file, ByteTokenizer(), 8, "evaluate.tasks.0"));
  };
  const SourceContent here = task_of("a.jsonl", "b");
  CHECK(data_differences({"one", 1, {here}}, {"two", 1, {task_of("b.jsonl", "b")}}).empty());
  CHECK(contains(data_differences({"one", 1, {here}}, {"two", 1, {task_of("c.jsonl", "c")}}), "evaluate.tasks.0"));
}

TEST_CASE("ranks_whose_folders_of_weights_differ_are_told") {
  const TempFolder folder;
  folder.write("a/config.json", "{}");
  folder.write("a/model.safetensors", "one");
  folder.write("a/README.md", "nobody reads it");
  folder.write("b/config.json", "{}");
  folder.write("b/model.safetensors", "two");
  const SourceContent a = content_of_weights("model.init.from", (folder / "a").string());
  CHECK(a.key == "model.init.from");
  CHECK(a.files.size() == 2);
  CHECK(content_of_weights("model.init.from", (folder / "a").string()).identity == a.identity);
  CHECK(content_of_weights("model.init.from", (folder / "b").string()).identity != a.identity);
}

TEST_CASE("a_run_whose_ranks_find_other_text_takes_no_step") {
  RanksRun run;
  // As on a host of its own: the text changes when rank 0 has opened it, and rank 1 opens it afterwards.
  InProcessWorld world(2);
  const StartPoint start = run.prepare(run.config({"parallel.data=2"}));
  std::vector<std::string> ends(2);
  run_threads(world, [&](Rank rank) {
    const auto store = world.make_store();
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> console(std::fopen("/dev/null", "w"), &std::fclose);
    WorkerOptions options;
    options.place = {.rank = rank, .world = 2, .local_rank = rank.value(), .rendezvous = store.get()};
    options.place.make_communicators = [&](const PhasePlan&, const LaunchConfig&, Backend&) -> CommunicatorFactory {
      return [&](const GroupSpec& spec) {
        return make_direct_communicator(
            world.make_transport(spec.name, spec.members, rank),
            {.group_name = std::string(to_text(spec.kind)), .ranks = spec.members, .deadline = 60.0});
      };
    };
    options.paths = run.paths;
    options.start = start;
    options.threads = 1;
    options.calibration_seconds = 0.0;
    options.console = console.get();
    // Rank 1 is held up before it opens its data, until rank 0 has told what it has.
    options.hooks.entered = [&](std::int64_t, bool waiting) {
      if (rank == Rank(0) || !waiting) return;
      store->wait("start/0/first-data", 60.0);
      run.folder.write("train.txt", "this host has a text of its own, which is not what the first one has read");
    };
    std::string& end = ends[static_cast<std::size_t>(rank.value())];
    try {
      train_run(options);
    } catch (const InputError& error) {
      end = std::string("input: ") + error.what();
    } catch (const PeerError& error) {
      end = std::string("peer: ") + error.what();
    }
  });
  CHECK(ends[1].starts_with("input: rank 1 on host "));
  CHECK(contains(ends[1], "data.train.0: "));
  CHECK(contains(ends[1], "train.txt has "));
  CHECK(ends[0].starts_with("peer: "));
  CHECK(contains(ends[0], "rank 1"));
  CHECK(run.checkpoint_steps().empty());
}
