#include "checkpoint/format/manifest.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint_fixture.h"

using namespace scaletrain;

namespace {

Manifest example() {
  Manifest manifest;
  manifest.save_id = "0123456789abcdef0123456789abcdef";
  manifest.parent_save_id = "p";
  manifest.generation = 2;
  manifest.step = 200;
  manifest.tokens = INT64_MAX;
  manifest.config = "run: {name: \"größe\"}\n# \"quoted\" \\ and \t\n";
  manifest.tokenizer_files = {"tokenizer.json"};
  manifest.history = "[]";
  manifest.fingerprint = "one rank";
  manifest.scalars = {{"a", "0.1"}, {"b", "18446744073709551615"}};
  const auto piece = [](const char* file, const char* key, std::vector<std::int64_t> first,
                        std::vector<std::int64_t> extent) {
    return TensorPiece{file, key, Box{std::move(first), std::move(extent)}};
  };
  manifest.tensors = {{"w", "trained", DType::f32, {4, 6}, {piece("m-0.safetensors", "w", {0, 0}, {4, 6})}},
                      {"cut",
                       "slot",
                       DType::bf16,
                       {4, 6},
                       {piece("m-0.safetensors", "c0", {0, 0}, {2, 6}), piece("m-1.safetensors", "c0", {2, 0}, {2, 2}),
                        piece("m-1.safetensors", "c1", {2, 2}, {2, 4})}}};
  manifest.files = {{"m-0.safetensors", 5ull << 20, {1, 2}}, {"m-1.safetensors", 7, {3}}, {"tokenizer.json", 0, {}}};
  return manifest;
}

std::string refusal(const Manifest& manifest) {
  return message_of<InputError>([&] { parse_manifest(manifest_text(manifest), "manifest.json"); });
}

}  // namespace

TEST_CASE("manifest_reads_back_as_written") {
  const Manifest manifest = example();
  const Manifest read = parse_manifest(manifest_text(manifest), "m");
  CHECK(manifest_text(read) == manifest_text(manifest));
  CHECK(read.config == manifest.config);
  CHECK(read.tokens == INT64_MAX);
  CHECK(read.scalars == manifest.scalars);
  REQUIRE(read.find("cut") != nullptr);
  CHECK(read.find("cut")->pieces[2].box == manifest.tensors[1].pieces[2].box);
  CHECK(read.find("none") == nullptr);
  CHECK(read.files[0].block_hashes == std::vector<std::uint64_t>{1, 2});
}

TEST_CASE("manifest_any_changed_byte_and_any_truncation_is_detected") {
  const std::string text = manifest_text(example());
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    CHECK_FALSE(message_of<InputError>([&] { parse_manifest(changed, "m"); }).empty());
    CHECK_FALSE(message_of<InputError>([&] { parse_manifest(text.substr(0, at), "m"); }).empty());
  }
  CHECK(contains(message_of<InputError>([&] { parse_manifest(text + "\n", "m"); }), "damaged"));
}

TEST_CASE("manifest_file_names_that_leave_the_folder_are_refused") {
  for (const char* name : {"../m", "/etc/passwd", "a/b", "", ".", "..", ".hidden", "manifest.json"}) {
    Manifest manifest = example();
    manifest.files[0].name = name;
    manifest.tensors[0].pieces[0].file = name;
    manifest.tensors[1].pieces[0].file = name;
    CHECK(contains(refusal(manifest), "not a usable file name"));
  }
}

TEST_CASE("manifest_pieces_must_tile_each_tensor_exactly_once") {
  const auto with_boxes = [](std::vector<Box> boxes) {
    Manifest manifest = example();
    auto& pieces = manifest.tensors[1].pieces;
    pieces.clear();
    for (Box& box : boxes) pieces.push_back({"m-1.safetensors", "k" + std::to_string(pieces.size()), std::move(box)});
    return refusal(manifest);
  };
  CHECK(with_boxes({{{0, 0}, {4, 3}}, {{0, 3}, {4, 3}}}).empty());
  CHECK(contains(with_boxes({{{0, 0}, {4, 3}}}), "hold 12 elements"));
  CHECK(contains(with_boxes({{{0, 0}, {4, 3}}, {{0, 3}, {4, 3}}, {{0, 0}, {1, 1}}}), "hold 25 elements"));
  CHECK(contains(with_boxes({{{0, 0}, {4, 3}}, {{0, 2}, {4, 3}}}), "overlap"));
  CHECK(contains(with_boxes({{{0, 0}, {2, 6}}, {{1, 0}, {2, 6}}}), "overlap"));
  CHECK(contains(with_boxes({{{0, 0}, {4, 7}}}), "outside the shape"));
  CHECK(contains(with_boxes({{{INT64_MAX, 0}, {2, 6}}}), "outside the shape"));
  CHECK(contains(with_boxes({{{0}, {24}}}), "a box of other than 2 dims"));
  CHECK(contains(with_boxes({}), "0 pieces"));
}

TEST_CASE("manifest_contradictions_are_refused_by_name") {
  const auto changed = [](auto change) {
    Manifest manifest = example();
    change(manifest);
    return refusal(manifest);
  };
  CHECK(contains(changed([](Manifest& m) { m.format_version = 3; }), "format version 3"));
  CHECK(contains(changed([](Manifest& m) { m.step = -1; }), "\"step\" is -1"));
  CHECK(contains(changed([](Manifest& m) { m.save_id.clear(); }), "save id is empty"));
  CHECK(contains(changed([](Manifest& m) { m.files[0].bytes = 1ull << 62; }), "block hashes"));
  CHECK(contains(changed([](Manifest& m) { m.files[0].bytes = UINT64_MAX; }), "block hashes"));
  CHECK(contains(changed([](Manifest& m) {
                   m.files[1].name = "m-0.safetensors";
                   m.files[1].bytes = 0;
                   m.files[1].block_hashes.clear();
                 }),
                 "twice"));
  CHECK(contains(changed([](Manifest& m) { m.tensors[1].name = "w"; }), "two tensors \"w\""));
  CHECK(contains(changed([](Manifest& m) { m.tensors[1].pieces[0].key = "w"; }), "a piece twice"));
  CHECK(contains(changed([](Manifest& m) { m.tensors[1].role = "other"; }), "unknown role \"other\""));
  CHECK(contains(changed([](Manifest& m) { m.tensors[0].pieces[0].file = "x"; }), "\"x\" is not in the list"));
  CHECK(contains(changed([](Manifest& m) { m.tensors[0].pieces[0].file = "tokenizer.json"; }), "not in the list"));
  CHECK(contains(changed([](Manifest& m) { m.tokenizer_files = {"absent"}; }), "\"absent\""));
}

TEST_CASE("manifest_text_with_a_valid_digest_but_other_content_is_refused") {
  // What someone with the digest's recipe could write: correct digest, hostile or foreign JSON.
  const auto sealed = [](const std::string& rest) { return "{\"digest\":\"" + to_hex(hash_text(rest)) + rest; };
  const auto refuses = [&](const std::string& rest) {
    return !message_of<InputError>([&] { parse_manifest(sealed(rest), "m"); }).empty();
  };
  CHECK(refuses("\"}"));
  CHECK(refuses(""));
  CHECK(refuses("\",\"format_version\":1}"));
  CHECK(refuses("\",\"a\":" + std::string(1'000'000, '[')));
  std::string text = manifest_text(example());
  const std::string rest = text.substr(27);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string out = rest;
    const auto at = out.find(from);
    REQUIRE(at != std::string::npos);
    return out.replace(at, from.size(), to);
  };
  CHECK_FALSE(refuses(rest));
  CHECK(refuses(with("\"step\": 200", "\"step\": \"200\"")));
  CHECK(refuses(with("\"step\": 200", "\"step\": 200, \"step\": 300")));
  CHECK(refuses(with("\"step\": 200", "\"step\": 9223372036854775808")));
  CHECK(refuses(with("\"step\": 200", "\"steps\": 200")));
  CHECK(refuses(with("\"step\": 200", "\"step\": 200, \"extra\": 1")));
  CHECK(refuses(with("\"F32\"", "\"F33\"")));
}

TEST_CASE("manifest_of_the_largest_models_on_many_ranks_has_few_pieces") {
  // Llama 3.1 405B on 1,024 ranks. A tensor is cut by 8 tensor ranks and, as part of its unit, by 8 data ranks; each of
  // these cuts makes a range that is not whole rows three boxes at most.
  ModelConfig model = tiny_llama_config(false);
  model.layers = 126;
  model.hidden = 16384;
  model.heads = 128;
  model.kv_heads = 8;
  model.ffn_hidden = 53248;
  model.context = 8192;
  model.vocab = 128256;
  const ParamTable table = make_param_table(make_model_spec(model, 128256), InitConfig{});
  const Mesh mesh(8, 8, 16);
  const auto units = static_cast<std::int64_t>(table.units().size());
  const std::vector<std::string> states = {"exp_avg", "exp_avg_sq"};
  std::map<std::pair<int, int>, std::int64_t> pieces;
  std::size_t all = 0;
  std::set<std::string> files;
  for (std::int64_t rank = 0; rank < mesh.world(); ++rank) {
    const MeshPosition position = mesh.position_of(Rank(rank));
    std::vector<int> held;
    for (std::int64_t unit = 0; unit < units; ++unit)
      if (unit * 16 / units == position.pipeline) held.push_back(static_cast<int>(unit));
    for (const SavePiece& piece : make_save_plan(table, ShardLayout(table, held, mesh, position), states, DType::f32)) {
      ++pieces[{piece.state, piece.parameter}];
      ++all;
      files.insert(piece.file);
    }
  }
  CHECK(pieces.size() == 3 * table.parameters().size());
  std::int64_t most = 0;
  for (const auto& [tensor, count] : pieces) most = std::max(most, count);
  CHECK(most <= 8 * 8 * 3);
  // Some 130 bytes each, and 16 for each 4 MiB block of 4.9 TB (19 MB): below 40 MB in all.
  CHECK(all < 100'000);
  // 1.6 GB of masters and 3.2 GB of states for each rank, in files of at most 4 GiB.
  CHECK(files.size() == 2 * 1024);
}
