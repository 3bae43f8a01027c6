#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "data/tokens/token_formats.h"
#include "data/tokens/token_type.h"

namespace scaletrain {
namespace {

constexpr std::uint64_t kLlmcHeaderBytes = 256 * sizeof(std::int32_t);
constexpr std::int32_t kMagic16 = 20240520;
constexpr std::int32_t kMagic32 = 20240801;
constexpr std::int32_t kVersion16 = 1;
constexpr std::int32_t kVersion32 = 7;

class LlmcFile final : public TokenFile {
 public:
  explicit LlmcFile(const std::filesystem::path& path) : file_(path) {
    if (file_.size() < kLlmcHeaderBytes) {
      refuse(file_.size(), fmt::format("the file ends within its header of {} bytes", kLlmcHeaderBytes));
    }
    std::array<std::int32_t, 3> header{};  // magic, version, number of tokens; the rest is unused
    file_.read(0, std::as_writable_bytes(std::span(header)));
    const bool wide = header[0] == kMagic32;
    if (!wide && header[0] != kMagic16) {
      refuse(0, fmt::format("magic number {}; llm.c's files have {} or {}", header[0], kMagic16, kMagic32));
    }
    const std::int32_t version = wide ? kVersion32 : kVersion16;
    if (header[1] != version) refuse(4, fmt::format("version {}; only {} is known", header[1], version));
    type_ = wide ? TokenType::u32 : TokenType::u16;
    if (header[2] < 0) refuse(8, fmt::format("{} tokens", header[2]));
    num_tokens_ = header[2];
    const std::uint64_t size = kLlmcHeaderBytes + static_cast<std::uint64_t>(num_tokens_ * token_bytes(type_));
    if (size != file_.size()) {
      refuse(8, fmt::format("{} tokens of {} bytes make a file of {} bytes, it has {}; it is truncated or has trailing "
                            "bytes",
                            num_tokens_, token_bytes(type_), size, file_.size()));
    }
  }

  std::int64_t num_tokens() const override { return num_tokens_; }
  std::int64_t num_documents() const override { return num_tokens_ > 0 ? 1 : 0; }
  std::int64_t document_end(std::int64_t document) const override {
    SCALETRAIN_CHECK(document >= 0 && document < num_documents());
    return num_tokens_;
  }
  std::string format() const override { return "llm.c token file"; }
  std::string dtype() const override { return token_type_name(type_); }
  bool one_document() const override { return true; }
  const std::filesystem::path& path() const override { return file_.path(); }
  void read(std::int64_t first, std::span<std::int32_t> out, std::int64_t vocab) const override {
    read_mapped_tokens(file_, kLlmcHeaderBytes, num_tokens_, type_, first, out, vocab);
  }
  std::uint64_t identity() const override { return sampled_identity(file_); }

 private:
  [[noreturn]] void refuse(std::uint64_t offset, const std::string& what) const {
    throw InputError(fmt::format("{}: at offset {}: {}", file_.path().string(), offset, what));
  }

  MappedFile file_;
  TokenType type_ = TokenType::u16;
  std::int64_t num_tokens_ = 0;
};

}  // namespace

std::unique_ptr<TokenFile> open_llmc_file(const std::filesystem::path& path) {
  return std::make_unique<LlmcFile>(path);
}

}  // namespace scaletrain
