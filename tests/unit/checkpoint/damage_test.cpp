// What may happen to a checkpoint's files between a save and a load.
#include "base/file.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint_fixture.h"
#include "support/sanitizers.h"

using namespace scaletrain;

namespace {

std::filesystem::path save(const TempFolder& folder, std::int64_t step, const ModelConfig& model = tiny_gpt2_config()) {
  StoreFixture saved(model);
  saved.fill(static_cast<std::uint64_t>(step));
  return save_checkpoint(saved.store, save_request(folder.path(), step)).path;
}

}  // namespace

TEST_CASE("damage_any_flipped_byte_of_any_file_is_detected") {
  const TempFolder folder;
  // Each byte is looked for in all of them: what this takes grows with the square of the size.
  ModelConfig model = tiny_gpt2_config();
  model.layers = 1;
  const auto path = save(folder, 1, model);
  const auto manifest = path / "manifest.json";
  // Under the sanitizers samples of them.
  constexpr std::uint64_t stride = is_sanitized ? 5 : 1;
  for (std::uint64_t at = 0; at < std::filesystem::file_size(manifest); at += stride) {
    flip_byte(manifest, at);
    REQUIRE_FALSE(message_of<InputError>([&] { read_manifest(path); }).empty());
    flip_byte(manifest, at);
  }
  for (const char* name : {"model-00000.safetensors", "optimizer-00000.safetensors"}) {
    const auto file = path / name;
    const FileReader reader(file);
    const auto header = read_safetensors_header(
        [&](std::uint64_t offset, std::span<std::byte> out) { reader.read_at(offset, out); }, reader.size(), name);
    // Every byte of the model file's header, samples of the rest.
    const std::uint64_t header_stride = std::string(name).starts_with("model") ? stride : 13 * stride;
    for (std::uint64_t at = 0; at < reader.size(); at += at < header.data_offset ? header_stride : 397 * stride) {
      flip_byte(file, at);
      const std::string message = message_of<InputError>([&] { Checkpoint(path).verify(); });
      REQUIRE(contains(message, name));
      flip_byte(file, at);
    }
  }
  CHECK(verifies(path));
}

TEST_CASE("damage_truncated_and_extended_files_are_detected_when_opened") {
  const TempFolder folder;
  const auto path = save(folder, 1);
  for (const char* name : {"model-00000.safetensors", "optimizer-00000.safetensors", "manifest.json"}) {
    const std::string whole = TempFolder::read(path / name);
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, whole.size() / 2, whole.size() - 1, whole.size() + 1}) {
      std::filesystem::resize_file(path / name, size);
      CHECK(contains(message_of<InputError>([&] { Checkpoint{path}; }), name));
    }
    std::ofstream(path / name, std::ios::binary) << whole;
    CHECK(verifies(path));
  }
}

TEST_CASE("damage_missing_files_are_named_and_files_of_a_larger_world_beside_are_not_read") {
  const TempFolder folder;
  const auto path = save(folder, 1);
  std::filesystem::copy_file(path / "model-00000.safetensors", path / "model-00001.safetensors");
  folder.write("step-00000001/optimizer-00009.safetensors", "garbage");
  CHECK(verifies(path));
  std::filesystem::remove(path / "optimizer-00000.safetensors");
  CHECK(contains(message_of<InputError>([&] { Checkpoint{path}; }), "\"optimizer-00000.safetensors\" is missing"));
  std::filesystem::remove(path / "manifest.json");
  CHECK(contains(message_of<InputError>([&] { Checkpoint{path}; }), "manifest.json"));
  CHECK(contains(message_of<InputError>([&] { Checkpoint{folder / "absent"}; }), "absent"));
}

TEST_CASE("damage_a_file_of_another_save_with_the_same_size_is_refused") {
  const TempFolder folder;
  const auto one = save(folder, 1);
  const auto two = save(folder, 2);
  const auto file = one / "optimizer-00000.safetensors";
  REQUIRE(std::filesystem::file_size(file) == std::filesystem::file_size(two / file.filename()));
  std::filesystem::copy_file(two / file.filename(), file, std::filesystem::copy_options::overwrite_existing);
  CHECK_FALSE(verifies(one));
  CHECK(verifies(two));
}

TEST_CASE("damage_links_that_leave_the_folder_are_refused_even_to_the_right_bytes") {
  const TempFolder folder;
  const auto path = save(folder, 1);
  for (const char* name : {"model-00000.safetensors", "manifest.json"}) {
    std::filesystem::rename(path / name, folder / name);
    std::filesystem::create_symlink(folder / name, path / name);
    CHECK(contains(message_of<InputError>([&] { Checkpoint{path}; }), "a link that leaves the folder"));
    std::filesystem::remove(path / name);
    std::filesystem::rename(folder / name, path / ("real-" + std::string(name)));
    std::filesystem::create_symlink("real-" + std::string(name), path / name);
    CHECK(verifies(path));
  }
  std::filesystem::remove(path / "model-00000.safetensors");
  std::filesystem::create_symlink("nowhere", path / "model-00000.safetensors");
  CHECK_FALSE(verifies(path));
}

TEST_CASE("damage_a_pipe_or_folder_in_place_of_a_file_is_refused_at_once") {
  const TempFolder folder;
  const auto path = save(folder, 1);
  std::filesystem::remove(path / "model-00000.safetensors");
  std::filesystem::create_directory(path / "model-00000.safetensors");
  CHECK(contains(message_of<InputError>([&] { Checkpoint{path}; }), "model-00000.safetensors"));
}
