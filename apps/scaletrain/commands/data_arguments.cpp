#include "data_arguments.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "data/tokens/bpe/bpe_tokenizer.h"
#include "data/tokens/sentencepiece/sentencepiece_tokenizer.h"

namespace scaletrain {

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name, std::optional<std::int64_t> end_of_document) {
  if (name == "bytes") {
    if (end_of_document) throw UserError("--end-of-document: the tokenizer bytes has its own; remove the option");
    return std::make_unique<ByteTokenizer>();
  }
  if (!path_exists(name))
    throw UserError(fmt::format(
        "--tokenizer: {}: no such file or folder; bytes, or the path of a tokenizer.json, a tokenizer.model or "
        "a folder with one of them, is expected",
        name));
  try {
    const bool is_sentencepiece = std::filesystem::path(name).extension() == ".model" ||
                                  (!holds_bpe_files(name) && holds_sentencepiece_file(name));
    if (is_sentencepiece) return std::make_unique<SentencePieceTokenizer>(name, end_of_document);
    return std::make_unique<BpeTokenizer>(read_bpe_spec(name), end_of_document);
  } catch (const UnknownEndError& error) {
    throw UserError(fmt::format("{}. Give its id as --end-of-document", error.what()));
  }
}

SourceKind source_kind(const std::string& name) {
  if (name == "text") return SourceKind::text;
  return name == "jsonl" ? SourceKind::jsonl : SourceKind::automatic;
}

BadRecordPolicy bad_record_policy(const std::string& name) {
  return name == "skip" ? BadRecordPolicy::skip : BadRecordPolicy::fail;
}

}  // namespace scaletrain
