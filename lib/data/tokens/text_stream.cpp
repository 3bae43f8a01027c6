#include "data/tokens/text_stream.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace scaletrain {
namespace {

constexpr std::size_t kInputBytes = 256u << 10;

[[noreturn]] void refuse_stream(const std::filesystem::path& file, std::uint64_t offset, const std::string& problem) {
  throw InputError(
      fmt::format("{}: at byte {} of the compressed file: {}; restore the file", file.string(), offset, problem));
}

}  // namespace

Compression compression_of(const std::filesystem::path& file) {
  const std::string extension = file.extension().string();
  if (extension == ".gz") return Compression::gzip;
  if (extension == ".zst") return Compression::zstd;
  return Compression::none;
}

std::filesystem::path uncompressed_name(const std::filesystem::path& file) {
  if (compression_of(file) == Compression::none) return file;
  auto name = file;
  name.replace_extension();
  return name;
}

class TextStream::Decoder {
 public:
  Decoder() = default;
  virtual ~Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  // As TextStream::read().
  virtual std::size_t read(TextStream& stream, std::span<char> out) = 0;
};

class TextStream::GzipDecoder final : public Decoder {
 public:
  explicit GzipDecoder(const std::filesystem::path& file) : file_(file) {
    constexpr int window_of_gzip_alone = 15 + 16;
    if (::inflateInit2(&state_, window_of_gzip_alone) != Z_OK)
      throw InputError(file.string() + ": zlib has found no memory to unpack it");
  }
  ~GzipDecoder() override { ::inflateEnd(&state_); }

  std::size_t read(TextStream& stream, std::span<char> out) override {
    state_.next_out = reinterpret_cast<Bytef*>(out.data());
    state_.avail_out = static_cast<uInt>(std::min<std::size_t>(out.size(), 1u << 30));
    const uInt wanted = state_.avail_out;
    while (state_.avail_out == wanted) {
      if (state_.avail_in == 0 && !take_input(stream)) {
        if (is_within_member_) refuse_stream(file_, stream.position_, "it ends within a gzip member: it is truncated");
        return 0;
      }
      is_within_member_ = true;
      const int result = ::inflate(&state_, Z_NO_FLUSH);
      if (result == Z_STREAM_END) {
        is_within_member_ = false;
        ++members_;
        ::inflateReset(&state_);
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        constexpr uLong magic_bytes = 2;
        const bool is_begin = state_.total_in <= magic_bytes;
        refuse_stream(file_, stream.position_ - state_.avail_in - (is_begin ? state_.total_in : 0),
                      !is_begin       ? fmt::format("it is damaged ({})", state_.msg != nullptr ? state_.msg : "zlib")
                      : members_ == 0 ? "no gzip file begins like this"
                                      : "what follows the last member is no gzip member");
      }
    }
    return wanted - state_.avail_out;
  }

 private:
  bool take_input(TextStream& stream) {
    const std::span<const char> input = stream.next_input();
    // zlib's interface has no const; it does not write there.
    state_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input.data()));  // NOLINT
    state_.avail_in = static_cast<uInt>(input.size());
    return !input.empty();
  }

  const std::filesystem::path file_;
  z_stream state_{};
  bool is_within_member_ = true;  // an empty file is no gzip file
  std::int64_t members_ = 0;
};

class TextStream::ZstdDecoder final : public Decoder {
 public:
  explicit ZstdDecoder(const std::filesystem::path& file) : file_(file), state_(::ZSTD_createDStream()) {
    if (!state_) throw InputError(file.string() + ": Zstandard has found no memory to unpack it");
  }

  std::size_t read(TextStream& stream, std::span<char> out) override {
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    while (output.pos == 0) {
      // What was decoded may wait for room although all input is taken.
      if (input_.pos == input_.size && !may_hold_more_ && !take_input(stream)) {
        if (is_within_frame_)
          refuse_stream(file_, stream.position_, "it ends within a Zstandard frame: it is truncated");
        return 0;
      }
      const std::size_t result = ::ZSTD_decompressStream(state_.get(), &output, &input_);
      if (::ZSTD_isError(result) != 0) refuse_frame(stream, result);
      is_within_frame_ = result != 0;
      frames_ += result == 0 ? 1 : 0;
      may_hold_more_ = result != 0 && output.pos == output.size;
    }
    return output.pos;
  }

 private:
  struct Free {
    void operator()(ZSTD_DStream* state) const { ::ZSTD_freeDStream(state); }
  };

  bool take_input(TextStream& stream) {
    const std::span<const char> input = stream.next_input();
    input_ = {input.data(), input.size(), 0};
    return !input.empty();
  }

  [[noreturn]] void refuse_frame(const TextStream& stream, std::size_t result) const {
    const std::uint64_t offset = stream.position_ - (input_.size - input_.pos);
    const ZSTD_ErrorCode code = ::ZSTD_getErrorCode(result);
    if (code == ZSTD_error_frameParameter_windowTooLarge) {
      throw InputError(
          fmt::format("{}: at byte {} of the compressed file: its window needs more than 128 MiB of memory; "
                      "compress it anew without --long and --ultra",
                      file_.string(), offset));
    }
    const bool is_unknown = code == ZSTD_error_prefix_unknown;
    refuse_stream(file_, offset,
                  !is_unknown    ? fmt::format("it is damaged ({})", ::ZSTD_getErrorName(result))
                  : frames_ == 0 ? "no Zstandard file begins like this"
                                 : "what follows the last frame is no Zstandard frame");
  }

  const std::filesystem::path file_;
  std::unique_ptr<ZSTD_DStream, Free> state_;
  ZSTD_inBuffer input_{nullptr, 0, 0};
  bool may_hold_more_ = false;
  bool is_within_frame_ = true;  // an empty file is no Zstandard file
  std::int64_t frames_ = 0;
};

TextStream::TextStream(const std::filesystem::path& file, Compression compression, Hasher* file_bytes)
    : reader_(file), file_bytes_(file_bytes) {
  if (compression == Compression::gzip) decoder_ = std::make_unique<GzipDecoder>(file);
  if (compression == Compression::zstd) decoder_ = std::make_unique<ZstdDecoder>(file);
  if (decoder_) input_ = std::make_unique<char[]>(kInputBytes);
}

TextStream::~TextStream() = default;

std::span<const char> TextStream::next_input() {
  const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(kInputBytes, reader_.size() - position_));
  const std::span<char> input(input_.get(), size);
  reader_.read_at(position_, std::as_writable_bytes(input));
  if (file_bytes_ != nullptr) file_bytes_->update(std::as_bytes(input));
  position_ += size;
  return input;
}

std::size_t TextStream::read(std::span<char> out) {
  SCALETRAIN_CHECK(!out.empty());
  std::size_t size = 0;
  if (decoder_) {
    size = decoder_->read(*this, out);
  } else {
    size = static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), reader_.size() - position_));
    reader_.read_at(position_, std::as_writable_bytes(out.first(size)));
    if (file_bytes_ != nullptr) file_bytes_->update(std::as_bytes(out.first(size)));
    position_ += size;
  }
  text_position_ += size;
  return size;
}

void TextStream::skip_to(std::uint64_t offset) {
  SCALETRAIN_CHECK(file_bytes_ == nullptr && offset >= text_position_);
  if (!decoder_) {
    if (offset > reader_.size())
      throw InputError(fmt::format("{}: the file has {} bytes, and {} are expected", reader_.path().string(),
                                   reader_.size(), offset));
    position_ = offset;
    text_position_ = offset;
    return;
  }
  std::vector<char> piece(kInputBytes);
  while (text_position_ < offset) {
    const auto part = std::min<std::uint64_t>(piece.size(), offset - text_position_);
    if (read(std::span(piece).first(static_cast<std::size_t>(part))) == 0)
      throw InputError(fmt::format("{}: its text has {} bytes, and {} are expected", reader_.path().string(),
                                   text_position_, offset));
  }
}

}  // namespace scaletrain
