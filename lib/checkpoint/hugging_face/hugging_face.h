// Hugging Face model folders of GPT-2, Llama, Mistral, Qwen2, Qwen3, Gemma, Gemma 2 and Gemma 3 (text) models:
// config.json with model.safetensors, or shards with model.safetensors.index.json; f32, bf16 or f16. Import is exact
// (16-bit types widen); export writes the dtype it is asked for.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/process/work_count.h"
#include "config/config.h"
#include "nn/layer_growth.h"
#include "nn/model_spec.h"
#include "store/param_store.h"

namespace scaletrain {

// True if the folder looks like one (has config.json and no manifest.json).
bool is_hugging_face_folder(const std::filesystem::path& folder);

// What config.json says of a model.
struct HuggingFaceShape {
  ModelConfig model;  // vocab set; init left at its defaults
  // How many tokens back attention reaches in layers that this program has no windows for (model.window has those of
  // others). Beyond so many tokens the model would compute something else: the context is at most that.
  std::optional<std::int64_t> window;
};
// Reads config.json alone; refuses what is not supported as HuggingFaceModel does.
HuggingFaceShape read_hugging_face_shape(const std::filesystem::path& folder);

class HuggingFaceModel {
 public:
  // Reads config.json, the index and the files' headers. What is not supported (other families, other rope scaling ...)
  // is an InputError naming file and member.
  explicit HuggingFaceModel(std::filesystem::path folder);
  ~HuggingFaceModel();
  HuggingFaceModel(HuggingFaceModel&&) noexcept;
  HuggingFaceModel& operator=(HuggingFaceModel&&) noexcept;

  const ModelConfig& model_config() const { return shape().model; }
  const HuggingFaceShape& shape() const;
  const std::filesystem::path& path() const;
  DType dtype() const;  // of the stored tensors
  // Fills every master the store holds, but for those of adapters. Tensors that are missing, superfluous or of another
  // shape are InputErrors by name; known buffers (attn.bias, attn.masked_bias, rotary inv_freq) are skipped.
  // growth: what each of the store's layers begins from, where those are more than the folder's.
  void load(ParamStore& store, Stream& stream, std::span<const GrownLayer> growth = {}) const;
  // The same for whoever fills others of the store's masters next, and then calls ParamStore::values_changed().
  void load_masters(ParamStore& store, std::span<const GrownLayer> growth = {}) const;
  // A hash of all of the model's tensors, of every byte: the same in whatever files they lie, and wherever. On so many
  // threads; work: counts stretches of some MiB.
  std::uint64_t content(int threads, WorkCount* work = nullptr) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Nothing: the text has none, or it is not known.
struct SpecialTokens {
  std::optional<std::int64_t> begin{};  // before a document
  std::vector<std::int64_t> end{};      // behind it; several: each of them ends a text
  std::optional<std::int64_t> pad{};    // in place of text
};
// What a folder's config.json says of them, or its generation_config.json, which has the same members. InputError for
// members that are no ids.
SpecialTokens read_special_tokens(const std::filesystem::path& folder, const std::string& file = "config.json");

// A file that is written beside the weights.
struct ExportedFile {
  std::string name;
  std::string content;
};

struct HuggingFaceExport {
  std::filesystem::path folder;               // must not exist, or be empty
  ModelConfig model;                          // vocab set
  DType dtype = DType::f32;                   // f32 | bf16 | f16
  std::vector<ExportedFile> tokenizer_files;  // and what else belongs beside the weights
  std::uint64_t max_shard_bytes = 5ull << 30;
  SpecialTokens tokens{};
};

// Reads one stored tensor (all of it, f32) by ParamTable parameter, into `out`.
using TensorReader = std::function<void(const Parameter& parameter, View out)>;

// UserError unless it does not exist or is an empty folder. The export itself looks too; this is for who reads a model
// before it.
void check_export_folder(const std::filesystem::path& folder);

// Writes config.json, generation-ready weights and the index if there are several files. Complete or not at all.
// InputError for a weight that is not finite, or that f16 cannot hold where that is asked for.
void export_hugging_face(const ParamTable& table, const TensorReader& read, const HuggingFaceExport& request);

}  // namespace scaletrain
