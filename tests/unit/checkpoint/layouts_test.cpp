// What many ranks write is one model, and any other layout reads it back.
#include <algorithm>
#include <set>

#include "layout_fixture.h"

using namespace scaletrain;

namespace {

// The plans of all ranks: each element of each tensor and state in exactly one box, values where the range says.
void check_tiling(const ParamTable& table, const Layout& layout) {
  CAPTURE(layout.text());
  const std::int64_t world = layout.mesh().world();
  std::map<std::pair<int, int>, std::vector<int>> times;  // by (state, parameter), per element
  Manifest manifest;
  manifest.save_id = "x";
  manifest.history = "[]";
  std::map<std::pair<int, int>, ManifestTensor> tensors;
  std::set<std::pair<std::string, std::string>> keys;
  std::set<std::string> files;
  for (std::int64_t rank = 0; rank < world; ++rank) {
    const ShardLayout shard = layout_of(table, layout, Rank(rank));
    for (const SavePiece& piece : make_save_plan(table, shard, adam_states(), DType::f32)) {
      const Parameter& parameter = table.parameters()[static_cast<std::size_t>(piece.parameter)];
      std::vector<int>& counts = times[{piece.state, piece.parameter}];
      counts.resize(static_cast<std::size_t>(parameter.shape.num_elements()));
      REQUIRE(piece.box.num_elements() == piece.range.count);
      const Box& local = shard.find(piece.parameter)->box;
      bool same_place = true;
      for (std::int64_t i = 0; i < piece.range.count; ++i) {
        const std::int64_t index = global_index(parameter.shape, piece.box, i);
        same_place = same_place && index == global_index(parameter.shape, local, piece.range.first + i);
        ++counts[static_cast<std::size_t>(index)];
      }
      REQUIRE(same_place);
      REQUIRE(keys.emplace(piece.file, piece.key).second);
      const std::string number = std::to_string(rank);
      if (world > 1) REQUIRE(contains(piece.file, "-" + std::string(5 - number.size(), '0') + number + "-"));
      files.insert(piece.file);
      ManifestTensor& tensor = tensors[{piece.state, piece.parameter}];
      tensor.name = parameter.name + "/" + std::to_string(piece.state);
      tensor.role = "trained";
      tensor.shape = parameter.shape;
      tensor.pieces.push_back({.file = piece.file, .key = piece.key, .box = piece.box});
    }
  }
  for (std::size_t parameter = 0; parameter < table.parameters().size(); ++parameter) {
    for (int state = -1; state < 2; ++state) {
      const auto found = times.find({state, static_cast<int>(parameter)});
      REQUIRE((found == times.end()) == table.parameters()[parameter].tied_to.has_value());
      if (found == times.end()) continue;
      REQUIRE(std::all_of(found->second.begin(), found->second.end(), [](int count) { return count == 1; }));
    }
  }
  for (const std::string& file : files) manifest.files.push_back({.name = file, .bytes = 1, .block_hashes = {1}});
  for (auto& [place, tensor] : tensors) manifest.tensors.push_back(std::move(tensor));
  REQUIRE(message_of<InputError>([&] { parse_manifest(manifest_text(manifest), "manifest"); }).empty());
}

const std::vector<Layout>& dozen() {
  static const std::vector<Layout> layouts = {
      {1, 1, 1, 0}, {2, 1, 1, 0}, {2, 1, 1, 1}, {3, 1, 1, 2}, {4, 1, 1, 3}, {1, 2, 1, 0},
      {1, 4, 1, 0}, {1, 1, 2, 0}, {1, 1, 3, 0}, {2, 2, 2, 1}, {2, 2, 1, 3}, {3, 1, 2, 3},
  };
  return layouts;
}

}  // namespace

TEST_CASE("save_boxes_of_all_ranks_tile_every_tensor_and_slot_exactly_once") {
  for (const bool llama : {false, true}) {
    for (const bool tied : {false, true}) {
      const ParamTable table = layout_table(llama, tied);
      for (std::int64_t data = 1; data <= 4; ++data) {
        for (const std::int64_t tensor : {1, 2, 4}) {
          for (std::int64_t pipeline = 1; pipeline <= 3; ++pipeline) check_tiling(table, {data, tensor, pipeline, 1});
        }
      }
    }
  }
  // Three tensor ranks divide six heads, and a vocabulary of 11 in 4 + 4 + 3.
  ModelConfig model = layout_model(false, true);
  model.heads = model.kv_heads = 6;
  const ParamTable table = make_param_table(make_model_spec(model, model.vocab.value()), InitConfig{});
  for (std::int64_t data = 1; data <= 4; ++data) {
    for (std::int64_t pipeline = 1; pipeline <= 3; ++pipeline) check_tiling(table, {data, 3, pipeline, 1});
  }
}

TEST_CASE("save_plan_does_not_depend_on_the_zero_stage_and_a_single_rank_keeps_plain_names") {
  const ParamTable table = layout_table(true, true);
  for (const SavePiece& piece : make_save_plan(table, layout_of(table, {}, Rank(0)), adam_states(), DType::f32)) {
    CHECK(piece.file == (piece.state < 0 ? "model-00000.safetensors" : "optimizer-00000.safetensors"));
    CHECK_FALSE(contains(piece.key, "@"));
  }
  std::set<std::string> files;
  for (const SavePiece& piece :
       make_save_plan(table, layout_of(table, {2, 2, 2, 3}, Rank(5)), adam_states(), DType::f32, 2000))
    files.insert(piece.file);
  CHECK(files.contains("model-00005-000.safetensors"));
  CHECK(files.contains("model-00005-001.safetensors"));
  CHECK(files.contains("optimizer-00005-002.safetensors"));
}

TEST_CASE("checkpoint_saved_by_any_layout_loads_on_any_other_to_the_bit_fused_parameters_and_later_stages_too") {
  for (const bool llama : {false, true}) {
    const TempFolder folder;
    const ParamTable table = layout_table(llama, !llama);
    // Every fourth pair for one family, and the rest of them in turn for the other.
    std::size_t pair = llama ? 1 : 0;
    for (std::size_t from = 0; from < dozen().size(); ++from) {
      const auto path = save_layout(table, dozen()[from], folder.path(), from, static_cast<std::int64_t>(from));
      REQUIRE(verifies(path));
      for (const Layout& to : dozen()) {
        if (pair++ % 3 != 0) continue;
        std::vector<std::string> differences(static_cast<std::size_t>(to.mesh().world()));
        run_layout(table, to, [&](Rank rank, RankStore& store, KeyValueStore&) {
          store.fill(1000);
          Checkpoint(path, OpenCheck::none).load(store.store(), host_stream(), true);
          differences[static_cast<std::size_t>(rank.value())] = store.difference(from);
        });
        for (const std::string& difference : differences) {
          CAPTURE(dozen()[from].text());
          CAPTURE(to.text());
          CHECK(difference.empty());
        }
      }
    }
  }
}

TEST_CASE("checkpoint_a_rank_reads_only_the_files_that_have_its_part") {
  const TempFolder folder;
  const ParamTable table = layout_table(false, false);
  const Layout layout{2, 1, 1, 3};
  const auto path = save_layout(table, layout, folder.path(), 7);
  std::filesystem::remove(path / "model-00001-000.safetensors");
  flip_byte(path / "optimizer-00001-000.safetensors", 9000);
  std::vector<std::string> messages(2);
  std::vector<std::string> differences(2);
  run_layout(table, layout, [&](Rank rank, RankStore& store, KeyValueStore&) {
    const auto index = static_cast<std::size_t>(rank.value());
    messages[index] =
        message_of<InputError>([&] { Checkpoint(path, OpenCheck::none).load(store.store(), host_stream(), true); });
    differences[index] = store.difference(7);
  });
  CHECK(messages[0].empty());
  CHECK(differences[0].empty());
  CHECK(contains(messages[1], "model-00001-000.safetensors"));
  CHECK(contains(message_of<InputError>([&] { Checkpoint{path}; }), "model-00001-000.safetensors"));
}

TEST_CASE("trap_files_of_an_older_larger_world_are_not_read") {
  const TempFolder folder;
  const ParamTable table = layout_table(false, true);
  const auto older = save_layout(table, {2, 2, 2, 1}, folder / "old", 1);
  const auto path = save_layout(table, {2, 1, 1, 1}, folder / "new", 2);
  // As if the folder had been written over: ranks 2 to 7 of the larger world, and one that both worlds have.
  for (const std::string& name : names_in(older)) {
    if (!std::filesystem::exists(path / name)) std::filesystem::copy(older / name, path / name);
  }
  CHECK(names_in(path).size() > Checkpoint(path).manifest().files.size() + 6);
  RankStore single(table, {}, Rank(0), nullptr);
  Checkpoint(path).load(single.store(), host_stream(), true);
  CHECK(single.difference(2).empty());
  // One of them in the place of the newer file is refused by its save id or size, not read.
  const char* const shared = "model-00001-000.safetensors";
  std::filesystem::copy(older / shared, path / shared, std::filesystem::copy_options::overwrite_existing);
  CHECK(contains(message_of<InputError>([&] { Checkpoint{path}; }), shared));
  CHECK(contains(
      message_of<InputError>([&] { Checkpoint(path, OpenCheck::none).load(single.store(), host_stream(), true); }),
      shared));
}

TEST_CASE("trap_ranks_are_ordered_as_numbers_not_as_text") {
  // Twelve ranks: 10 and 11 sort before 2 as text.
  const TempFolder folder;
  const ParamTable table = layout_table(false, false);
  const auto path = save_layout(table, {12, 1, 1, 1}, folder.path(), 3);
  RankStore single(table, {}, Rank(0), nullptr);
  Checkpoint(path).load(single.store(), host_stream(), true);
  CHECK(single.difference(3).empty());
}
