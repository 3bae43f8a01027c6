// Text and JSONL, tokenised once.
//
// The token file of a list of text files lies in the cache folder under a name that is a hash of everything that
// decides its content: the files' bytes, their kinds, field, separator, and the tokenizer. It is built under a
// temporary name, synced and renamed, so it is complete or absent; several builders may work at once, the last rename
// wins with equal content. Its checksums are verified whenever it is opened; a damaged one is built again, and the
// reporter told. Temporary files whose builder is dead (it holds a lock on them while it lives) are removed.
//
// Memory is bounded: files are read in pieces, a JSONL line may have 64 MiB. Text is taken as bytes, valid UTF-8 or
// not. Errors in the input are InputErrors that begin with "file:line".
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/token_file.h"
#include "data/tokenizer.h"

namespace scaletrain {

// Takes a line for the user: what is being built, skipped or rebuilt.
using Reporter = std::function<void(const std::string& message)>;

enum class TextKind { text, jsonl };

struct TextFile {
  std::filesystem::path path;
  TextKind kind = TextKind::text;
};

struct TextSource {
  std::vector<TextFile> files;           // in this order
  std::string field = "text";            // JSONL: the member that is the document
  std::optional<std::string> separator;  // text: a line that ends a document
};

// data.cache, else SCALETRAIN_CACHE, else ~/.cache/scaletrain. UserError if there is no home either.
std::filesystem::path cache_folder(const std::optional<std::string>& configured);

// Opens the cache of `source`, building it if need be.
std::unique_ptr<TokenFile> open_token_cache(const TextSource& source, const Tokenizer& tokenizer,
                                            const std::filesystem::path& folder, const Reporter& report);

}  // namespace scaletrain
