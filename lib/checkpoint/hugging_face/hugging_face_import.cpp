#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "backend/host_access.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/numbers/checked.h"
#include "base/process/guarded_thread.h"
#include "base/shell_word.h"
#include "base/text.h"
#include "checkpoint/box_copy.h"
#include "checkpoint/format/confined_path.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/hugging_face/adapter_import.h"
#include "checkpoint/hugging_face/hugging_face.h"
#include "checkpoint/hugging_face/hugging_face_config.h"
#include "checkpoint/hugging_face/hugging_face_tensors.h"
#include "checkpoint/range_boxes.h"

namespace scaletrain {

namespace {

using nlohmann::json;

constexpr const char* single_file = "model.safetensors";
constexpr const char* index_file = "model.safetensors.index.json";
constexpr std::uint64_t config_limit_bytes = 1 << 20;
// Elements converted or transposed at once: few enough for a second-level cache.
constexpr std::int64_t staging_elements = 1 << 18;
// Elements of a row that are read in vain rather than that a read ends before them: a system reads as much ahead.
constexpr std::int64_t passed_over_elements = 1 << 14;

// A part of a transposed tensor of a file, and where it goes.
struct Wanted {
  Box box;
  View out;
};

// The box of the file that holds all of it: of whole rows, if little of them is not wanted.
Box block_around(const std::vector<Wanted>& wanted, std::int64_t row_elements) {
  Box block = wanted.front().box;
  for (const Wanted& part : wanted) {
    for (const std::size_t dim : {0u, 1u}) {
      const std::int64_t end =
          std::max(block.first[dim] + block.extent[dim], part.box.first[dim] + part.box.extent[dim]);
      block.first[dim] = std::min(block.first[dim], part.box.first[dim]);
      block.extent[dim] = end - block.first[dim];
    }
  }
  if (row_elements - block.extent[1] <= passed_over_elements) {
    block.first[1] = 0;
    block.extent[1] = row_elements;
  }
  return block;
}

// Buffers of older files that are no parameters: the causal mask, and the rotary angles.
bool is_known_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace

namespace {

// PyTorch's own files are pickles, which only Python reads.
[[noreturn]] void refuse_other_weights(const std::filesystem::path& folder) {
  const std::string missing = fmt::format("{}: neither {} nor {} is there", folder.string(), single_file, index_file);
  std::error_code ignored;
  if (!std::filesystem::exists(folder / "pytorch_model.bin", ignored) &&
      !std::filesystem::exists(folder / "pytorch_model.bin.index.json", ignored))
    throw InputError(missing + "; weights in other formats are not read");
  throw InputError(fmt::format(
      "{}, but PyTorch's own files, which are not read. This converts them:\n"
      "  python3 -c 'import glob, sys, torch; from safetensors.torch import save_file; "
      "files = sorted(glob.glob(glob.escape(sys.argv[1]) + \"/pytorch_model*.bin\")); "
      "save_file({{k: v.clone().contiguous() for f in files for k, v in torch.load(f, map_location=\"cpu\", "
      "weights_only=True).items()}}, sys.argv[1] + \"/model.safetensors\", {{\"format\": \"pt\"}})' {}\n(with torch "
      "and safetensors from PyPI)",
      missing, shell_word(folder.string())));
}

std::optional<float> first_value(const Parameter& parameter, const ModelConfig& model,
                                 std::span<const GrownLayer> growth) {
  const auto layer = static_cast<std::size_t>(parameter.unit - 1);
  if (parameter.unit == 0 || layer >= growth.size() || !growth[layer].is_identity) return std::nullopt;
  return identity_value(parameter, model);
}

void write_all(float value, const View& out, HostAccess& access) {
  const std::vector<float> values(static_cast<std::size_t>(std::min(staging_elements, out.num_elements())), value);
  const View flat = out.reshape({out.num_elements()});
  for (std::int64_t done = 0; done < flat.num_elements(); done += staging_elements)
    access.write(flat.rows(done, std::min(staging_elements, flat.num_elements() - done)), [&](const View& to) {
      convert_floats(DType::f32, values.data(), to.dtype(), to.bytes(), static_cast<std::size_t>(to.num_elements()));
    });
}

}  // namespace

struct HuggingFaceModel::Impl {
  struct Stored {
    const FileReader* file = nullptr;
    SafetensorsEntry entry;
  };

  std::filesystem::path folder;
  HuggingFaceShape shape;
  DType dtype = DType::f32;
  std::vector<std::unique_ptr<FileReader>> files;
  std::map<std::string, Stored> tensors;  // by their full names

  std::string place(const std::string& name) const { return (folder / name).string(); }
  void open_file(const std::string& name, const std::map<std::string, std::string>* weight_map);
  void open_shards();
  void check_sizes() const;
  void check_tensors();
  void read(const HuggingFaceTensor& tensor, const Box& box, View out, HostAccess& access) const;
  void read_turned(const HuggingFaceTensor& tensor, const std::vector<Wanted>& wanted, HostAccess& access) const;
  void load_turned(const HuggingFaceTensor& tensor, std::vector<Wanted> wanted, HostAccess& access) const;
  void name_sources(const ParamTable& table, std::span<const GrownLayer> growth,
                    std::vector<HuggingFaceTensor>& tensors) const;
};

void HuggingFaceModel::Impl::open_file(const std::string& name, const std::map<std::string, std::string>* weight_map) {
  files.push_back(std::make_unique<FileReader>(confined_path(folder, name, place(index_file))));
  const FileReader& file = *files.back();
  const std::string where = file.path().string();
  const SafetensorsHeader header = read_safetensors_header(
      [&](std::uint64_t offset, std::span<std::byte> out) { file.read_at(offset, out); }, file.size(), where);
  for (const auto& [stored_name, entry] : header.entries) {
    if (weight_map != nullptr) {
      const auto listed = weight_map->find(stored_name);
      if (listed == weight_map->end() || listed->second != name) {
        throw InputError(
            fmt::format("{}: tensor {} is not listed for this file in {}", where, quoted(stored_name), index_file));
      }
    }
    if (!tensors.emplace(full_hugging_face_name(stored_name), Stored{&file, entry}).second) {
      throw InputError(fmt::format("{}: tensor {} appears twice, with and without its prefix or in two files", where,
                                   quoted(stored_name)));
    }
  }
}

void HuggingFaceModel::Impl::open_shards() {
  const std::string where = place(index_file);
  const json index = read_json_file(confined_path(folder, index_file, where));
  const json& listed = json_member(index, "weight_map", where);
  if (!listed.is_object() || listed.empty()) throw InputError(where + ": \"weight_map\" is not an object with members");
  std::map<std::string, std::string> weight_map;
  std::map<std::string, std::size_t> counts;  // tensors by file
  for (const auto& [name, file] : listed.items()) {
    if (!file.is_string())
      throw InputError(fmt::format("{}: {} is not a file name", where, quoted(std::string_view(name))));
    weight_map.emplace(name, file.get<std::string>());
    ++counts[file.get<std::string>()];
  }
  std::size_t expected = 0;
  for (const auto& [name, count] : counts) {
    open_file(name, &weight_map);
    expected += count;
    if (tensors.size() == expected) continue;
    for (const auto& [tensor, file] : weight_map) {
      if (file == name && !tensors.contains(full_hugging_face_name(tensor))) {
        throw InputError(fmt::format("{}: tensor {} is missing, which {} lists for this file", place(name),
                                     quoted(tensor), index_file));
      }
    }
  }
}

// Before anything is made in the size that config.json claims: the files must hold as much.
void HuggingFaceModel::Impl::check_sizes() const {
  const ModelConfig& config = shape.model;
  const std::string where = place("config.json");
  if (static_cast<std::uint64_t>(config.layers) > tensors.size()) {
    throw InputError(fmt::format("{}: {} layers, but the files hold {} tensors", where, config.layers, tensors.size()));
  }
  for (const char* name : {"transformer.wte.weight", "model.embed_tokens.weight"}) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) continue;
    const Shape expected{config.vocab.value(), config.hidden};
    if (found->second.entry.shape != expected) {
      throw InputError(fmt::format("{}: tensor {} has the shape {}, config.json asks for {}",
                                   found->second.file->path().string(), quoted(std::string(name)),
                                   to_text(found->second.entry.shape), to_text(expected)));
    }
    return;
  }
  throw InputError(fmt::format("{}: the token embedding is missing in the files", folder.string()));
}

void HuggingFaceModel::Impl::check_tensors() {
  const ModelConfig& config = shape.model;
  const ParamTable table = make_param_table(make_model_spec(config, config.vocab.value()), InitConfig{});
  std::map<std::string, Shape> expected;
  for (const HuggingFaceTensor& tensor : hugging_face_tensors(table)) expected.emplace(tensor.name, tensor.shape);
  // Files of tied models may repeat the embedding as the head; it is not read.
  if (config.tie_embeddings) expected.emplace("lm_head.weight", Shape{config.vocab.value(), config.hidden});
  for (const auto& [name, stored] : tensors) {
    const std::string where = stored.file->path().string();
    const auto found = expected.find(name);
    if (found == expected.end()) {
      if (is_known_buffer(name)) continue;
      throw InputError(
          fmt::format("{}: tensor {} is no part of the model that config.json describes", where, quoted(name)));
    }
    if (stored.entry.shape != found->second) {
      throw InputError(fmt::format("{}: tensor {} has the shape {}, config.json asks for {}", where, quoted(name),
                                   to_text(stored.entry.shape), to_text(found->second)));
    }
    const auto type = stored.entry.dtype;
    if (type != DType::f32 && type != DType::bf16 && type != DType::f16) {
      throw InputError(fmt::format("{}: tensor {} holds {}; supported are F32, BF16 and F16", where, quoted(name),
                                   stored.entry.type_name));
    }
  }
  for (const HuggingFaceTensor& tensor : hugging_face_tensors(table)) {
    if (!tensors.contains(tensor.name)) {
      throw InputError(
          fmt::format("{}: tensor {} is missing in the files", folder.string(), quoted(std::as_const(tensor.name))));
    }
  }
  dtype = *tensors.at(hugging_face_tensors(table).front().name).entry.dtype;
}

void HuggingFaceModel::Impl::read(const HuggingFaceTensor& tensor, const Box& box, View out, HostAccess& access) const {
  const Stored& stored = tensors.at(tensor.name);
  const DType from = *stored.entry.dtype;
  const std::uint64_t size = size_of(from);
  const View flat = out.reshape({out.num_elements()});
  std::vector<std::byte> staging;
  for_each_run(whole_box(tensor.shape), box, box, [&](std::int64_t source, std::int64_t target, std::int64_t count) {
    for (std::int64_t done = 0; done < count; done += staging_elements) {
      const auto elements = static_cast<std::size_t>(std::min(staging_elements, count - done));
      const std::uint64_t offset = stored.entry.offset + static_cast<std::uint64_t>(source + done) * size;
      access.write(flat.rows(target + done, static_cast<std::int64_t>(elements)), [&](const View& to) {
        if (from == to.dtype()) return stored.file->read_at(offset, {to.bytes(), elements * size});
        staging.resize(std::max<std::size_t>(staging.size(), elements * size));
        stored.file->read_at(offset, {staging.data(), elements * size});
        convert_floats(from, staging.data(), to.dtype(), to.bytes(), elements);
      });
    }
  });
}

// [inputs, outputs] of the file becomes [outputs, inputs]. The file is read in blocks of whole input features (rows),
// as wide as all that is wanted, so that query, key and value come with one reading.
void HuggingFaceModel::Impl::read_turned(const HuggingFaceTensor& tensor, const std::vector<Wanted>& wanted,
                                         HostAccess& access) const {
  const Box block = block_around(wanted, tensor.shape[1]);
  const std::int64_t width = block.extent[1];
  const std::int64_t most = std::clamp<std::int64_t>(staging_elements / width, 1, block.extent[0]);
  std::vector<float> rows(static_cast<std::size_t>(most * width));
  std::vector<float> turned(rows.size());
  Box piece = block;
  for (std::int64_t done = 0; done < block.extent[0]; done += most) {
    piece.first[0] = block.first[0] + done;
    piece.extent[0] = std::min(most, block.extent[0] - done);
    read(tensor, piece, View(rows.data(), DType::f32, shape_of_box(piece)), access);
    for (const Wanted& part : wanted) {
      const std::optional<Box> here = intersect(piece, part.box);
      if (!here) continue;
      const std::int64_t first_row = here->first[0] - piece.first[0];
      const std::int64_t inputs = here->extent[0];
      const std::int64_t outputs = here->extent[1];
      transpose(rows.data() + first_row * width + here->first[1] - piece.first[1], width, inputs, outputs,
                turned.data());
      const View flat = part.out.reshape({part.out.num_elements()});
      const std::int64_t first_input = here->first[0] - part.box.first[0];
      for (std::int64_t output = 0; output < outputs; ++output) {
        access.write(flat.rows(output * part.box.extent[0] + first_input, inputs), [&](const View& to) {
          convert_floats(DType::f32, turned.data() + output * inputs, to.dtype(), to.bytes(),
                         static_cast<std::size_t>(inputs));
        });
      }
    }
  }
}

// What lies close together in the file's rows is read together.
void HuggingFaceModel::Impl::load_turned(const HuggingFaceTensor& tensor, std::vector<Wanted> wanted,
                                         HostAccess& access) const {
  std::sort(wanted.begin(), wanted.end(),
            [](const Wanted& a, const Wanted& b) { return a.box.first[1] < b.box.first[1]; });
  std::vector<Wanted> together;
  std::int64_t end = 0;
  for (Wanted& part : wanted) {
    if (!together.empty() && part.box.first[1] - end > passed_over_elements) {
      read_turned(tensor, together, access);
      together.clear();
    }
    end = std::max(end, part.box.first[1] + part.box.extent[1]);
    together.push_back(std::move(part));
  }
  if (!together.empty()) read_turned(tensor, together, access);
}

// Gives tensors of a deeper model, which `table` is of, the names of those here that they begin as.
void HuggingFaceModel::Impl::name_sources(const ParamTable& table, std::span<const GrownLayer> growth,
                                          std::vector<HuggingFaceTensor>& tensors) const {
  const ParamTable own = make_param_table(make_model_spec(shape.model, shape.model.vocab.value()), InitConfig{});
  for (HuggingFaceTensor& tensor : tensors) {
    const int parameter = tensor.parts.front().parameter;
    const int unit = table.parameters()[static_cast<std::size_t>(parameter)].unit;
    const auto layer = static_cast<std::size_t>(unit - 1);
    if (unit == 0 || layer >= growth.size()) continue;
    const auto within =
        static_cast<std::size_t>(parameter - table.units()[static_cast<std::size_t>(unit)].first_parameter);
    tensor.name = own.parameters_of(narrow<int>(growth[layer].source + 1))[within].hugging_face_name;
  }
}

bool is_hugging_face_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::exists(folder / "config.json", ignored) &&
         !std::filesystem::exists(folder / "manifest.json", ignored);
}

namespace {

// What is no Hugging Face folder, by what it is instead.
void refuse_other_folder(const std::filesystem::path& folder) {
  if (!path_exists(folder))
    throw InputError(
        fmt::format("{}: no such folder; a model that has only a name on a hub is downloaded first", folder.string()));
  if (path_exists(folder / "config.json")) return;
  const bool is_checkpoint = path_exists(folder / "manifest.json");
  if (is_checkpoint || path_exists(folder / "checkpoints"))
    throw InputError(
        fmt::format("{}: {}, and a Hugging Face folder is expected: make one of it with `scaletrain checkpoint export "
                    "{} --to huggingface --output FOLDER`, and name that",
                    folder.string(), is_checkpoint ? "a checkpoint" : "a run's folder", shell_word(folder.string())));
}

}  // namespace

HuggingFaceShape read_hugging_face_shape(const std::filesystem::path& folder) {
  if (is_adapter_folder(folder))
    throw InputError(
        fmt::format("{}: holds adapters of peft's (adapter_config.json) and no model: name the folder of their base "
                    "model, and train on from these with finetune.lora.from",
                    folder.string()));
  refuse_other_folder(folder);
  const auto config_path = confined_path(folder, "config.json", folder.string());
  return parse_hugging_face_config(read_json_file(config_path, {.bytes = config_limit_bytes}), config_path.string());
}

HuggingFaceModel::HuggingFaceModel(std::filesystem::path folder) : impl_(std::make_unique<Impl>()) {
  impl_->folder = std::move(folder);
  impl_->shape = read_hugging_face_shape(impl_->folder);
  // lstat's view: a dangling link is refused by name rather than passed over.
  const auto exists = [&](const char* name) {
    std::error_code ignored;
    return std::filesystem::exists(std::filesystem::symlink_status(impl_->folder / name, ignored));
  };
  if (exists(single_file)) {
    impl_->open_file(single_file, nullptr);
  } else if (exists(index_file)) {
    impl_->open_shards();
  } else {
    refuse_other_weights(impl_->folder);
  }
  impl_->check_sizes();
  impl_->check_tensors();
}

HuggingFaceModel::~HuggingFaceModel() = default;
HuggingFaceModel::HuggingFaceModel(HuggingFaceModel&&) noexcept = default;
HuggingFaceModel& HuggingFaceModel::operator=(HuggingFaceModel&&) noexcept = default;

const HuggingFaceShape& HuggingFaceModel::shape() const {
  return impl_->shape;
}
const std::filesystem::path& HuggingFaceModel::path() const {
  return impl_->folder;
}
DType HuggingFaceModel::dtype() const {
  return impl_->dtype;
}

std::uint64_t HuggingFaceModel::content(int threads, WorkCount* work) const {
  struct Stretch {
    const Impl::Stored* stored;
    std::uint64_t first, bytes;
  };
  constexpr std::uint64_t most = 8ull << 20;
  const ModelConfig& config = model_config();
  const ParamTable table = make_param_table(make_model_spec(config, config.vocab.value()), InitConfig{});
  std::vector<Stretch> stretches;
  std::string names;
  for (const HuggingFaceTensor& tensor : hugging_face_tensors(table)) {
    const Impl::Stored& stored = impl_->tensors.at(tensor.name);
    names += fmt::format("{} {} {}\n", tensor.name, to_text(*stored.entry.dtype), to_text(stored.entry.shape));
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(stored.entry.shape.num_elements()) * size_of(*stored.entry.dtype);
    for (std::uint64_t first = 0; first < bytes; first += most)
      stretches.push_back({&stored, first, std::min(most, bytes - first)});
  }
  std::vector<std::uint64_t> hashes(stretches.size());
  std::atomic<std::size_t> next{0};
  const auto hash_some = [&] {
    std::vector<std::byte> bytes;
    for (std::size_t i = next++; i < stretches.size(); i = next++) {
      const Stretch& stretch = stretches[i];
      bytes.resize(stretch.bytes);
      stretch.stored->file->read_at(stretch.stored->entry.offset + stretch.first, bytes);
      hashes[i] = hash_bytes(bytes);
      count_work(work);
    }
  };
  {
    std::vector<GuardedThread> helpers;
    for (int thread = 1; thread < threads; ++thread) helpers.emplace_back(hash_some);
    hash_some();
    for (GuardedThread& helper : helpers) helper.join_and_rethrow();
  }
  return hash_bytes(std::as_bytes(std::span(hashes)), hash_text(names));
}

void HuggingFaceModel::load(ParamStore& store, Stream& stream, std::span<const GrownLayer> growth) const {
  load_masters(store, growth);
  store.values_changed(stream);
}

void HuggingFaceModel::load_masters(ParamStore& store, std::span<const GrownLayer> growth) const {
  const ParamTable& table = store.table();
  std::map<int, std::pair<const HuggingFaceTensor*, HuggingFacePart>> by_parameter;
  std::vector<HuggingFaceTensor> tensors = hugging_face_tensors(table);
  if (!growth.empty()) impl_->name_sources(table, growth, tensors);
  for (const HuggingFaceTensor& tensor : tensors) {
    const auto stored = impl_->tensors.find(tensor.name);
    if (stored == impl_->tensors.end() || stored->second.entry.shape != tensor.shape) {
      throw InputError(fmt::format(
          "{}: tensor {} is {}, the model to fill needs {}", impl_->folder.string(), quoted(tensor.name),
          stored == impl_->tensors.end() ? "missing" : to_text(stored->second.entry.shape), to_text(tensor.shape)));
    }
    for (const HuggingFacePart& part : tensor.parts) by_parameter.emplace(part.parameter, std::pair(&tensor, part));
  }
  HostAccess access(store.backend());
  std::map<const HuggingFaceTensor*, std::vector<Wanted>> turned;
  for (const ParamRange& range : store.held(StateKind::master)) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(range.parameter)];
    if (parameter.is_adapter) continue;
    const int owner = parameter.tied_to ? table.index_of(*parameter.tied_to) : range.parameter;
    const auto found = by_parameter.find(owner);
    SCALETRAIN_CHECK(found != by_parameter.end());
    const HuggingFaceTensor* const tensor = found->second.first;
    const HuggingFacePart& part = found->second.second;
    for_each_box(*store.layout().find(range.parameter), range, [&](const Box& box, const ParamRange& part_of_range) {
      const Box in_file = hugging_face_box(*tensor, part, box);
      const View out = store.values(StateKind::master, part_of_range);
      if (const auto value = first_value(parameter, impl_->shape.model, growth)) {
        write_all(*value, out, access);
      } else if (!tensor->is_transposed) {
        impl_->read(*tensor, in_file, out, access);
      } else if (in_file.num_elements() > 0) {
        turned[tensor].push_back({in_file, out});
      }
    });
  }
  for (auto& [tensor, wanted] : turned) impl_->load_turned(*tensor, std::move(wanted), access);
  access.finish();
}

}  // namespace scaletrain
