// Manifests whose pieces lie beside them.
#include "checkpoint/format/piece_list.h"

#include "checkpoint_fixture.h"

using namespace scaletrain;

namespace {

Manifest two_halves() {
  Manifest manifest;
  manifest.save_id = "one";
  manifest.history = "[]";
  manifest.tokenizer_files = {"vocab.json"};
  manifest.files = {{"m-0.safetensors", 7, {3}}, {"m-1.safetensors", 7, {3}}, {"vocab.json", 0, {}}};
  for (const char* name : {"w", "v"})
    manifest.tensors.push_back({name,
                                "trained",
                                DType::f32,
                                {4, 300},
                                {{"m-0.safetensors", std::string(name) + "@0", {{0, 0}, {2, 300}}},
                                 {"m-1.safetensors", std::string(name) + "@1", {{2, 0}, {2, 300}}}}});
  return manifest;
}

std::string list_of(const std::string& all, const ManifestTensor& tensor) {
  return all.substr(tensor.listed->first, tensor.listed->bytes);
}

// What is said of other bytes for the first tensor's list, which the manifest confirms.
std::string list_refusal(const std::string& bytes, std::uint64_t count) {
  Manifest manifest = two_halves();
  list_pieces(manifest);
  manifest.tensors[0].listed = ListSection{.first = 0, .bytes = bytes.size(), .count = count, .hash = hash_text(bytes)};
  return message_of<InputError>([&] { decode_pieces(bytes, manifest.tensors[0], manifest, "here"); });
}

std::string files_of(const std::string& all, const Manifest& manifest) {
  return all.substr(manifest.listed_files->first, manifest.listed_files->bytes);
}

// What is said of other bytes for the list of files, which the manifest confirms.
std::string files_refusal(const std::string& bytes, std::uint64_t count) {
  Manifest manifest = two_halves();
  list_pieces(manifest);
  manifest.listed_files = ListSection{.first = 0, .bytes = bytes.size(), .count = count, .hash = hash_text(bytes)};
  return message_of<InputError>([&] { decode_files(bytes, manifest, "here"); });
}

std::string file_entry(const std::string& name, const std::string& size, const std::string& hashes = "") {
  return static_cast<char>(name.size()) + name + size + hashes;
}

std::string list_bytes(std::initializer_list<int> values) {
  std::string out;
  for (const int value : values) out.push_back(static_cast<char>(value));
  return out;
}

}  // namespace

TEST_CASE("pieces_read_back_from_the_list_beside_the_manifest") {
  const Manifest before = two_halves();
  Manifest listed = before;
  const std::string all = list_pieces(listed);
  Manifest read = parse_manifest(manifest_text(listed), "m");
  CHECK(manifest_text(read) == manifest_text(listed));
  CHECK(read.files.empty());
  decode_files(files_of(all, read), read, "m");
  REQUIRE(read.files.size() == before.files.size());
  for (std::size_t i = 0; i < read.files.size(); ++i) {
    CHECK(read.files[i].name == before.files[i].name);
    CHECK(read.files[i].bytes == before.files[i].bytes);
    CHECK(read.files[i].block_hashes == before.files[i].block_hashes);
  }
  CHECK(read.format_version == listed_format_version);
  CHECK(read.list_bytes() == all.size());
  for (std::size_t i = 0; i < read.tensors.size(); ++i) {
    CHECK(read.tensors[i].pieces.empty());
    CHECK(read.tensors[i].num_pieces() == 2);
    const auto pieces = decode_pieces(list_of(all, read.tensors[i]), read.tensors[i], read, "m");
    REQUIRE(pieces.size() == 2);
    for (std::size_t k = 0; k < 2; ++k) {
      CHECK(pieces[k].file == before.tensors[i].pieces[k].file);
      CHECK(pieces[k].key == before.tensors[i].pieces[k].key);
      CHECK(pieces[k].box == before.tensors[i].pieces[k].box);
    }
  }
}

TEST_CASE("any_changed_byte_of_a_list_and_any_truncation_is_detected") {
  Manifest manifest = two_halves();
  const std::string all = list_pieces(manifest);
  const ManifestTensor& tensor = manifest.tensors[1];
  const std::string list = list_of(all, tensor);
  for (std::size_t at = 0; at < list.size(); ++at) {
    std::string changed = list;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    CHECK_FALSE(message_of<InputError>([&] { decode_pieces(changed, tensor, manifest, "m"); }).empty());
    CHECK_FALSE(message_of<InputError>([&] { decode_pieces(list.substr(0, at), tensor, manifest, "m"); }).empty());
  }
}

TEST_CASE("a_list_that_lies_is_refused_though_its_hash_is_right") {
  // File 0, no suffix, boxes [0:2, 0:300] (300 is 0xac 0x02) and [2:4, 0:300] of file 1.
  const std::string good = list_bytes({0, 0, 0, 2, 0, 0xac, 2}) + list_bytes({1, 0, 2, 2, 0, 0xac, 2});
  CHECK(list_refusal(good, 2).empty());
  CHECK(contains(list_refusal(good, 1), "bytes follow its last piece"));
  CHECK(contains(list_refusal(good, 3), "14 bytes cannot be 3 pieces"));
  CHECK(contains(list_refusal(good, UINT64_MAX), "cannot be"));
  CHECK(contains(list_refusal(good, 0), "cannot be"));
  CHECK(contains(list_refusal(list_bytes({0, 0, 0, 2, 0, 0xac, 2, 9, 0, 2, 2, 0, 0xac, 2}), 2), "file 9 of 3"));
  CHECK(
      contains(list_refusal(list_bytes({0, 0, 0, 2, 0, 0xac, 2, 2, 0, 2, 2, 0, 0xac, 2}), 2), "file of the tokenizer"));
  CHECK(contains(list_refusal(list_bytes({0, 0, 0, 2, 0, 0xac, 2, 0, 0, 2, 2, 0, 0xac, 2}), 2), "a piece twice"));
  CHECK(contains(list_refusal(list_bytes({0, 0, 0, 2, 0, 0xac, 2, 1, 0, 1, 2, 0, 0xac, 2}), 2), "overlap"));
  CHECK(contains(list_refusal(list_bytes({0, 0, 0, 2, 0, 0xac, 2, 1, 0, 3, 2, 0, 0xac, 2}), 2), "outside the shape"));
  CHECK(contains(list_refusal(list_bytes({0, 0, 0, 2, 0, 0xac, 2, 1, 0, 2, 1, 0, 0xac, 2}), 2), "elements"));
  CHECK(contains(list_refusal(list_bytes({0, 120, 0, 2, 0, 0xac, 2}), 1), "key is too long"));
  CHECK(contains(list_refusal(std::string(20, '\xff'), 1), "64 bits"));
  CHECK(contains(list_refusal(list_bytes({0, 0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1, 0, 0, 0}), 1),
                 "63 bits"));
  CHECK(contains(list_refusal(list_bytes({0, 0, 0, 2, 0, 0xac}), 1), "ends too early"));
}

TEST_CASE("the_files_of_a_large_checkpoint_lie_beside_its_manifest_which_stays_small") {
  Manifest manifest = two_halves();
  for (std::uint64_t i = 0; i < 20'000; ++i)
    manifest.files.push_back({"f-" + std::to_string(i), 5 * checksum_block_bytes, {i, i, i, i, ~i}});
  const std::vector<ManifestFile> before = manifest.files;
  const std::string all = list_pieces(manifest);
  const std::string text = manifest_text(manifest);
  CHECK(text.size() < 2000);
  Manifest read = parse_manifest(text, "m");
  decode_files(files_of(all, read), read, "m");
  REQUIRE(read.files.size() == before.size());
  CHECK(read.files.back().block_hashes == before.back().block_hashes);
  CHECK(read.files.back().name == "f-19999");
}

TEST_CASE("any_changed_byte_of_the_list_of_files_and_any_truncation_is_detected") {
  Manifest manifest = two_halves();
  const std::string list = files_of(list_pieces(manifest), manifest);
  CHECK(message_of<InputError>([&] { decode_files(list, manifest, "m"); }).empty());
  for (std::size_t at = 0; at < list.size(); ++at) {
    std::string changed = list;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    CHECK_FALSE(message_of<InputError>([&] { decode_files(changed, manifest, "m"); }).empty());
    CHECK_FALSE(message_of<InputError>([&] { decode_files(list.substr(0, at), manifest, "m"); }).empty());
  }
}

TEST_CASE("a_list_of_files_that_lies_is_refused_though_its_hash_is_right") {
  const std::string nothing(1, '\0');
  const std::string tokenizer = file_entry("vocab.json", nothing);
  const std::string model = file_entry("m", "\x07", "01234567");
  CHECK(files_refusal(tokenizer + model, 2).empty());
  CHECK(contains(files_refusal(tokenizer + model, 1), "bytes follow its last file"));
  CHECK(contains(files_refusal(tokenizer + model, 3), "ends too early"));
  CHECK(contains(files_refusal(tokenizer, UINT64_MAX), "12 bytes cannot be"));
  CHECK(contains(files_refusal(tokenizer, 0), "cannot be 0 files"));
  CHECK(contains(files_refusal(model + model, 2), "a file is listed twice"));
  CHECK(contains(files_refusal(model, 1), "the tokenizer file \"vocab.json\" is missing"));
  CHECK(contains(files_refusal(tokenizer + file_entry("../m", nothing), 2), "not a usable file name"));
  CHECK(contains(files_refusal(tokenizer + file_entry("pieces.list", nothing), 2), "not a usable file name"));
  CHECK(contains(files_refusal(tokenizer + file_entry("m", "\x07", "0123456"), 2), "ends too early"));
  CHECK(contains(files_refusal(tokenizer + file_entry("m", std::string(9, '\xff') + "\x01"), 2), "ends too early"));
  CHECK(contains(files_refusal(tokenizer + std::string(1, '\x7f'), 2), "too long"));
}

TEST_CASE("where_lists_lie_is_checked_before_anything_is_read_from_there") {
  const auto changed = [](auto change) {
    Manifest manifest = two_halves();
    list_pieces(manifest);
    change(manifest);
    return message_of<InputError>([&] { parse_manifest(manifest_text(manifest), "m"); });
  };
  CHECK(changed([](Manifest&) {}).empty());
  CHECK(contains(changed([](Manifest& m) { m.tensors[1].listed->first -= 1; }), "begins at"));
  CHECK(contains(changed([](Manifest& m) { m.tensors[0].listed->bytes = UINT64_MAX; }), "lists of up to 512 MiB"));
  CHECK(contains(changed([](Manifest& m) { m.tensors[0].listed->bytes = 0; }), "is empty"));
  CHECK(contains(changed([](Manifest& m) { m.listed_files->first = 1; }), "files: its list begins at 1, expected 0"));
  // However large the file claims to be: a sparse one costs its maker nothing.
  CHECK(contains(changed([](Manifest& m) { m.listed_files->bytes = list_limit_bytes + 1; }),
                 "this program reads lists of up to 512 MiB"));
  CHECK_FALSE(changed([](Manifest& m) { m.listed_files.reset(); }).empty());
  CHECK(contains(changed([](Manifest& m) { m.tokenizer_files = {"../v"}; }), "not a usable file name"));
  CHECK(contains(changed([](Manifest& m) { m.tokenizer_files = {"v", "v"}; }), "named twice"));
  CHECK_FALSE(changed([](Manifest& m) { m.tensors[1].listed.reset(); }).empty());
  CHECK_FALSE(changed([](Manifest& m) { m.format_version = checkpoint_format_version; }).empty());
  CHECK(contains(changed([](Manifest& m) { m.format_version = 3; }), "format version 3"));
}

TEST_CASE("a_checkpoint_with_a_list_of_pieces_loads_and_its_list_is_part_of_it") {
  const TempFolder folder;
  StoreFixture saved(tiny_gpt2_config());
  saved.fill(1);
  SaveRequest request = save_request(folder.path(), 200);
  request.max_manifest_pieces = 3;
  const SaveResult result = save_checkpoint(saved.store, request);
  const std::filesystem::path list = result.path / piece_list_name;
  REQUIRE(std::filesystem::is_regular_file(list));
  StoreFixture loaded(tiny_gpt2_config());
  const Checkpoint checkpoint(result.path);
  checkpoint.verify();
  checkpoint.load(loaded.store, host_stream(), true);
  CHECK(loaded.content() == saved.content());
  // Ranks of a run of many open it so, and read the lists of their tensors alone.
  StoreFixture of_rank(tiny_gpt2_config());
  Checkpoint(result.path, OpenCheck::none).load(of_rank.store, host_stream(), true);
  CHECK(of_rank.content() == saved.content());
  flip_byte(list, std::filesystem::file_size(list) - 1);
  CHECK(contains(message_of<InputError>([&] { Checkpoint(result.path).verify(); }), "pieces.list"));
  std::filesystem::resize_file(list, std::filesystem::file_size(list) - 1);
  CHECK(contains(message_of<InputError>([&] { Checkpoint(result.path, OpenCheck::none); }), "the manifest says"));
  std::filesystem::remove(list);
  CHECK(contains(message_of<InputError>([&] { Checkpoint(result.path, OpenCheck::none); }), "is missing"));
}
