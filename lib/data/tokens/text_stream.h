// Internal to lib/data: the text in a file, which may be compressed (its name says so: .gz, .zst).
//
// Memory is bounded: that of zlib's window, or of a Zstandard window of up to 128 MiB. Members of a gzip file and
// frames of a Zstandard file that follow each other are read as one text, as `zcat` and `zstdcat` do. What is damaged,
// ends within a member or frame, or is followed by something else is an InputError that names the file and the byte of
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "base/file.h"
#include "base/hash.h"

namespace scaletrain {

enum class Compression { none, gzip, zstd };

// By the name alone.
Compression compression_of(const std::filesystem::path& file);
// The name without the ending that compression_of() goes by.
std::filesystem::path uncompressed_name(const std::filesystem::path& file);

class TextStream {
 public:
  // file_bytes: takes all bytes of the file as they are, compressed or not; null: nobody does.
  TextStream(const std::filesystem::path& file, Compression compression, Hasher* file_bytes = nullptr);
  ~TextStream();
  TextStream(const TextStream&) = delete;
  TextStream& operator=(const TextStream&) = delete;

  // The next bytes of the text: at least one, none at its end.
  std::size_t read(std::span<char> out);
  // The text from there on is next. Compressed text up to there is read, and its end before that is an InputError; of
  // other files nothing is read. Not with a hasher, not backwards.
  void skip_to(std::uint64_t offset);

  std::uint64_t file_size() const { return reader_.size(); }
  // How much of the file has been read.
  std::uint64_t file_position() const { return position_; }

 private:
  class Decoder;
  class GzipDecoder;
  class ZstdDecoder;

  // At the file's end nothing.
  std::span<const char> next_input();

  FileReader reader_;
  Hasher* file_bytes_;
  std::uint64_t position_ = 0;
  std::uint64_t text_position_ = 0;
  std::unique_ptr<char[]> input_;
  std::unique_ptr<Decoder> decoder_;  // nothing: the file is not compressed
};

}  // namespace scaletrain
