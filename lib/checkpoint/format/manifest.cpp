#include "checkpoint/format/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/numbers/checked.h"
#include "base/text.h"
#include "checkpoint/box_copy.h"
#include "checkpoint/format/piece_list.h"
#include "checkpoint/format/tiling.h"

namespace scaletrain {

namespace {

using nlohmann::json;

// The text begins with this, then 16 hexadecimal digits: the hash of every byte that follows them. So each byte of the
// file is either fixed or hashed.
constexpr std::string_view digest_prefix = "{\"digest\":\"";
constexpr std::size_t hex_digits = 16;

constexpr std::array<std::string_view, 4> roles = {"trained", "frozen", "state", "slot"};

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw InputError(fmt::format("{}: {}", where, what));
}

const json& array_member(const json& object, std::string_view key, const std::string& where) {
  const json& value = json_member(object, key, where);
  if (!value.is_array()) refuse(where, fmt::format("{} is not an array", quoted(key)));
  return value;
}

std::int64_t count_member(const json& object, std::string_view key, const std::string& where) {
  const std::int64_t value = json_integer(object, key, where);
  if (value < 0) refuse(where, fmt::format("{} is {}, expected at least 0", quoted(key), value));
  return value;
}

void check_members(const json& object, std::size_t expected, const std::string& where) {
  if (object.size() != expected) {
    refuse(where, fmt::format("{} members, expected {}: written by a newer version?", object.size(), expected));
  }
}

std::vector<std::int64_t> numbers(const json& value, const std::string& where) {
  if (!value.is_array() || value.size() > static_cast<std::size_t>(Shape::max_dims)) {
    refuse(where, fmt::format("expected an array of at most {} numbers", Shape::max_dims));
  }
  std::vector<std::int64_t> out;
  for (const json& item : value) {
    if (!item.is_number_unsigned() || item.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
      refuse(where, "expected numbers from 0 to 2^63-1");
    }
    out.push_back(item.get<std::int64_t>());
  }
  return out;
}

Shape parse_shape(const json& value, std::size_t element_bytes, const std::string& where) {
  std::int64_t product = narrow<std::int64_t>(element_bytes);
  const auto extents = numbers(value, where + ": shape");
  for (const std::int64_t extent : extents) {
    const auto next = try_mul(product, std::max<std::int64_t>(extent, 1));
    if (!next) refuse(where, "the product of the shape does not fit 63 bits");
    product = *next;
  }
  Shape shape;
  for (const std::int64_t extent : extents) shape.append(extent);
  return shape;
}

Box parse_box(const json& first, const json& extent, const Shape& shape, const std::string& where) {
  Box box{.first = numbers(first, where), .extent = numbers(extent, where)};
  const auto num_dims = static_cast<std::size_t>(shape.num_dims());
  if (box.first.size() != num_dims || box.extent.size() != num_dims) {
    refuse(where, fmt::format("a box of other than {} dims", num_dims));
  }
  for (std::size_t dim = 0; dim < num_dims; ++dim) {
    const std::int64_t whole = shape[static_cast<int>(dim)];
    if (box.first[dim] > whole || box.extent[dim] > whole - box.first[dim]) {
      refuse(where, fmt::format("the box {} lies outside the shape {}", to_text(box), to_text(shape)));
    }
  }
  return box;
}

// Where the list of a tensor's pieces lies, or that of the files; `end`: where the list before ends.
ListSection parse_section(const json& value, std::uint64_t& end, const std::string& where) {
  check_members(value, 4, where);
  ListSection section{.first = json_unsigned(value, "first", where),
                      .bytes = json_unsigned(value, "bytes", where),
                      .count = json_unsigned(value, "count", where)};
  const std::string hash = json_string(value, "hash", where);
  if (hash.size() != hex_digits || !from_hex(hash, section.hash))
    refuse(where, fmt::format("the hash of its list is {}", quoted(hash)));
  if (section.bytes == 0) refuse(where, "its list is empty");
  if (section.bytes > list_limit_bytes) {
    refuse(where, fmt::format("its list has {}; this program reads lists of up to {}", bytes_text(section.bytes),
                              bytes_text(list_limit_bytes)));
  }
  if (section.first != end) refuse(where, fmt::format("its list begins at {}, expected {}", section.first, end));
  end += section.bytes;
  return section;
}

TensorPiece parse_piece(const json& item, const std::set<std::string>& files, const Shape& shape,
                        const std::string& where) {
  TensorPiece piece;
  piece.file = json_string(item, "file", where);
  check_members(item, 4, where);
  if (!files.contains(piece.file)) {
    refuse(where, fmt::format("its file {} is not in the list of files", quoted(std::as_const(piece.file))));
  }
  piece.key = json_string(item, "key", where);
  piece.box = parse_box(json_member(item, "first", where), json_member(item, "extent", where), shape, where);
  return piece;
}

// list_end: of the lists so far; nothing: pieces stand in the manifest.
ManifestTensor parse_tensor(const json& value, const std::set<std::string>& files,
                            std::optional<std::uint64_t>& list_end, const std::string& manifest) {
  ManifestTensor tensor;
  tensor.name = json_string(value, "name", manifest + ": tensors");
  const std::string where = fmt::format("{}: tensor {}", manifest, quoted(std::as_const(tensor.name)));
  check_members(value, 5, where);
  tensor.role = json_string(value, "role", where);
  if (std::find(roles.begin(), roles.end(), tensor.role) == roles.end()) {
    refuse(where, fmt::format("unknown role {}", quoted(std::as_const(tensor.role))));
  }
  const std::string dtype = json_string(value, "dtype", where);
  const auto parsed_dtype = parse_dtype(dtype);
  if (!parsed_dtype) refuse(where, fmt::format("unknown dtype {}", quoted(dtype)));
  tensor.dtype = *parsed_dtype;
  tensor.shape = parse_shape(json_member(value, "shape", where), size_of(tensor.dtype), where);
  if (list_end) {
    tensor.listed = parse_section(json_member(value, "pieces", where), *list_end, where);
    return tensor;
  }
  const json& pieces = array_member(value, "pieces", where);
  for (const json& item : pieces) tensor.pieces.push_back(parse_piece(item, files, tensor.shape, where));
  check_pieces(tensor, tensor.pieces, where);
  return tensor;
}

ManifestFile parse_file(const json& value, const std::string& manifest) {
  ManifestFile file;
  file.name = json_string(value, "name", manifest + ": files");
  check_file_name(file.name, manifest + ": files");
  const std::string where = fmt::format("{}: file {}", manifest, quoted(std::as_const(file.name)));
  check_members(value, 3, where);
  file.bytes = json_unsigned(value, "bytes", where);
  const std::string hashes = json_string(value, "block_hashes", where);
  const std::uint64_t blocks = ceil_div(file.bytes, checksum_block_bytes);
  if (hashes.size() % hex_digits != 0 || hashes.size() / hex_digits != blocks) {
    refuse(where, fmt::format("{} digits of block hashes, expected {} for each of {} blocks", hashes.size(), hex_digits,
                              blocks));
  }
  file.block_hashes.resize(blocks);
  for (std::size_t block = 0; block < file.block_hashes.size(); ++block) {
    if (!from_hex(std::string_view(hashes).substr(block * hex_digits, hex_digits), file.block_hashes[block])) {
      refuse(where, fmt::format("the hash of block {} is not hexadecimal", block));
    }
  }
  return file;
}

json section_json(const ListSection& section) {
  return {{"first", section.first}, {"bytes", section.bytes}, {"count", section.count}, {"hash", to_hex(section.hash)}};
}

json tensor_json(const ManifestTensor& tensor) {
  json pieces = json::array();
  if (tensor.listed) pieces = section_json(*tensor.listed);
  for (const TensorPiece& piece : tensor.pieces) {
    pieces.push_back(
        json{{"file", piece.file}, {"key", piece.key}, {"first", piece.box.first}, {"extent", piece.box.extent}});
  }
  return {{"name", tensor.name},
          {"role", tensor.role},
          {"dtype", to_text(tensor.dtype)},
          {"shape", std::vector<std::int64_t>(tensor.shape.begin(), tensor.shape.end())},
          {"pieces", std::move(pieces)}};
}

// The members after the digest; returns them parsed.
json check_digest(std::string_view text, const std::string& where) {
  if (!text.starts_with(digest_prefix) || text.size() < digest_prefix.size() + hex_digits) {
    refuse(where, "not a checkpoint manifest (it does not begin with its digest)");
  }
  const std::string_view stated = text.substr(digest_prefix.size(), hex_digits);
  const std::string found = to_hex(hash_text(text.substr(digest_prefix.size() + hex_digits)));
  if (stated != found) refuse(where, fmt::format("damaged: its digest is {}, its content's {}", quoted(stated), found));
  return parse_json(text, where, {.depth = 16, .bytes = UINT64_MAX});
}

BaseModel parse_base(const json& value, const std::string& where) {
  BaseModel base;
  base.path = json_string(value, "path", where);
  check_members(value, 2, where);
  const std::string content = json_string(value, "content", where);
  if (content.size() != hex_digits || !from_hex(content, base.content))
    refuse(where, fmt::format("its content is {}, expected {} hexadecimal digits", quoted(content), hex_digits));
  return base;
}

void parse_head(const json& value, Manifest& manifest, const std::string& where) {
  manifest.format_version = json_integer(value, "format_version", where);
  if (manifest.format_version != checkpoint_format_version && manifest.format_version != listed_format_version) {
    refuse(where, fmt::format("format version {}, this program reads versions {} and {}", manifest.format_version,
                              checkpoint_format_version, listed_format_version));
  }
  check_members(value, value.contains("base") ? 16 : 15, where);
  manifest.save_id = json_string(value, "save_id", where);
  if (manifest.save_id.empty()) refuse(where, "the save id is empty");
  manifest.parent_save_id = json_string(value, "parent_save_id", where);
  manifest.generation = count_member(value, "generation", where);
  manifest.step = count_member(value, "step", where);
  manifest.tokens = count_member(value, "tokens", where);
  manifest.config = json_string(value, "config", where);
  manifest.history = json_string(value, "history", where);
  manifest.fingerprint = json_string(value, "fingerprint", where);
  if (value.contains("base")) manifest.base = parse_base(value.at("base"), where + ": base");
  const json& scalars = json_member(value, "scalars", where);
  if (!scalars.is_object()) refuse(where, "\"scalars\" is not an object");
  for (const auto& [name, item] : scalars.items()) {
    manifest.scalars.emplace(name, json_string(scalars, name, where + ": scalars"));
  }
}

std::string tokenizer_name(const json& item, const std::string& where) {
  if (!item.is_string()) refuse(where, "\"tokenizer_files\" is not a list of names");
  return item.get<std::string>();
}

// tensor_files: those that may have pieces.
void parse_files(const json& value, Manifest& manifest, std::set<std::string>& tensor_files, const std::string& where) {
  for (const json& item : array_member(value, "files", where)) {
    manifest.files.push_back(parse_file(item, where));
    const std::string& name = manifest.files.back().name;
    if (!tensor_files.insert(name).second) refuse(where, fmt::format("the file {} is listed twice", quoted(name)));
  }
  for (const json& item : array_member(value, "tokenizer_files", where)) {
    const std::string name = tokenizer_name(item, where);
    if (tensor_files.erase(name) == 0) {
      refuse(where, fmt::format("the tokenizer file {} is missing in the list of files, or named twice", quoted(name)));
    }
    manifest.tokenizer_files.push_back(name);
  }
}

// Whether they are among the files decode_files() looks.
void parse_listed_tokenizers(const json& names, Manifest& manifest, const std::string& where) {
  std::set<std::string> known;
  for (const json& item : names) {
    const std::string name = tokenizer_name(item, where);
    check_file_name(name, where + ": tokenizer_files");
    if (!known.insert(name).second) refuse(where, fmt::format("the tokenizer file {} is named twice", quoted(name)));
    manifest.tokenizer_files.push_back(name);
  }
}

}  // namespace

const ManifestTensor* Manifest::find(const std::string& name) const {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const ManifestTensor& tensor) { return tensor.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

std::uint64_t Manifest::list_bytes() const {
  const auto& last = tensors.empty() ? listed_files : tensors.back().listed;
  return last ? last->first + last->bytes : 0;
}

void check_file_name(const std::string& name, const std::string& where) {
  if (!is_plain_file_name(name) || name.front() == '.' || name == "manifest.json" || name == piece_list_name)
    refuse(where, fmt::format("{} is not a usable file name (a plain name inside the folder)", quoted(name)));
}

void check_pieces(const ManifestTensor& tensor, const std::vector<TensorPiece>& pieces, const std::string& where) {
  if (pieces.empty()) refuse(where, "0 pieces, expected at least 1");
  std::vector<const Box*> boxes;
  boxes.reserve(pieces.size());
  for (const TensorPiece& piece : pieces) boxes.push_back(&piece.box);
  const std::string problem = tiling_problem(boxes, tensor.shape);
  if (!problem.empty()) refuse(where, problem);
}

std::string list_pieces(Manifest& manifest) {
  std::string all;
  const auto add = [&all](const std::string& list, std::size_t count) {
    const ListSection section{.first = all.size(), .bytes = list.size(), .count = count, .hash = hash_text(list)};
    all += list;
    return section;
  };
  manifest.listed_files = add(encode_files(manifest.files), manifest.files.size());
  const FileIndex file_index = index_of_files(manifest.files);
  for (ManifestTensor& tensor : manifest.tensors) {
    tensor.listed = add(encode_pieces(tensor, file_index), tensor.pieces.size());
    tensor.pieces = {};
  }
  manifest.format_version = listed_format_version;
  return all;
}

std::string manifest_text(const Manifest& manifest) {
  json files = json::array();
  if (manifest.listed_files) {
    files = section_json(*manifest.listed_files);
  } else {
    for (const ManifestFile& file : manifest.files)
      files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"block_hashes", to_hex(file.block_hashes)}});
  }
  json tensors = json::array();
  for (const ManifestTensor& tensor : manifest.tensors) tensors.push_back(tensor_json(tensor));
  json value = {{"format_version", manifest.format_version},
                {"save_id", manifest.save_id},
                {"parent_save_id", manifest.parent_save_id},
                {"generation", manifest.generation},
                {"step", manifest.step},
                {"tokens", manifest.tokens},
                {"config", manifest.config},
                {"tokenizer_files", manifest.tokenizer_files},
                {"history", manifest.history},
                {"fingerprint", manifest.fingerprint},
                {"scalars", manifest.scalars},
                {"tensors", std::move(tensors)},
                {"files", std::move(files)},
                {"checksum_block_bytes", checksum_block_bytes}};
  if (manifest.base) value["base"] = {{"path", manifest.base->path}, {"content", to_hex(manifest.base->content)}};
  std::string text;
  try {
    text = value.dump(1);
  } catch (const json::exception& error) {
    throw InputError(fmt::format("the manifest cannot be written as JSON: {}", error.what()));
  }
  // The object's own brace gives way to the digest.
  const std::string hashed = "\"," + text.substr(1) + "\n";
  return fmt::format("{}{}{}", digest_prefix, to_hex(hash_text(hashed)), hashed);
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  const json value = check_digest(text, where);
  Manifest manifest;
  parse_head(value, manifest, where);
  if (json_unsigned(value, "checksum_block_bytes", where) != checksum_block_bytes) {
    refuse(where, fmt::format("checksums of blocks of other than {} bytes", checksum_block_bytes));
  }
  std::set<std::string> tensor_files;
  std::optional<std::uint64_t> list_end;
  if (manifest.format_version == listed_format_version) {
    list_end = 0;
    manifest.listed_files = parse_section(json_member(value, "files", where), *list_end, where + ": files");
    parse_listed_tokenizers(array_member(value, "tokenizer_files", where), manifest, where);
  } else {
    parse_files(value, manifest, tensor_files, where);
  }
  std::set<std::string> names;
  std::set<std::pair<std::string, std::string>> keys;
  for (const json& item : array_member(value, "tensors", where)) {
    manifest.tensors.push_back(parse_tensor(item, tensor_files, list_end, where));
    const ManifestTensor& tensor = manifest.tensors.back();
    if (!names.insert(tensor.name).second) refuse(where, fmt::format("two tensors {}", quoted(tensor.name)));
    for (const TensorPiece& piece : tensor.pieces) {
      if (!keys.emplace(piece.file, piece.key).second) {
        refuse(where, fmt::format("{} in {} is a piece twice", quoted(piece.key), quoted(std::as_const(piece.file))));
      }
    }
  }
  return manifest;
}

}  // namespace scaletrain
