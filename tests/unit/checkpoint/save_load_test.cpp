#include <bit>

#include "base/file.h"
#include "base/numbers/philox.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint_fixture.h"
#include "support/philox_below.h"
#include "support/ranks/host_stream.h"

using namespace scaletrain;

namespace {

ParamTable one_matrix(std::int64_t rows, std::int64_t columns) {
  ParamTable table;
  table.begin_unit("u");
  Parameter parameter;
  parameter.name = "u.w";
  parameter.shape = {rows, columns};
  table.add(std::move(parameter));
  return table;
}

// A checkpoint of one [6, 8] tensor, element (r, c) = 100 r + c, in four uneven pieces over two files.
std::filesystem::path write_pieces(const std::filesystem::path& folder, DType dtype, const std::string& second_id) {
  std::filesystem::create_directories(folder);
  Manifest manifest;
  manifest.save_id = "one";
  manifest.history = "[]";
  ManifestTensor tensor{.name = "w", .role = "trained", .dtype = dtype, .shape = {6, 8}, .pieces = {}};
  const std::vector<std::vector<Box>> files = {{{{0, 0}, {4, 3}}, {{4, 0}, {2, 8}}},
                                               {{{0, 3}, {1, 5}}, {{1, 3}, {3, 5}}}};
  for (std::size_t number = 0; number < files.size(); ++number) {
    const std::string file = "part-" + std::to_string(number) + ".safetensors";
    std::vector<SafetensorsTensor> tensors;
    for (const Box& box : files[number]) {
      tensors.push_back({.name = "w" + std::to_string(tensors.size()), .dtype = dtype, .shape = shape_of_box(box)});
      tensor.pieces.push_back({.file = file, .key = tensors.back().name, .box = box});
    }
    SafetensorsWriter writer(folder / file, tensors, {{"save_id", number == 0 ? "one" : second_id}});
    for (const Box& box : files[number]) {
      for (std::int64_t r = 0; r < box.extent[0]; ++r) {
        for (std::int64_t c = 0; c < box.extent[1]; ++c) {
          const auto value = static_cast<float>(100 * (box.first[0] + r) + box.first[1] + c);
          std::array<std::byte, 8> bytes{};
          convert_floats(DType::f32, &value, dtype, bytes.data(), 1);
          writer.write(std::span(bytes).first(size_of(dtype)));
        }
      }
    }
    WrittenFile written = writer.finish();
    manifest.files.push_back({.name = file, .bytes = written.bytes, .block_hashes = std::move(written.block_hashes)});
  }
  manifest.tensors.push_back(std::move(tensor));
  FileWriter writer(folder / "manifest.json");
  writer.write(manifest_text(manifest));
  writer.finish();
  return folder;
}

}  // namespace

TEST_CASE("checkpoint_save_and_load_gives_back_every_bit_of_masters_and_optimizer_states") {
  for (const ModelConfig& model : {tiny_gpt2_config(), tiny_llama_config(true), tiny_llama_config(false)}) {
    const TempFolder folder;
    StoreFixture saved(model);
    saved.fill(1);
    // Bits that a conversion or a comparison would lose.
    auto* const special = saved.store.master(saved.table.parameters()[0].name).as<float>();
    special[0] = -0.0f;
    special[1] = std::bit_cast<float>(0x7fc12345u);
    special[2] = std::bit_cast<float>(1u);
    const SaveResult result = save_checkpoint(saved.store, save_request(folder / "checkpoints", 200));
    CHECK(result.path == folder / "checkpoints" / "step-00000200");
    CHECK(names_in(folder / "checkpoints") == std::vector<std::string>{"step-00000200"});
    const Checkpoint checkpoint(result.path);
    checkpoint.verify();
    CHECK(checkpoint.manifest().save_id == result.save_id);
    CHECK(checkpoint.manifest().step == 200);
    CHECK(checkpoint.manifest().scalars.at("loss") == "0.1");
    CHECK(checkpoint.manifest().find("embedding.token.weight")->role == "trained");
    CHECK(checkpoint.manifest().find("embedding.token.weight/exp_avg")->role == "slot");
    std::uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(result.path)) bytes += entry.file_size();
    CHECK(result.bytes == bytes);

    StoreFixture loaded(model);
    loaded.fill(2);
    WorkCount work{0};
    checkpoint.load(loaded.store, host_stream(), true, &work);
    CHECK(loaded.content() == saved.content());
    // Whoever watches a load sees it get further: with each tensor at least.
    CHECK(work >= checkpoint.manifest().tensors.size());
  }
}

TEST_CASE("checkpoint_load_without_optimizer_state_leaves_it_alone_and_an_inference_store_needs_none") {
  const TempFolder folder;
  StoreFixture saved(tiny_gpt2_config());
  saved.fill(1);
  const Checkpoint checkpoint(save_checkpoint(saved.store, save_request(folder.path(), 1)).path);
  StoreFixture other(tiny_gpt2_config());
  other.fill(2);
  const std::string name = "blocks.1.ffn.up.weight";
  const float state_before = *other.store.state(name, 1).as<float>();
  checkpoint.load(other.store, host_stream(), false);
  CHECK(*other.store.state(name, 1).as<float>() == state_before);
  CHECK(*other.store.master(name).as<float>() == *saved.store.master(name).as<float>());

  const ModelConfig model = tiny_gpt2_config();
  StoreFixture inference(make_param_table(make_model_spec(model, 11), InitConfig{}), {});
  checkpoint.load(inference.store, host_stream(), true);
  CHECK(*inference.store.master(name).as<float>() == *saved.store.master(name).as<float>());
  // The other way round, states that the checkpoint lacks are named.
  const Checkpoint without(save_checkpoint(inference.store, save_request(folder.path(), 2)).path);
  CHECK(contains(message_of<InputError>([&] { without.load(other.store, host_stream(), true); }),
                 "embedding.token.weight/exp_avg"));
}

TEST_CASE("checkpoint_of_another_model_is_refused_by_tensor") {
  const TempFolder folder;
  StoreFixture saved(tiny_gpt2_config());
  const Checkpoint checkpoint(save_checkpoint(saved.store, save_request(folder.path(), 1)).path);
  ModelConfig wider = tiny_gpt2_config();
  wider.ffn_hidden = 24;
  StoreFixture other(wider);
  CHECK(contains(message_of<InputError>([&] { checkpoint.load(other.store, host_stream(), false); }),
                 "\"blocks.0.ffn.up.weight\" has the shape [20, 12], this model needs [24, 12]"));
  ModelConfig deeper = tiny_gpt2_config();
  deeper.layers = 3;
  StoreFixture third(deeper);
  CHECK(contains(message_of<InputError>([&] { checkpoint.load(third.store, host_stream(), false); }), "blocks.2"));
}

TEST_CASE("checkpoint_float64_store_reads_a_float32_checkpoint_exactly") {
  const TempFolder folder;
  StoreFixture saved(tiny_gpt2_config());
  saved.fill(1);
  const Checkpoint checkpoint(save_checkpoint(saved.store, save_request(folder.path(), 1)).path);
  const ModelConfig model = tiny_gpt2_config();
  StoreFixture wide(make_param_table(make_model_spec(model, 11), InitConfig{}), {}, DType::f64);
  checkpoint.load(wide.store, host_stream(), false);
  for (const Parameter& parameter : wide.table.parameters()) {
    const View expected = saved.store.master(parameter.name);
    const View found = wide.store.master(parameter.name);
    for (std::int64_t i = 0; i < expected.num_elements(); ++i) {
      REQUIRE(found.as<double>()[i] == static_cast<double>(expected.as<float>()[i]));
    }
  }
}

TEST_CASE("checkpoint_files_end_before_the_bound_and_load_the_same") {
  const TempFolder folder;
  StoreFixture saved(tiny_gpt2_config());
  saved.fill(1);
  SaveRequest request = save_request(folder.path(), 1);
  request.max_file_bytes = 4000;
  const Checkpoint checkpoint(save_checkpoint(saved.store, request).path);
  CHECK(checkpoint.manifest().files.size() > 8);
  CHECK(std::filesystem::exists(checkpoint.path() / "model-00000.safetensors"));
  CHECK(std::filesystem::exists(checkpoint.path() / "optimizer-00001.safetensors"));
  for (const ManifestFile& file : checkpoint.manifest().files) CHECK(file.bytes < 4000 + 2000);  // and its header
  StoreFixture loaded(tiny_gpt2_config());
  checkpoint.load(loaded.store, host_stream(), true);
  CHECK(loaded.content() == saved.content());
}

TEST_CASE("checkpoint_any_box_is_read_from_any_pieces_and_converted") {
  const TempFolder folder;
  for (const DType stored : {DType::f32, DType::f64, DType::bf16}) {
    const Checkpoint checkpoint(write_pieces(folder / std::string(to_text(stored)), stored, "one"));
    const PhiloxKey key = philox_key(1, "boxes");
    for (std::uint64_t trial = 0; trial < 200; ++trial) {
      Box box{{0, 0}, {0, 0}};
      for (std::size_t dim = 0; dim < 2; ++dim) {
        const std::int64_t whole = dim == 0 ? 6 : 8;
        box.first[dim] =
            static_cast<std::int64_t>(philox_below(key, 4 * trial + dim, static_cast<std::uint64_t>(whole)));
        box.extent[dim] = static_cast<std::int64_t>(
            philox_below(key, 4 * trial + 2 + dim, static_cast<std::uint64_t>(whole - box.first[dim] + 1)));
      }
      std::vector<float> out(48, -1.0f);
      checkpoint.read("w", box, View(out.data(), DType::f32, shape_of_box(box)));
      std::size_t at = 0;
      for (std::int64_t r = 0; r < box.extent[0]; ++r) {
        for (std::int64_t c = 0; c < box.extent[1]; ++c) {
          float expected = static_cast<float>(100 * (box.first[0] + r) + box.first[1] + c);
          if (stored == DType::bf16) expected = float_from_bf16(bf16_from_float(expected));
          REQUIRE(out[at++] == expected);
        }
      }
      REQUIRE((at == out.size() || out[at] == -1.0f));
    }
  }
}

TEST_CASE("checkpoint_files_of_two_saves_mixed_are_refused_by_save_id") {
  const TempFolder folder;
  const auto path = write_pieces(folder / "mixed", DType::f32, "two");
  const std::string message = message_of<InputError>([&] { Checkpoint{path}; });
  CHECK(contains(message, "part-1.safetensors"));
  CHECK(contains(message, "two saves are mixed"));
}

TEST_CASE("checkpoint_load_reads_and_verifies_only_the_blocks_it_needs") {
  const TempFolder folder;
  constexpr std::int64_t columns = 1024;
  constexpr std::int64_t rows = 3000;  // 12 MB: three blocks of 4 MiB
  StoreFixture saved(one_matrix(rows, columns), {});
  saved.fill(1);
  const Checkpoint checkpoint(save_checkpoint(saved.store, save_request(folder.path(), 1)).path);
  checkpoint.verify();
  flip_byte(checkpoint.path() / "model-00000.safetensors", 5ull << 20);
  CHECK(contains(message_of<InputError>([&] { checkpoint.verify(); }), "at offset 4194304"));
  const auto read_rows = [&](std::int64_t first, std::int64_t count) {
    std::vector<float> out(static_cast<std::size_t>(count * columns));
    Checkpoint(checkpoint.path())
        .read("u.w", {{first, 0}, {count, columns}}, View(out.data(), DType::f32, {count, columns}));
    return std::memcmp(out.data(), saved.store.master("u.w").as<float>() + first * columns, out.size() * 4) == 0;
  };
  CHECK(read_rows(0, 1000));
  CHECK(read_rows(2048, 952));
  CHECK(contains(message_of<InputError>([&] { read_rows(1000, 100); }), "at offset 4194304"));
}

TEST_CASE("checkpoint_tokenizer_files_are_stored_as_they_were_read_and_covered_by_checksums") {
  const TempFolder folder;
  StoreFixture saved(tiny_gpt2_config());
  SaveRequest request = save_request(folder / "checkpoints", 1);
  request.tokenizer_files = {read_tokenizer_file(folder.write("elsewhere/tokenizer.json", "{\"a\": 1}")),
                             read_tokenizer_file(folder.write("merges.txt", ""))};
  // Neither changes what is stored.
  folder.write("elsewhere/tokenizer.json", "{}");
  std::filesystem::remove(folder / "merges.txt");
  const auto path = save_checkpoint(saved.store, request).path;
  CHECK(TempFolder::read(path / "tokenizer.json") == "{\"a\": 1}");
  CHECK(Checkpoint(path).manifest().tokenizer_files == std::vector<std::string>{"tokenizer.json", "merges.txt"});
  flip_byte(path / "tokenizer.json", 3);
  CHECK(contains(message_of<InputError>([&] { Checkpoint(path).verify(); }), "tokenizer.json"));

  request.tokenizer_files = {read_tokenizer_file(folder.write("manifest.json", "{}"))};
  CHECK(contains(message_of<InputError>([&] { save_checkpoint(saved.store, request); }), "manifest.json"));
  CHECK(contains(message_of<InputError>([&] { read_tokenizer_file(folder / "absent.json"); }), "absent.json"));
  CHECK(names_in(folder / "checkpoints") == std::vector<std::string>{"step-00000001"});
}

TEST_CASE("checkpoint_folder_that_was_moved_or_renamed_loads") {
  const TempFolder folder;
  StoreFixture saved(tiny_gpt2_config());
  saved.fill(1);
  const auto path = save_checkpoint(saved.store, save_request(folder / "checkpoints", 1)).path;
  std::filesystem::copy(path, folder / "a copy");
  std::filesystem::rename(path, folder / "other-name");
  for (const char* name : {"a copy", "other-name"}) {
    StoreFixture loaded(tiny_gpt2_config());
    Checkpoint(folder / name).load(loaded.store, host_stream(), true);
    CHECK(loaded.content() == saved.content());
  }
}
