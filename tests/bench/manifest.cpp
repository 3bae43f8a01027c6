// Measures the manifest of a checkpoint of Llama 3.1 405B on 65,536 ranks (data 1,024 x tensor 8 x pipeline 8), without
// starting a rank: making it from the save plans of all ranks, writing it, and what one rank reads of it to plan its
// load. A tool, not a test: it asserts nothing.
//
// Usage: bench_manifest [FOLDER]; a new folder in it (the system's temporary one by default) is removed at the end.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/box_copy.h"
#include "checkpoint/format/piece_list.h"
#include "checkpoint/state_name.h"
#include "config/keys/keys.h"
#include "plan/run_plan.h"
#include "plan/save_size.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr double mebibyte = 1024.0 * 1024.0;

PhasePlan large_phase() {
  Config config;
  config.model = *find_model_preset("llama-405b");
  config.train.steps = 10;
  config.train.global_batch = 4096;
  config.train.micro_batch = 1;
  config.parallel.data = 1024;
  config.parallel.tensor = 8;
  config.parallel.pipeline = 8;
  return make_run_plan(config, 128256, std::nullopt).phases.front();
}

double peak_mebibytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

// In a process of its own, so that its memory is measured alone.
void measured(const char* what, const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    const double before = peak_mebibytes();
    const MonotonicTime start = monotonic_now();
    work();
    fmt::print("{:<44} {:7.2f} s  {:8.0f} MiB\n", what, seconds_since(start), peak_mebibytes() - before);
    std::fflush(stdout);
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
}

// As rank 0 makes it, when all ranks have reported.
Manifest full_manifest(const PhasePlan& phase) {
  Manifest manifest;
  manifest.save_id = random_id();
  manifest.history = "[]";
  std::map<std::pair<int, int>, std::vector<TensorPiece>> pieces;
  for (std::int64_t rank = 0; rank < phase.mesh.world(); ++rank) {
    std::map<std::string, std::uint64_t> files;
    for (SavePiece& piece : phase.save_plan(Rank(rank))) {
      files[piece.file] += static_cast<std::uint64_t>(piece.range.count) * size_of(phase.masters());
      pieces[{piece.state, piece.parameter}].push_back(
          {std::move(piece.file), std::move(piece.key), std::move(piece.box)});
    }
    for (const auto& [name, bytes] : files) {
      ManifestFile& file = manifest.files.emplace_back();
      file.name = name;
      file.bytes = bytes;
      for (std::uint64_t block = 0; block * checksum_block_bytes < bytes; ++block)
        file.block_hashes.push_back(hash_text(name, block));
    }
  }
  for (auto& [place, list] : pieces) {
    const Parameter& parameter = phase.table.parameters()[static_cast<std::size_t>(place.second)];
    const std::string name =
        place.first < 0
            ? parameter.name
            : state_tensor_name(parameter.name, phase.optimizer_states[static_cast<std::size_t>(place.first)]);
    manifest.tensors.push_back(
        {name, place.first < 0 ? "trained" : "slot", phase.masters(), parameter.shape, std::move(list)});
  }
  return manifest;
}

void write(const fs::path& path, const std::string& text) {
  FileWriter writer(path);
  writer.write(text);
  writer.finish();
}

void save(const PhasePlan& phase, const fs::path& folder) {
  MonotonicTime start = monotonic_now();
  const auto lap = [&start](const char* what) {
    fmt::print("  {:<42} {:7.2f} s\n", what, seconds_since(std::exchange(start, monotonic_now())));
  };
  Manifest manifest = full_manifest(phase);
  lap("save plans of all ranks");
  const std::string list = list_pieces(manifest);
  const std::string text = manifest_text(manifest);
  lap("as text and list");
  Manifest read = parse_manifest(text, "manifest.json");
  decode_files(std::string_view(list).substr(0, read.listed_files->bytes), read, "files");
  for (const ManifestTensor& tensor : read.tensors)
    decode_pieces(std::string_view(list).substr(tensor.listed->first, tensor.listed->bytes), tensor, read, tensor.name);
  lap("checked as a reader checks it");
  write(folder / "manifest.json", text);
  write(folder / piece_list_name, list);
  lap("written and synced");
  fmt::print("  manifest {:.1f} MiB, pieces.list {:.1f} MiB\n", static_cast<double>(text.size()) / mebibyte,
             static_cast<double>(list.size()) / mebibyte);
}

// What a rank of the same layout takes in before it reads its tensors.
void plan_load(const PhasePlan& phase, const fs::path& folder) {
  MonotonicTime start = monotonic_now();
  const Manifest manifest = read_manifest(folder);
  fmt::print("  {:<42} {:7.2f} s\n", "manifest.json and the files",
             seconds_since(std::exchange(start, monotonic_now())));
  const FileReader list(folder / piece_list_name);
  const ShardLayout layout = phase.layout(Rank(0));
  std::uint64_t bytes = 0;
  std::uint64_t pieces = 0;
  std::uint64_t needed = 0;
  std::set<int> parameters;
  for (const ParamRange& range : layout.shard_ranges(0)) parameters.insert(range.parameter);
  for (const int index : parameters) {
    const Parameter& parameter = phase.table.parameters()[static_cast<std::size_t>(index)];
    std::vector<std::string> names = {parameter.name};
    for (const std::string& state : phase.optimizer_states) names.push_back(state_tensor_name(parameter.name, state));
    for (const std::string& name : names) {
      const ManifestTensor& tensor = *manifest.find(name);
      std::string text(tensor.listed->bytes, '\0');
      list.read_at(tensor.listed->first, std::as_writable_bytes(std::span(text)));
      bytes += text.size();
      for (const TensorPiece& piece : decode_pieces(text, tensor, manifest, name)) {
        ++pieces;
        if (meet(piece.box, layout.find(index)->box)) ++needed;
      }
    }
  }
  fmt::print("  {:<42} {:7.2f} s  ({} tensors, {:.1f} MiB, {} pieces, {} of them in its tensor part)\n", "its lists",
             seconds_since(start), 3 * parameters.size(), static_cast<double>(bytes) / mebibyte, pieces, needed);
}

int run(int count, char** arguments) {
  const fs::path folder =
      (count > 1 ? fs::path(arguments[1]) : fs::temp_directory_path()) / fmt::format("bench-manifest-{}", ::getpid());
  fs::create_directories(folder);
  const PhasePlan phase = large_phase();
  const MonotonicTime start = monotonic_now();
  const SaveSize size = save_size(phase);
  fmt::print("check: {:.2f} s: {}\n", seconds_since(start), save_text(size));
  std::fflush(stdout);
  measured("rank 0 of the save", [&] { save(phase, folder); });
  measured("one rank that loads", [&] { plan_load(phase, folder); });
  fs::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace scaletrain

int main(int count, char** arguments) {
  return scaletrain::run(count, arguments);
}
