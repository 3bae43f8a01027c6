#include "data/tokens/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "data/tokens/packed_file.h"
#include "data/tokens/token_formats.h"
#include "data/tokens/token_type.h"

namespace scaletrain {

static_assert(std::endian::native == std::endian::little, "token files are read as little endian numbers");

namespace {

template <class Stored>
void convert_tokens(const MappedFile& file, std::uint64_t begin, std::int64_t first, std::span<std::int32_t> out,
                    std::int64_t vocab) {
  std::array<Stored, 4096> piece;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled by read
  for (std::size_t done = 0; done < out.size();) {
    const std::size_t count = std::min(piece.size(), out.size() - done);
    const std::uint64_t offset = begin + (static_cast<std::uint64_t>(first) + done) * sizeof(Stored);
    file.read(offset, std::as_writable_bytes(std::span(piece).first(count)));
    for (std::size_t i = 0; i < count; ++i) {
      const auto value = static_cast<std::int64_t>(piece[i]);
      if (value < 0 || value >= vocab) {
        throw InputError(
            fmt::format("{}: token {} (byte offset {}) is {}, but the vocabulary has the tokens 0 to {}; the file was "
                        "made with another tokenizer, or model.vocab is too small",
                        file.path().string(), static_cast<std::uint64_t>(first) + done + i, offset + i * sizeof(Stored),
                        value, vocab - 1));
      }
      out[done + i] = static_cast<std::int32_t>(value);
    }
    done += count;
  }
}

bool starts_with(const std::filesystem::path& path, std::span<const char> magic) {
  const FileReader reader(path);
  if (reader.size() < magic.size()) return false;
  std::vector<char> head(magic.size());
  reader.read_at(0, std::as_writable_bytes(std::span(head)));
  return std::equal(head.begin(), head.end(), magic.begin());
}

std::filesystem::path with_suffix(const std::filesystem::path& path, const char* suffix) {
  return std::filesystem::path(path.string() + suffix);
}

}  // namespace

std::int64_t token_bytes(TokenType type) {
  switch (type) {
    case TokenType::u8:
    case TokenType::i8:
      return 1;
    case TokenType::i16:
    case TokenType::u16:
      return 2;
    case TokenType::i32:
    case TokenType::u32:
      return 4;
    case TokenType::i64:
      break;
  }
  return 8;
}

std::string token_type_name(TokenType type) {
  switch (type) {
    case TokenType::u8:
      return "uint8";
    case TokenType::i8:
      return "int8";
    case TokenType::i16:
      return "int16";
    case TokenType::u16:
      return "uint16";
    case TokenType::i32:
      return "int32";
    case TokenType::u32:
      return "uint32";
    case TokenType::i64:
      break;
  }
  return "int64";
}

void read_mapped_tokens(const MappedFile& file, std::uint64_t begin, std::int64_t count, TokenType type,
                        std::int64_t first, std::span<std::int32_t> out, std::int64_t vocab) {
  const auto size = static_cast<std::int64_t>(out.size());
  SCALETRAIN_CHECK(first >= 0 && first <= count && size <= count - first);
  SCALETRAIN_CHECK(vocab > 0 && vocab <= std::int64_t{INT32_MAX});
  switch (type) {
    case TokenType::u8:
      return convert_tokens<std::uint8_t>(file, begin, first, out, vocab);
    case TokenType::i8:
      return convert_tokens<std::int8_t>(file, begin, first, out, vocab);
    case TokenType::i16:
      return convert_tokens<std::int16_t>(file, begin, first, out, vocab);
    case TokenType::u16:
      return convert_tokens<std::uint16_t>(file, begin, first, out, vocab);
    case TokenType::i32:
      return convert_tokens<std::int32_t>(file, begin, first, out, vocab);
    case TokenType::u32:
      return convert_tokens<std::uint32_t>(file, begin, first, out, vocab);
    case TokenType::i64:
      return convert_tokens<std::int64_t>(file, begin, first, out, vocab);
  }
}

std::uint64_t sampled_identity(const MappedFile& file) {
  constexpr std::uint64_t whole_limit = 64u << 20;
  constexpr std::uint64_t piece_size = 64u << 10;
  constexpr std::uint64_t num_pieces = 64;
  // Not through the map: of a page that is touched the system reads megabytes around it.
  const FileReader reader(file.path());
  Hasher hasher;
  const std::uint64_t size = file.size();
  hasher.update(std::as_bytes(std::span(&size, 1)));
  std::vector<std::byte> piece(piece_size);
  const auto take = [&](std::uint64_t offset) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(piece_size, size - offset));
    reader.read_at(offset, std::span(piece).first(count));
    hasher.update(std::span(piece).first(count));
  };
  if (size <= whole_limit) {
    for (std::uint64_t offset = 0; offset < size; offset += piece_size) take(offset);
  } else {
    // The last piece ends with the file; sizes beyond 2^57 bytes do not exist, so the product fits.
    for (std::uint64_t i = 0; i < num_pieces; ++i) take((size - piece_size) * i / (num_pieces - 1));
  }
  return hasher.digest();
}

std::int64_t document_of(const DocumentIndex& index, std::int64_t token) {
  SCALETRAIN_CHECK(token >= 0 && token < index.num_tokens());
  std::int64_t low = 0;
  std::int64_t high = index.num_documents() - 1;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (index.document_end(middle) > token) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

bool looks_like_token_file(const std::filesystem::path& path) {
  const auto extension = path.extension();
  if (extension == ".bin" || extension == ".idx") return true;
  // One reading: a folder may hold a hundred thousand files.
  const FileReader reader(path);
  std::array<char, kCacheMagic.size()> head{};
  const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(head.size(), reader.size()));
  reader.read_at(0, std::as_writable_bytes(std::span(head).first(size)));
  const auto begins_with = [&](std::span<const char> magic) {
    return size >= magic.size() && std::equal(magic.begin(), magic.end(), head.begin());
  };
  return begins_with(kCacheMagic) || begins_with(kPackedMagic) || begins_with(kLlmcMagic16) ||
         begins_with(kLlmcMagic32);
}

namespace {

std::unique_ptr<TokenFile> open_by_header(const std::filesystem::path& path) {
  auto stem = path;
  const auto extension = path.extension();
  if (extension == ".bin" || extension == ".idx") stem.replace_extension();
  const auto idx = with_suffix(stem, ".idx");
  const auto bin = with_suffix(stem, ".bin");
  if (extension == ".idx" || (extension == ".bin" && is_plain_file(idx)) ||
      (!is_plain_file(path) && is_plain_file(idx))) {
    return open_megatron_file(bin, idx);
  }
  if (!is_plain_file(path)) throw InputError(path.string() + ": no such file (nor a pair with .bin and .idx)");
  if (starts_with(path, kCacheMagic)) return open_cache_file(path);
  if (starts_with(path, kPackedMagic)) return std::make_unique<PackedFile>(path);
  if (starts_with(path, kLlmcMagic16) || starts_with(path, kLlmcMagic32)) return open_llmc_file(path);
  throw InputError(
      fmt::format("{}: not a token file: it begins neither as this program's nor as llm.c's files do, and there is no "
                  "{} that would make it a Megatron file",
                  path.string(), idx.filename().string()));
}

}  // namespace

std::unique_ptr<TokenFile> open_token_file(const std::filesystem::path& path, FileCheck check) {
  auto file = open_by_header(path);
  if (check == FileCheck::all) file->verify();
  return file;
}

}  // namespace scaletrain
