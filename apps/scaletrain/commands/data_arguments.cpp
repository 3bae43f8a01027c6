#include "data_arguments.h"

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "data/tokens/bpe/bpe_tokenizer.h"
#include "data/tokens/sentencepiece/sentencepiece_tokenizer.h"
#include "data/tokens/text_notes.h"

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
    try {
      return std::make_unique<BpeTokenizer>(read_bpe_spec(name), end_of_document);
    } catch (const UnknownEndError&) {
      throw;
    } catch (const InputError& refused) {
      // Of SentencePiece's models transformers writes a tokenizer.json, too, which is not read.
      if (!std::filesystem::is_directory(name) || !holds_sentencepiece_file(name)) throw;
      write_message(
          fmt::format("notice: --tokenizer: {}: its tokenizer.model is taken, since its tokenizer.json cannot "
                      "be used: {}",
                      name, refused.what()));
      return std::make_unique<SentencePieceTokenizer>(name, end_of_document);
    }
  } catch (const UnknownEndError& error) {
    throw UserError(fmt::format("{}. Give its id as --end-of-document", error.what()));
  } catch (const InputError& error) {
    throw InputError(fmt::format("--tokenizer: {}", error.what()));
  }
}

void ReadingArguments::declare(CLI::App& command, bool reads_tokens) {
  const std::vector<std::string> types = reads_tokens
                                             ? std::vector<std::string>{"auto", "text", "jsonl", "parquet", "tokens"}
                                             : std::vector<std::string>{"auto", "text", "jsonl", "parquet"};
  command
      .add_option("--type", type_,
                  reads_tokens ? "What the files are; auto: by their names and contents"
                               : "What the files are; auto: by their names")
      ->check(CLI::IsMember(types))
      ->capture_default_str();
  command.add_option("--field", field_, "The key (JSONL) or column (Parquet) that holds the document")
      ->capture_default_str();
  // An empty one is a value: an empty line.
  command.add_option_function<std::string>(
      "--separator", [this](const std::string& line) { separator_ = line; },
      "A line that ends a document (text), \"\" an empty one; else a file is one");
  command
      .add_option("--on-bad-record", on_bad_record_,
                  "What a line or row without a document does; skip: it is counted and told")
      ->check(CLI::IsMember({"fail", "skip"}))
      ->capture_default_str();
}

SourceKind ReadingArguments::type() const {
  if (type_ == "text") return SourceKind::text;
  if (type_ == "tokens") return SourceKind::tokens;
  if (type_ == "parquet") return SourceKind::parquet;
  return type_ == "jsonl" ? SourceKind::jsonl : SourceKind::automatic;
}

std::string ReadingArguments::jsonl_remedy() const {
  return type() == SourceKind::automatic ? jsonl_remedy_of("--type") : std::string();
}

BadRecordPolicy ReadingArguments::on_bad_record() const {
  return on_bad_record_ == "skip" ? BadRecordPolicy::skip : BadRecordPolicy::fail;
}

}  // namespace scaletrain
