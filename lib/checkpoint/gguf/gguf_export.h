// A model as a GGUF file, which llama.cpp and what is built on it run: int8 (q8_0) and int4 (q4_0), which round weights
// in groups of 32, or fp32, fp16 and bf16. Families: GPT-2, Llama, Mistral, Qwen2, Qwen3, Gemma, Gemma 2 and
// Gemma 3 (text); others are refused by name, as is what llama.cpp computes otherwise.
//
// Norms, biases and the position table stay fp32; of int4 the token embedding and the head are int8, since they lose
// most. Matrices whose rows are no multiple of 32 stay fp16.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/gguf/gguf_blocks.h"
#include "checkpoint/hugging_face/hugging_face.h"
#include "config/config.h"
#include "parallel/param_table.h"
#include "tensor/view.h"

namespace scaletrain {

// What the file's readers are told of text. `model` empty: nothing, the model reads token ids.
struct GgufVocabulary {
  // By the format's own numbers.
  enum class Kind : std::int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

  std::string model;                // "gpt2": byte-level BPE, "llama": SentencePiece's BPE
  std::string pre;                  // of "gpt2", by which pattern text is cut: "gpt-2", "llama-bpe", "qwen2" ...
  std::vector<std::string> tokens;  // by id
  std::vector<Kind> kinds;          // of each
  std::vector<float> scores;        // of each, of "llama"
  std::vector<std::string> merges;  // of "gpt2": "left right"
  SpecialTokens special;
  bool begins_document = false;             // special.begin stands before a text
  std::optional<bool> adds_space_prefix{};  // of "llama"
  std::string chat_template;                // empty: none
};

struct GgufExport {
  std::filesystem::path file;  // must not exist
  ModelConfig model;           // vocab set
  GgufType type = GgufType::f32;
  GgufVocabulary vocabulary;
};

// UserError for a model that the format's readers do not have, and for an export to a file that exists.
void check_gguf_export(const ModelConfig& model, const std::filesystem::path& file);

// Of a model that passes check_gguf_export() and could read so many tokens, how many it is told to: where the format
// has no such windows, a model that has them and read none of more is one without them up to there.
std::int64_t gguf_context(const ModelConfig& model, std::int64_t context);

// As which type a parameter is stored where `type` was asked for.
GgufType gguf_type_of(const Parameter& parameter, GgufType type);

// Replaces the values of a parameter by those that the file holds.
void round_as_gguf(const Parameter& parameter, GgufType type, std::span<float> values);

// Complete or not at all. InputError for a weight that is not finite, or that the type cannot hold.
void export_gguf(const ParamTable& table, const TensorReader& read, const GgufExport& request);

}  // namespace scaletrain
