// Files of token ids, mapped read-only, with their documents.
//
// Formats, told apart by their first bytes and their name:
//   cache      written by lib/data (token_cache.h): header, tokens (uint16 or uint32), document ends (int64), checksums
//   Megatron   NAME.bin (tokens) and NAME.idx: "MMIDIDX\0\0", version 1, type code, sequence lengths (int32), byte
//              offsets (int64), document index (int64: first sequence of each document, then the number of sequences)
//   llm.c      256 int32 (magic 20240520, version 1: uint16 tokens; magic 20240801, version 7: uint32; number of
//              tokens)
//
// All numbers are little endian. Every size in a header is compared with the file's size before it is used; lengths,
// offsets and documents must follow each other without gap or overlap. Nothing is copied but what is asked for, so
// memory does not grow with the file. Errors are InputErrors that name the file and the byte or token offset; a file
// that shrinks while it is open is one of them. Const members may be called concurrently.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace scaletrain {

// Where the documents of a token stream end: all that cutting it into blocks needs. Also implemented by tests, with
// streams that no disk could hold.
class DocumentIndex {
 public:
  DocumentIndex() = default;
  virtual ~DocumentIndex() = default;
  DocumentIndex(const DocumentIndex&) = delete;
  DocumentIndex& operator=(const DocumentIndex&) = delete;

  virtual std::int64_t num_tokens() const = 0;
  virtual std::int64_t num_documents() const = 0;
  // One past the last token of a document; never decreases with `document`; the last is num_tokens().
  virtual std::int64_t document_end(std::int64_t document) const = 0;
};

// The first document that ends behind `token`, 0 <= token < num_tokens(); the one that holds it. O(log documents).
std::int64_t document_of(const DocumentIndex& index, std::int64_t token);

class TokenFile : public DocumentIndex {
 public:
  virtual std::string format() const = 0;  // "Megatron token file", for people
  virtual std::string dtype() const = 0;   // "uint16": what a token is stored as
  // True if the format knows no documents: it then counts as one, and documents are found by their end token.
  virtual bool one_document() const = 0;
  virtual const std::filesystem::path& path() const = 0;
  // All that it is read from: of Megatron's pair the tokens and the index.
  virtual std::vector<std::filesystem::path> files() const { return {path()}; }
  // Reads what says whether the file holds what its header promises: all of a cache, whose checksums are compared, and
  // Megatron's index. InputError.
  virtual void verify() const {}
  // How much that is.
  virtual std::uint64_t bytes_to_verify() const { return 0; }
  // Tokens [first, first + out.size()). One outside 0 .. vocab - 1 is an InputError with its token offset.
  virtual void read(std::int64_t first, std::span<std::int32_t> out, std::int64_t vocab) const = 0;
  // Identity of the content: sizes and a checksum, of the whole file up to 64 MiB, of evenly spaced samples beyond
  // (reading terabytes at every start is no option). A cache has the identity of the text it was made from. Reads the
  // file each time.
  virtual std::uint64_t identity() const = 0;
};

// How much is read of a file that is opened: its header, for one that was verified before, or also what verify() reads.
enum class FileCheck { header, all };

// `path` is NAME.bin, NAME.idx or, for Megatron, NAME alone.
std::unique_ptr<TokenFile> open_token_file(const std::filesystem::path& path, FileCheck check = FileCheck::all);

// True if open_token_file would recognise the file by its name or first bytes.
bool looks_like_token_file(const std::filesystem::path& path);

}  // namespace scaletrain
