#include "checkpoint/format/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/numbers/checked.h"
#include "base/text.h"
#include "checkpoint/format/manifest.h"

namespace scaletrain {

namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors stores little-endian numbers");

constexpr std::string_view metadata_key = "__metadata__";

// Hashed, then copied: what the first has read is still in the processor's cache for the second, which makes the hash
// almost free. A power of two that divides the checksums' block.
constexpr std::size_t cached_bytes = 256u << 10;

// Element types of the format that this program has no use for, and their sizes.
struct ForeignType {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<ForeignType, 7> foreign_types = {
    {{"BOOL", 1}, {"I8", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2}, {"U32", 4}, {"U64", 8}}};

[[noreturn]] void refuse(const std::string& where, const std::string& tensor, const std::string& what) {
  throw InputError(fmt::format("{}: tensor {}: {}", where, quoted(tensor), what));
}

std::uint64_t element_bytes(SafetensorsEntry& entry, const std::string& where) {
  entry.dtype = parse_dtype(entry.type_name);
  if (entry.dtype) return size_of(*entry.dtype);
  for (const ForeignType& type : foreign_types) {
    if (type.name == entry.type_name) return type.bytes;
  }
  refuse(where, entry.name, fmt::format("unknown dtype {}", quoted(std::as_const(entry.type_name))));
}

// The shape, and the bytes it stands for.
std::uint64_t parse_shape(const json& value, SafetensorsEntry& entry, std::uint64_t bytes, const std::string& where) {
  if (!value.is_array()) refuse(where, entry.name, "\"shape\" is not an array");
  if (value.size() > static_cast<std::size_t>(Shape::max_dims)) {
    refuse(where, entry.name, fmt::format("{} dims, at most {} are supported", value.size(), Shape::max_dims));
  }
  std::vector<std::int64_t> extents;
  std::int64_t product = narrow<std::int64_t>(bytes);
  bool overflows = false;
  bool is_empty = false;
  for (const json& item : value) {
    if (!item.is_number_unsigned() || item.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
      refuse(where, entry.name, "an extent in \"shape\" is not a number from 0 to 2^63-1");
    }
    const auto extent = item.get<std::int64_t>();
    extents.push_back(extent);
    is_empty |= extent == 0;
    const auto next = try_mul(product, std::max<std::int64_t>(extent, 1));
    overflows |= !next.has_value();
    product = next.value_or(product);
  }
  // Also where an extent of 0 would make the product small: no honest writer has such a shape.
  if (overflows) refuse(where, entry.name, "the product of the extents does not fit 63 bits");
  for (const std::int64_t extent : extents) entry.shape.append(extent);
  return is_empty ? 0 : static_cast<std::uint64_t>(product);
}

SafetensorsEntry parse_entry(const std::string& name, const json& value, std::uint64_t data_offset,
                             std::uint64_t data_bytes, const std::string& where) {
  SafetensorsEntry entry;
  entry.name = name;
  const std::string place = fmt::format("{}: tensor {}", where, quoted(name));
  entry.type_name = json_string(value, "dtype", place);
  if (value.size() != 3) refuse(where, name, "expected exactly dtype, shape and data_offsets");
  const std::uint64_t bytes =
      parse_shape(json_member(value, "shape", place), entry, element_bytes(entry, where), where);
  const json& offsets = json_member(value, "data_offsets", place);
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    refuse(where, name, "\"data_offsets\" is not a pair of offsets");
  }
  const auto first = offsets[0].get<std::uint64_t>();
  const auto end = offsets[1].get<std::uint64_t>();
  if (first > end || end > data_bytes) {
    refuse(where, name,
           fmt::format("data_offsets [{}, {}] lie outside the {} bytes of tensors", first, end, data_bytes));
  }
  if (end - first != bytes) {
    refuse(where, name,
           fmt::format("dtype {} and shape {} need {} bytes, data_offsets give {}", entry.type_name,
                       to_text(entry.shape), bytes, end - first));
  }
  entry.offset = data_offset + first;
  entry.bytes = bytes;
  return entry;
}

// The tensors must fill [data_offset, file_bytes) exactly.
void check_tiling(const SafetensorsHeader& header, std::uint64_t file_bytes, const std::string& where) {
  std::vector<const SafetensorsEntry*> order;
  for (const auto& [name, entry] : header.entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const SafetensorsEntry* a, const SafetensorsEntry* b) {
    return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
  });
  std::uint64_t end = header.data_offset;
  for (const SafetensorsEntry* entry : order) {
    if (entry->offset < end) refuse(where, entry->name, "its bytes overlap another tensor's");
    if (entry->offset > end) {
      refuse(where, entry->name, fmt::format("{} bytes before it belong to no tensor", entry->offset - end));
    }
    end += entry->bytes;
  }
  if (end != file_bytes) {
    throw InputError(
        fmt::format("{}: {} bytes after the last tensor, which ends at offset {}", where, file_bytes - end, end));
  }
}

std::map<std::string, std::string> parse_metadata(const json& value, const std::string& where) {
  if (!value.is_object()) throw InputError(fmt::format("{}: {} is not an object", where, quoted(metadata_key)));
  std::map<std::string, std::string> metadata;
  for (const auto& [key, item] : value.items()) {
    if (!item.is_string()) {
      throw InputError(fmt::format("{}: {} in {} is not a string", where, quoted(key), quoted(metadata_key)));
    }
    metadata.emplace(key, item.get<std::string>());
  }
  return metadata;
}

}  // namespace

const SafetensorsEntry* SafetensorsHeader::find(const std::string& name) const {
  const auto found = entries.find(name);
  return found == entries.end() ? nullptr : &found->second;
}

SafetensorsHeader read_safetensors_header(const ByteSource& source, std::uint64_t file_bytes,
                                          const std::string& where) {
  std::uint64_t length = 0;
  if (file_bytes < sizeof length) {
    throw InputError(fmt::format("{}: {} bytes, too short for a safetensors file", where, file_bytes));
  }
  source(0, std::as_writable_bytes(std::span(&length, 1)));
  const std::uint64_t most = std::min(file_bytes - sizeof length, safetensors_header_limit);
  if (length > most) {
    throw InputError(fmt::format("{}: the header claims {} bytes, at most {} are possible in a file of {} bytes", where,
                                 length, most, file_bytes));
  }
  std::string text(length, '\0');
  source(sizeof length, std::as_writable_bytes(std::span(text.data(), text.size())));
  if (!text.starts_with('{')) throw InputError(fmt::format("{}: the header does not begin with '{{'", where));
  const json parsed = parse_json(text, where + ": header", {.depth = 8, .bytes = safetensors_header_limit});
  SafetensorsHeader header;
  header.data_offset = sizeof length + length;
  for (const auto& [name, value] : parsed.items()) {
    if (name == metadata_key) {
      header.metadata = parse_metadata(value, where);
    } else {
      header.entries.emplace(name,
                             parse_entry(name, value, header.data_offset, file_bytes - header.data_offset, where));
    }
  }
  check_tiling(header, file_bytes, where);
  return header;
}

std::string safetensors_header_text(const std::vector<SafetensorsTensor>& tensors,
                                    const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) text += fmt::format("{}:{}", json(metadata_key).dump(), json(metadata).dump());
  std::set<std::string_view> names;
  std::uint64_t offset = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    SCALETRAIN_CHECK(tensor.name != metadata_key && names.insert(tensor.name).second);
    const std::uint64_t bytes =
        checked_mul(static_cast<std::uint64_t>(tensor.shape.num_elements()), std::uint64_t{size_of(tensor.dtype)});
    if (text.size() > 1) text += ',';
    text += fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", json(tensor.name).dump(),
                        to_text(tensor.dtype), fmt::join(tensor.shape.begin(), tensor.shape.end(), ","), offset,
                        offset + bytes);
    offset = checked_add(offset, bytes);
  }
  text += '}';
  text.resize(round_up<std::size_t>(text.size(), 8), ' ');
  if (text.size() > safetensors_header_limit) {
    throw InputError(fmt::format("a safetensors header of {} bytes would be too large to be read", text.size()));
  }
  const auto length = static_cast<std::uint64_t>(text.size());
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

// Past the page cache: filling that costs several times the processor time of all the rest, and training has the
// processors at the same time. So a block is gathered in memory as O_DIRECT wants it; the last one, which is shorter,
// goes through the cache.
struct HashingWriter::Impl {
  explicit Impl(std::filesystem::path path)
      : file(std::move(path), FileWriter::Caching::none),
        block(static_cast<std::byte*>(::operator new(checksum_block_bytes, alignment))) {}

  static constexpr auto alignment = std::align_val_t(FileWriter::direct_unit);
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, alignment); }
  };

  FileWriter file;
  std::unique_ptr<std::byte, Free> block;
  Hasher hasher;
  std::uint64_t in_block = 0;
  WrittenFile written;

  void end_block() {
    file.write(std::span<const std::byte>(block.get(), in_block));
    file.begin_writeback();  // where there is a cache after all
    written.bytes += in_block;
    written.block_hashes.push_back(hasher.digest());
    hasher = Hasher();
    in_block = 0;
  }
};

HashingWriter::HashingWriter(std::filesystem::path path) : impl_(std::make_unique<Impl>(std::move(path))) {}
HashingWriter::~HashingWriter() = default;

void HashingWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t left = checksum_block_bytes - impl_->in_block;
    const std::size_t size = std::min({bytes.size(), left, cached_bytes});
    const auto piece = bytes.first(size);
    impl_->hasher.update(piece);
    std::memcpy(impl_->block.get() + impl_->in_block, piece.data(), size);
    impl_->in_block += size;
    if (impl_->in_block == checksum_block_bytes) impl_->end_block();
    bytes = bytes.subspan(size);
  }
}

void HashingWriter::write(std::string_view text) {
  write(std::as_bytes(std::span(text.data(), text.size())));
}

WrittenFile HashingWriter::finish() {
  if (impl_->in_block > 0) impl_->end_block();
  impl_->file.finish();
  return std::move(impl_->written);
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, const std::vector<SafetensorsTensor>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : writer_(std::move(path)) {
  writer_.write(safetensors_header_text(tensors, metadata));
  for (const SafetensorsTensor& tensor : tensors) {
    remaining_ += static_cast<std::uint64_t>(tensor.shape.num_elements()) * size_of(tensor.dtype);
  }
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  SCALETRAIN_CHECK_LE(bytes.size(), remaining_);
  writer_.write(bytes);
  remaining_ -= bytes.size();
}

WrittenFile SafetensorsWriter::finish() {
  SCALETRAIN_CHECK_EQ(remaining_, 0u);
  return writer_.finish();
}

}  // namespace scaletrain
