#include "checkpoint/gguf/gguf_file.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/hash.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::uint32_t version = 3;
constexpr std::uint64_t alignment = 32;

// The format's numbers for types of values.
enum Value : std::uint32_t { u32 = 4, i32 = 5, f32 = 6, flag = 7, text = 8, array = 9 };

template <class Number>
void append(std::string& bytes, Number value) {
  std::array<char, sizeof value> raw;
  std::memcpy(raw.data(), &value, raw.size());
  bytes.append(raw.data(), raw.size());
}

void append_text(std::string& bytes, std::string_view value) {
  append(bytes, std::uint64_t{value.size()});
  bytes += value;
}

std::uint64_t padded(std::uint64_t size) {
  return (size + alignment - 1) / alignment * alignment;
}

std::uint64_t bytes_of(const GgufTensor& tensor) {
  return gguf_bytes(tensor.type, tensor.shape.num_elements());
}

std::string header(const GgufMetadata& metadata, const std::vector<GgufTensor>& tensors) {
  std::string bytes = "GGUF";
  append(bytes, version);
  append(bytes, std::uint64_t{tensors.size()});
  append(bytes, metadata.size());
  bytes += metadata.bytes();
  std::uint64_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    append_text(bytes, tensor.name);
    append(bytes, static_cast<std::uint32_t>(tensor.shape.num_dims()));
    for (int dim = tensor.shape.num_dims() - 1; dim >= 0; --dim)
      append(bytes, static_cast<std::uint64_t>(tensor.shape[dim]));
    append(bytes, static_cast<std::uint32_t>(tensor.type));
    append(bytes, offset);
    offset += padded(bytes_of(tensor));
  }
  bytes.resize(static_cast<std::size_t>(padded(bytes.size())), '\0');
  return bytes;
}

// Beside the file, so that its name can be given in one step.
fs::path temporary_beside(const fs::path& path) {
  return path.parent_path() / fmt::format(".exporting-{}-{}", path.filename().string(), random_id());
}

}  // namespace

void GgufMetadata::begin(std::string_view key, std::uint32_t type) {
  ++count_;
  append_text(bytes_, key);
  append(bytes_, type);
}

void GgufMetadata::begin_array(std::string_view key, std::uint32_t type, std::size_t size) {
  begin(key, Value::array);
  append(bytes_, type);
  append(bytes_, std::uint64_t{size});
}

void GgufMetadata::add(std::string_view key, std::string_view value) {
  begin(key, Value::text);
  append_text(bytes_, value);
}

void GgufMetadata::add(std::string_view key, std::uint32_t value) {
  begin(key, Value::u32);
  append(bytes_, value);
}

void GgufMetadata::add(std::string_view key, float value) {
  begin(key, Value::f32);
  append(bytes_, value);
}

void GgufMetadata::add_flag(std::string_view key, bool value) {
  begin(key, Value::flag);
  append(bytes_, std::uint8_t{value});
}

void GgufMetadata::add(std::string_view key, std::span<const std::string> texts) {
  begin_array(key, Value::text, texts.size());
  for (const std::string& value : texts) append_text(bytes_, value);
}

void GgufMetadata::add(std::string_view key, std::span<const std::int32_t> values) {
  begin_array(key, Value::i32, values.size());
  for (const std::int32_t value : values) append(bytes_, value);
}

void GgufMetadata::add(std::string_view key, std::span<const float> values) {
  begin_array(key, Value::f32, values.size());
  for (const float value : values) append(bytes_, value);
}

GgufWriter::GgufWriter(fs::path path, const GgufMetadata& metadata, std::vector<GgufTensor> tensors)
    : path_(std::move(path)), temporary_(temporary_beside(path_)), tensors_(std::move(tensors)), file_(temporary_) {
  try {
    file_.write(header(metadata, tensors_));
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary_, ignored);
    throw;
  }
}

GgufWriter::~GgufWriter() {
  std::error_code ignored;
  if (!is_finished_) fs::remove(temporary_, ignored);
}

void GgufWriter::pad() {
  static constexpr std::array<std::byte, alignment> zeros{};
  file_.write(std::span(zeros).first(static_cast<std::size_t>(padded(written_) - written_)));
}

void GgufWriter::write(std::span<const std::byte> bytes) {
  SCALETRAIN_CHECK_LT(tensor_, tensors_.size());
  file_.write(bytes);
  written_ += bytes.size();
  const std::uint64_t all = bytes_of(tensors_[tensor_]);
  SCALETRAIN_CHECK(written_ <= all);
  if (written_ < all) return;
  pad();
  ++tensor_;
  written_ = 0;
}

void GgufWriter::finish() {
  SCALETRAIN_CHECK_EQ(tensor_, tensors_.size());
  file_.finish();
  rename_durably(temporary_, path_);
  is_finished_ = true;
}

}  // namespace scaletrain
