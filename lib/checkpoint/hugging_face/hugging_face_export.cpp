#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/numbers/checked.h"
#include "base/text.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/hugging_face/hugging_face.h"
#include "checkpoint/hugging_face/hugging_face_config.h"
#include "checkpoint/hugging_face/hugging_face_tensors.h"

namespace scaletrain {

namespace {

namespace fs = std::filesystem;

// Elements that are converted or transposed at once.
constexpr std::size_t written_at_once = 1 << 18;

struct Shard {
  std::string file;
  std::uint64_t bytes = 0;
  std::vector<const HuggingFaceTensor*> tensors;
};

std::uint64_t tensor_bytes(const HuggingFaceTensor& tensor, DType dtype) {
  return checked_mul(static_cast<std::uint64_t>(tensor.shape.num_elements()), std::uint64_t{size_of(dtype)});
}

std::vector<Shard> plan_shards(const std::vector<HuggingFaceTensor>& tensors, DType dtype, std::uint64_t most) {
  std::vector<Shard> shards;
  for (const HuggingFaceTensor& tensor : tensors) {
    const std::uint64_t bytes = tensor_bytes(tensor, dtype);
    if (shards.empty() || shards.back().bytes > most || bytes > most - shards.back().bytes) shards.emplace_back();
    shards.back().bytes += bytes;
    shards.back().tensors.push_back(&tensor);
  }
  std::size_t number = 0;
  for (Shard& shard : shards) {
    shard.file = shards.size() == 1 ? "model.safetensors"
                                    : fmt::format("model-{:05}-of-{:05}.safetensors", ++number, shards.size());
  }
  return shards;
}

// The parameters that make the tensor, one after the other, f32.
void gather(const ParamTable& table, const TensorReader& read, const HuggingFaceTensor& tensor,
            std::vector<float>& values) {
  values.resize(static_cast<std::size_t>(tensor.shape.num_elements()));
  float* out = values.data();
  for (const HuggingFacePart& part : tensor.parts) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(part.parameter)];
    read(parameter, View(out, DType::f32, parameter.shape));
    out += parameter.shape.num_elements();
  }
}

// As --dtype has it.
std::string_view word_of(DType dtype) {
  return dtype == DType::f16 ? "fp16" : dtype == DType::bf16 ? "bf16" : "fp32";
}

// The smallest positive number that becomes infinite in this type.
float first_beyond(DType dtype) {
  if (dtype == DType::f16) return 65520.0F;
  if (dtype == DType::bf16) return 0x1.ffp127F;
  return std::numeric_limits<float>::infinity();
}

// A model in which a weight is NaN or infinite computes nothing, and few of those who read the folder would say why.
// `first`: of the values, its place in the tensor.
void check_numbers(const HuggingFaceTensor& tensor, std::int64_t first, std::span<const float> values, DType dtype) {
  const float limit = first_beyond(dtype);
  const auto bad = std::find_if(values.begin(), values.end(), [&](float value) { return !(std::fabs(value) < limit); });
  if (bad == values.end()) return;
  const std::int64_t at = first + (bad - values.begin());
  const Shape& shape = tensor.shape;
  const std::int64_t width = shape[shape.num_dims() - 1];
  const std::string place =
      shape.num_dims() == 2 ? fmt::format("{}, {}", at / width, at % width) : fmt::format("{}", at);
  if (std::isfinite(*bad))
    throw InputError(fmt::format("{} [{}] is {:g}, for which {} has no number: export with --dtype fp32", tensor.name,
                                 place, *bad, word_of(dtype)));
  throw InputError(
      fmt::format("{} [{}] is {}: a model with such a weight computes nothing; an earlier checkpoint may have none",
                  tensor.name, place, *bad));
}

class Export {
 public:
  Export(const ParamTable& table, const TensorReader& read, const HuggingFaceExport& request)
      : table_(table), read_(read), request_(request), tensors_(hugging_face_tensors(table)) {
    // A trailing separator would make the last component empty.
    target_ = fs::absolute(request.folder).lexically_normal();
    if (target_.filename().empty()) target_ = target_.parent_path();
    temporary_ = target_.parent_path() / fmt::format(".exporting-{}-{}", target_.filename().string(), random_id());
  }
  ~Export() {
    std::error_code ignored;
    if (!committed_) fs::remove_all(temporary_, ignored);
  }
  Export(const Export&) = delete;
  Export& operator=(const Export&) = delete;

  void run() {
    const std::string config = hugging_face_config_text(request_.model, request_.dtype, request_.tokens);
    check_export_folder(target_);
    create_folders(temporary_);
    write("config.json", config);
    write_tokenizer_files();
    std::int64_t largest = 0;
    for (const HuggingFaceTensor& tensor : tensors_) largest = std::max(largest, tensor.shape.num_elements());
    values_.reserve(static_cast<std::size_t>(largest));  // growing would hold two of them
    const std::vector<Shard> shards = plan_shards(tensors_, request_.dtype, request_.max_shard_bytes);
    for (const Shard& shard : shards) write_shard(shard);
    if (shards.size() > 1) write_index(shards);
    sync_folder(temporary_);
    // Replaces an empty folder of that name in one step.
    rename_durably(temporary_, target_);
    committed_ = true;
  }

 private:
  void write(const std::string& name, std::string_view text) {
    FileWriter writer(temporary_ / name);
    writer.write(text);
    writer.finish();
  }

  void write_tokenizer_files() {
    std::set<std::string> names = {"config.json", "model.safetensors.index.json", "manifest.json"};
    for (const ExportedFile& file : request_.tokenizer_files) {
      if (!names.insert(file.name).second) {
        throw InputError(fmt::format("{}: a tokenizer file of this name cannot be exported", file.name));
      }
      write(file.name, file.content);
    }
  }

  void write_shard(const Shard& shard) {
    std::vector<SafetensorsTensor> tensors;
    for (const HuggingFaceTensor* tensor : shard.tensors) {
      tensors.push_back({.name = tensor->name, .dtype = request_.dtype, .shape = tensor->shape});
    }
    SafetensorsWriter writer(temporary_ / shard.file, tensors, {{"format", "pt"}});
    for (const HuggingFaceTensor* tensor : shard.tensors) {
      gather(table_, read_, *tensor, values_);
      if (tensor->is_transposed) {
        write_turned(writer, *tensor);
      } else {
        write_values(writer, *tensor, 0, values_);
      }
    }
    writer.finish();
  }

  // In pieces, so that no second copy of a tensor comes to be.
  void write_values(SafetensorsWriter& writer, const HuggingFaceTensor& tensor, std::int64_t first,
                    std::span<const float> values) {
    check_numbers(tensor, first, values, request_.dtype);
    if (request_.dtype == DType::f32) return writer.write(std::as_bytes(values));
    converted_.resize(written_at_once * size_of(request_.dtype));
    for (std::size_t done = 0; done < values.size(); done += written_at_once) {
      const std::size_t count = std::min(written_at_once, values.size() - done);
      convert_floats(DType::f32, values.data() + done, request_.dtype, converted_.data(), count);
      writer.write(std::span(converted_).first(count * size_of(request_.dtype)));
    }
  }

  // [outputs, inputs] becomes the file's [inputs, outputs], some inputs at a time.
  void write_turned(SafetensorsWriter& writer, const HuggingFaceTensor& tensor) {
    const std::int64_t inputs = tensor.shape[0];
    const std::int64_t outputs = tensor.shape[1];
    const auto most = std::clamp<std::int64_t>(static_cast<std::int64_t>(written_at_once) / outputs, 1, inputs);
    turned_.resize(static_cast<std::size_t>(most * outputs));
    for (std::int64_t done = 0; done < inputs; done += most) {
      const std::int64_t count = std::min(most, inputs - done);
      transpose(values_.data() + done, inputs, outputs, count, turned_.data());
      write_values(writer, tensor, done * outputs, std::span(turned_).first(static_cast<std::size_t>(count * outputs)));
    }
  }

  void write_index(const std::vector<Shard>& shards) {
    nlohmann::json weight_map = nlohmann::json::object();
    std::uint64_t total = 0;
    for (const Shard& shard : shards) {
      total += shard.bytes;
      for (const HuggingFaceTensor* tensor : shard.tensors) weight_map[tensor->name] = shard.file;
    }
    const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}};
    write("model.safetensors.index.json", index.dump(2) + "\n");
  }

  const ParamTable& table_;
  const TensorReader& read_;
  const HuggingFaceExport& request_;
  std::vector<HuggingFaceTensor> tensors_;
  fs::path target_;
  fs::path temporary_;
  bool committed_ = false;
  std::vector<float> values_;  // of one tensor, in rows of outputs
  std::vector<float> turned_;
  std::vector<std::byte> converted_;
};

}  // namespace

void check_export_folder(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(folder, error))) return;
  if (fs::is_directory(folder, error) && fs::is_empty(folder, error) && !error) return;
  throw UserError(fmt::format(
      "{}: already exists and is not an empty folder; name a new folder, or remove what is there", folder.string()));
}

void export_hugging_face(const ParamTable& table, const TensorReader& read, const HuggingFaceExport& request) {
  try {
    Export(table, read, request).run();
  } catch (const fs::filesystem_error& error) {
    throw InputError(fmt::format("{}: exporting failed: {}", request.folder.string(), error.what()));
  }
}

}  // namespace scaletrain
