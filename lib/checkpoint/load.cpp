#include "checkpoint/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/box_copy.h"
#include "checkpoint/confined_path.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/slot_name.h"
#include "checkpoint/verified_file.h"

namespace scaletrain {

namespace {

// Elements converted at once between types: small enough for a core's cache.
constexpr std::int64_t conversion_elements = 1 << 14;

}  // namespace

struct Checkpoint::Impl {
  std::filesystem::path folder;
  Manifest manifest;
  std::map<std::string, const ManifestFile*> files;
  std::map<std::string, SafetensorsHeader> headers;
  // The file read last stays open: consecutive tensors lie in one file.
  std::unique_ptr<VerifiedFile> open_file;
  const ManifestFile* open_entry = nullptr;

  std::string manifest_name() const { return (folder / "manifest.json").string(); }
  VerifiedFile& open(const ManifestFile& file);
  void read_header(const ManifestFile& file);
  void check_pieces(const ManifestTensor& tensor) const;
  void read_piece(const ManifestTensor& tensor, const TensorPiece& piece, const Box& box, View out);
  void read(const std::string& name, const Box& box, View out);
  void load_row(const ParamSpan& span, const ParamRow& row, const std::string& name, View out);
};

VerifiedFile& Checkpoint::Impl::open(const ManifestFile& file) {
  if (open_entry != &file) {
    open_entry = nullptr;
    open_file = std::make_unique<VerifiedFile>(confined_path(folder, file.name, manifest_name()), file);
    open_entry = &file;
  }
  return *open_file;
}

void Checkpoint::Impl::read_header(const ManifestFile& file) {
  VerifiedFile& verified = open(file);
  const std::string path = (folder / file.name).string();
  SafetensorsHeader header = read_safetensors_header(
      [&](std::uint64_t offset, std::span<std::byte> out) { verified.read_at(offset, out); }, file.bytes, path);
  const auto found = header.metadata.find("save_id");
  const std::string save_id = found == header.metadata.end() ? std::string() : found->second;
  if (save_id != manifest.save_id) {
    throw InputError(fmt::format("{}: belongs to the save {}, the manifest to {}: files of two saves are mixed", path,
                                 quoted(save_id), quoted(std::as_const(manifest.save_id))));
  }
  headers.emplace(file.name, std::move(header));
}

void Checkpoint::Impl::check_pieces(const ManifestTensor& tensor) const {
  for (const TensorPiece& piece : tensor.pieces) {
    const std::string path = (folder / piece.file).string();
    const SafetensorsEntry* entry = headers.at(piece.file).find(piece.key);
    if (entry == nullptr) {
      throw InputError(
          fmt::format("{}: tensor {} is missing (a piece of {})", path, quoted(piece.key), quoted(tensor.name)));
    }
    if (entry->dtype != tensor.dtype || entry->shape != shape_of_box(piece.box)) {
      throw InputError(fmt::format("{}: tensor {} is {} {}, the manifest says {} {}", path, quoted(piece.key),
                                   entry->type_name, to_text(entry->shape), to_text(tensor.dtype),
                                   to_text(shape_of_box(piece.box))));
    }
  }
}

void Checkpoint::Impl::read_piece(const ManifestTensor& tensor, const TensorPiece& piece, const Box& box, View out) {
  const auto part = intersect(piece.box, box);
  if (!part) return;
  VerifiedFile& file = open(*files.at(piece.file));
  const std::uint64_t first_byte = headers.at(piece.file).find(piece.key)->offset;
  const auto from_size = static_cast<std::int64_t>(size_of(tensor.dtype));
  const auto to_size = static_cast<std::int64_t>(size_of(out.dtype()));
  auto* target_bytes = static_cast<std::byte*>(out.data());
  std::vector<std::byte> staging;
  if (out.dtype() != tensor.dtype) staging.resize(static_cast<std::size_t>(conversion_elements * from_size));
  for_each_run(piece.box, box, *part, [&](std::int64_t source, std::int64_t target, std::int64_t count) {
    const std::int64_t step = staging.empty() ? count : conversion_elements;
    for (std::int64_t done = 0; done < count; done += step) {
      const auto size = static_cast<std::size_t>(std::min(step, count - done));
      std::byte* const to = target_bytes + (target + done) * to_size;
      std::byte* const read_to = staging.empty() ? to : staging.data();
      file.read_at(first_byte + static_cast<std::uint64_t>((source + done) * from_size),
                   {read_to, size * static_cast<std::size_t>(from_size)});
      if (!staging.empty()) convert_floats(tensor.dtype, staging.data(), out.dtype(), to, size);
    }
  });
}

void Checkpoint::Impl::read(const std::string& name, const Box& box, View out) {
  const ManifestTensor* tensor = manifest.find(name);
  if (tensor == nullptr) throw InputError(fmt::format("{}: there is no tensor {}", manifest_name(), quoted(name)));
  const Shape box_shape = shape_of_box(box);
  SCALETRAIN_CHECK_EQ(out.num_elements(), box_shape.num_elements());
  bool inside = box.first.size() == static_cast<std::size_t>(tensor->shape.num_dims());
  for (std::size_t dim = 0; inside && dim < box.first.size(); ++dim) {
    inside = box.first[dim] >= 0 && box.first[dim] + box.extent[dim] <= tensor->shape[static_cast<int>(dim)];
  }
  if (!inside) {
    throw InputError(fmt::format("{}: tensor {} has the shape {}, the part {} was asked for", manifest_name(),
                                 quoted(name), to_text(tensor->shape), to_text(box)));
  }
  if (out.dtype() != tensor->dtype && !(is_floating(out.dtype()) && is_floating(tensor->dtype))) {
    throw InputError(fmt::format("{}: tensor {} holds {}, {} was asked for", manifest_name(), quoted(name),
                                 to_text(tensor->dtype), to_text(out.dtype())));
  }
  for (const TensorPiece& piece : tensor->pieces) read_piece(*tensor, piece, box, out);
}

void Checkpoint::Impl::load_row(const ParamSpan& span, const ParamRow& row, const std::string& name, View out) {
  const ManifestTensor* tensor = manifest.find(name);
  if (tensor != nullptr && tensor->shape != row.shape) {
    throw InputError(fmt::format("{}: tensor {} has the shape {}, this model needs {}", manifest_name(), quoted(name),
                                 to_text(tensor->shape), to_text(row.shape)));
  }
  read(name, span.box, out);
}

Checkpoint::Checkpoint(std::filesystem::path folder) : impl_(std::make_unique<Impl>()) {
  impl_->folder = std::move(folder);
  impl_->manifest = read_manifest(impl_->folder);
  for (const ManifestFile& file : impl_->manifest.files) impl_->files.emplace(file.name, &file);
  const auto& tokenizer_files = impl_->manifest.tokenizer_files;
  for (const ManifestFile& file : impl_->manifest.files) {
    if (std::find(tokenizer_files.begin(), tokenizer_files.end(), file.name) == tokenizer_files.end()) {
      impl_->read_header(file);
    } else {
      impl_->open(file);  // checks its presence and size
    }
  }
  for (const ManifestTensor& tensor : impl_->manifest.tensors) impl_->check_pieces(tensor);
}

Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

const Manifest& Checkpoint::manifest() const {
  return impl_->manifest;
}
const std::filesystem::path& Checkpoint::path() const {
  return impl_->folder;
}

void Checkpoint::read(const std::string& tensor, const Box& box, View out) const {
  impl_->read(tensor, box, out);
}

void Checkpoint::load(ParamStore& store, bool with_slots) const {
  for (const ParamSpan& span : store.layout().spans()) {
    const ParamRow& row = store.table().rows()[static_cast<std::size_t>(span.row)];
    const std::string& name = row.tied_to ? *row.tied_to : row.name;
    impl_->load_row(span, row, name, store.master(row.name));
    if (!with_slots) continue;
    for (std::size_t slot = 0; slot < store.options().slot_names.size(); ++slot) {
      const View view = store.slot(row.name, slot);
      if (view) impl_->load_row(span, row, slot_tensor_name(name, store.options().slot_names[slot]), view);
    }
  }
  store.values_changed();
}

void Checkpoint::verify() const {
  for (const ManifestFile& file : impl_->manifest.files) {
    VerifiedFile(confined_path(impl_->folder, file.name, impl_->manifest_name()), file).verify_all();
  }
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const auto path = confined_path(folder, "manifest.json", folder.string());
  return parse_manifest(read_text_file(path, manifest_limit_bytes), path.string());
}

}  // namespace scaletrain
