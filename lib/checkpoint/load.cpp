#include "checkpoint/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "backend/host_access.h"
#include "base/error.h"
#include "base/file.h"
#include "base/numbers/checked.h"
#include "base/text.h"
#include "checkpoint/box_copy.h"
#include "checkpoint/format/confined_path.h"
#include "checkpoint/format/piece_list.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/format/verified_file.h"
#include "checkpoint/range_boxes.h"
#include "checkpoint/state_name.h"

namespace scaletrain {

namespace {

// Elements converted at once between types: small enough for a core's cache.
constexpr std::int64_t conversion_elements = 1 << 14;
// Read at once: a block of a checksum.
constexpr std::int64_t stretch_bytes = std::int64_t{4} << 20;

// pieces.list, if the manifest has one; of the size that the manifest says.
std::unique_ptr<FileReader> open_list(const std::filesystem::path& folder, const Manifest& manifest) {
  const std::uint64_t bytes = manifest.list_bytes();
  if (bytes == 0) return nullptr;
  auto list = std::make_unique<FileReader>(confined_path(folder, piece_list_name, (folder / "manifest.json").string()));
  if (list->size() != bytes)
    throw InputError(fmt::format("{}: {} bytes, the manifest says {}", list->path().string(), list->size(), bytes));
  return list;
}

}  // namespace

struct Checkpoint::Impl {
  std::filesystem::path folder;
  Manifest manifest;
  std::map<std::string, const ManifestFile*> files;
  std::map<std::string, const ManifestTensor*> tensors;
  std::map<std::string, SafetensorsHeader> headers;
  // The file read last stays open: consecutive tensors lie in one file.
  std::unique_ptr<VerifiedFile> open_file;
  const ManifestFile* open_entry = nullptr;
  std::unique_ptr<FileReader> list;  // pieces.list
  const ManifestTensor* listed_tensor = nullptr;
  std::vector<TensorPiece> listed_pieces;  // of it

  std::string manifest_name() const { return (folder / "manifest.json").string(); }
  VerifiedFile& open(const ManifestFile& file);
  // Of one tensor, the last that was asked for: from the manifest, or from the list beside it.
  const std::vector<TensorPiece>& pieces_of(const ManifestTensor& tensor);
  // A box of a tensor that is wanted, and one of the pieces that have a part of it.
  struct Read {
    const ManifestTensor* tensor;
    TensorPiece piece;
    Box box;
    View out;
  };

  const SafetensorsHeader& header_of(const ManifestFile& file);
  const SafetensorsEntry& entry_of(const ManifestTensor& tensor, const TensorPiece& piece);
  void run(const Read& read, HostAccess& access, WorkCount* work = nullptr);
  // Appends what reading a box consists of.
  void plan_read(const ManifestTensor& tensor, const Box& box, View out, std::vector<Read>& reads);
  const ManifestTensor& find(const std::string& name) const;
  // The tensor of a parameter: its weights, or their average where that is to take their place.
  const ManifestTensor& find_weights(const std::string& name) const;
  bool uses_averages = false;
  void plan_range(const ParamStore& store, const ParamRange& range, StateKind kind, std::size_t state,
                  std::vector<Read>& reads);
  void plan_scales(const ParamStore& store, const ParamRange& range, std::size_t state, std::vector<Read>& reads);
  void plan_factors(const ParamStore& store, const FactorPlace& place, std::vector<Read>& reads);
};

const std::vector<TensorPiece>& Checkpoint::Impl::pieces_of(const ManifestTensor& tensor) {
  if (!tensor.listed) return tensor.pieces;
  if (listed_tensor == &tensor) return listed_pieces;
  listed_tensor = nullptr;
  // No longer than the file.
  std::string bytes(tensor.listed->bytes, '\0');
  list->read_at(tensor.listed->first, std::as_writable_bytes(std::span(bytes)));
  listed_pieces = decode_pieces(
      bytes, tensor, manifest, fmt::format("{}: tensor {}", list->path().string(), quoted(std::as_const(tensor.name))));
  listed_tensor = &tensor;
  return listed_pieces;
}

VerifiedFile& Checkpoint::Impl::open(const ManifestFile& file) {
  if (open_entry != &file) {
    open_entry = nullptr;
    open_file = std::make_unique<VerifiedFile>(confined_path(folder, file.name, manifest_name()), file);
    open_entry = &file;
  }
  return *open_file;
}

const SafetensorsHeader& Checkpoint::Impl::header_of(const ManifestFile& file) {
  const auto known = headers.find(file.name);
  if (known != headers.end()) return known->second;
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
  return headers.emplace(file.name, std::move(header)).first->second;
}

const SafetensorsEntry& Checkpoint::Impl::entry_of(const ManifestTensor& tensor, const TensorPiece& piece) {
  const SafetensorsEntry* entry = header_of(*files.at(piece.file)).find(piece.key);
  const auto path = [&] { return (folder / piece.file).string(); };
  if (entry == nullptr) {
    throw InputError(
        fmt::format("{}: tensor {} is missing (a piece of {})", path(), quoted(piece.key), quoted(tensor.name)));
  }
  if (entry->dtype != tensor.dtype || entry->shape != shape_of_box(piece.box)) {
    throw InputError(fmt::format("{}: tensor {} is {} {}, the manifest says {} {}", path(), quoted(piece.key),
                                 entry->type_name, to_text(entry->shape), to_text(tensor.dtype),
                                 to_text(shape_of_box(piece.box))));
  }
  return *entry;
}

void Checkpoint::Impl::run(const Read& read, HostAccess& access, WorkCount* work) {
  const std::uint64_t first_byte = entry_of(*read.tensor, read.piece).offset;
  VerifiedFile& file = open(*files.at(read.piece.file));
  const DType from = read.tensor->dtype;
  const DType to_type = read.out.dtype();
  const auto from_size = static_cast<std::int64_t>(size_of(from));
  const View flat = read.out.reshape({read.out.num_elements()});
  std::vector<std::byte> staging;
  if (to_type != from) staging.resize(static_cast<std::size_t>(conversion_elements * from_size));
  const Box part = intersect(read.piece.box, read.box).value();
  for_each_run(read.piece.box, read.box, part, [&](std::int64_t source, std::int64_t target, std::int64_t count) {
    const std::int64_t step = staging.empty() ? stretch_bytes / from_size : conversion_elements;
    for (std::int64_t done = 0; done < count; done += step) {
      const std::int64_t size = std::min(step, count - done);
      access.write(flat.rows(target + done, size), [&](const View& to) {
        std::byte* const read_to = staging.empty() ? to.bytes() : staging.data();
        file.read_at(first_byte + static_cast<std::uint64_t>((source + done) * from_size),
                     {read_to, static_cast<std::size_t>(size * from_size)});
        if (!staging.empty()) convert_floats(from, staging.data(), to_type, to.bytes(), static_cast<std::size_t>(size));
      });
      count_work(work);
    }
  });
}

void Checkpoint::Impl::plan_read(const ManifestTensor& tensor, const Box& box, View out, std::vector<Read>& reads) {
  SCALETRAIN_CHECK_EQ(out.num_elements(), box.num_elements());
  bool inside = box.first.size() == static_cast<std::size_t>(tensor.shape.num_dims());
  for (std::size_t dim = 0; inside && dim < box.first.size(); ++dim) {
    inside = box.first[dim] >= 0 && box.first[dim] + box.extent[dim] <= tensor.shape[static_cast<int>(dim)];
  }
  if (!inside) {
    throw InputError(fmt::format("{}: tensor {} has the shape {}, the part {} was asked for", manifest_name(),
                                 quoted(tensor.name), to_text(tensor.shape), to_text(box)));
  }
  if (out.dtype() != tensor.dtype && !(is_floating(out.dtype()) && is_floating(tensor.dtype))) {
    throw InputError(fmt::format("{}: tensor {} holds {}, {} was asked for", manifest_name(), quoted(tensor.name),
                                 to_text(tensor.dtype), to_text(out.dtype())));
  }
  for (const TensorPiece& piece : pieces_of(tensor)) {
    if (meet(piece.box, box)) reads.push_back({&tensor, piece, box, out});
  }
}

const ManifestTensor& Checkpoint::Impl::find(const std::string& name) const {
  const auto found = tensors.find(name);
  if (found == tensors.end()) throw InputError(fmt::format("{}: there is no tensor {}", manifest_name(), quoted(name)));
  return *found->second;
}

const ManifestTensor& Checkpoint::Impl::find_weights(const std::string& name) const {
  const auto average = uses_averages ? tensors.find(state_tensor_name(name, average_state)) : tensors.end();
  return average == tensors.end() ? find(name) : *average->second;
}

void Checkpoint::Impl::plan_range(const ParamStore& store, const ParamRange& range, StateKind kind, std::size_t state,
                                  std::vector<Read>& reads) {
  const Parameter& parameter = store.table().parameters()[static_cast<std::size_t>(range.parameter)];
  const std::string& owner = parameter.tied_to ? *parameter.tied_to : parameter.name;
  if (kind == StateKind::optimizer && is_in_blocks(parameter.state_block, store.options().state_names[state]))
    plan_scales(store, range, state, reads);
  const ManifestTensor& tensor = kind == StateKind::optimizer
                                     ? find(state_tensor_name(owner, store.options().state_names[state]))
                                     : find_weights(owner);
  if (tensor.shape != parameter.shape) {
    throw InputError(fmt::format("{}: tensor {} has the shape {}, this model needs {}", manifest_name(),
                                 quoted(tensor.name), to_text(tensor.shape), to_text(parameter.shape)));
  }
  const ParamSpan* span = store.layout().find(range.parameter);
  SCALETRAIN_CHECK(span != nullptr);
  for_each_box(*span, range, [&](const Box& box, const ParamRange& part) {
    plan_read(tensor, box, store.values(kind, part, state), reads);
  });
}

void Checkpoint::Impl::plan_scales(const ParamStore& store, const ParamRange& range, std::size_t state,
                                   std::vector<Read>& reads) {
  const Parameter& parameter = store.table().parameters()[static_cast<std::size_t>(range.parameter)];
  const ManifestTensor& tensor =
      find(state_tensor_name(parameter.tied_to.value_or(parameter.name), store.options().state_names[state]) +
           scales_suffix);
  const std::int64_t block = parameter.state_block;
  if (tensor.shape != Shape{parameter.shape[0], div_exact(parameter.shape[1], block)})
    throw InputError(fmt::format("{}: tensor {} has the shape {}, rows of {} in blocks of {} were asked for",
                                 manifest_name(), quoted(tensor.name), to_text(tensor.shape), parameter.shape[1],
                                 block));
  const ParamSpan* span = store.layout().find(range.parameter);
  SCALETRAIN_CHECK(span != nullptr);
  for_each_box(*span, range, [&](Box box, const ParamRange& part) {
    box.first.back() = div_exact(box.first.back(), block);
    box.extent.back() = div_exact(box.extent.back(), block);
    plan_read(tensor, box, store.scales(part, state), reads);
  });
}

void Checkpoint::Impl::plan_factors(const ParamStore& store, const FactorPlace& place, std::vector<Read>& reads) {
  const Parameter& parameter = store.table().parameters()[static_cast<std::size_t>(place.parameter)];
  const std::string name =
      state_tensor_name(parameter.tied_to.value_or(parameter.name),
                        store.options().state_names[static_cast<std::size_t>(parameter.absent_state)]);
  const auto add = [&](const std::string& suffix, std::int64_t first, std::int64_t count) {
    const ManifestTensor& tensor = find(name + suffix);
    if (tensor.shape != Shape{count})
      throw InputError(fmt::format("{}: tensor {} has the shape {}, one number for each of {} was asked for",
                                   manifest_name(), quoted(tensor.name), to_text(tensor.shape), count));
    plan_read(tensor, {.first = {0}, .extent = {count}}, store.factors().rows(first, count), reads);
  };
  add(row_factors_suffix, place.first, place.rows);
  add(column_factors_suffix, place.first + place.rows, place.columns);
}

Checkpoint::Checkpoint(std::filesystem::path folder, OpenCheck check) : impl_(std::make_unique<Impl>()) {
  impl_->folder = std::move(folder);
  impl_->manifest = read_manifest(impl_->folder);
  impl_->list = open_list(impl_->folder, impl_->manifest);
  for (const ManifestFile& file : impl_->manifest.files) impl_->files.emplace(file.name, &file);
  for (const ManifestTensor& tensor : impl_->manifest.tensors) impl_->tensors.emplace(tensor.name, &tensor);
  if (check == OpenCheck::none) return;
  const auto& tokenizer_files = impl_->manifest.tokenizer_files;
  for (const ManifestFile& file : impl_->manifest.files) {
    if (std::find(tokenizer_files.begin(), tokenizer_files.end(), file.name) == tokenizer_files.end()) {
      impl_->header_of(file);
    } else {
      impl_->open(file);  // checks its presence and size
    }
  }
  for (const ManifestTensor& tensor : impl_->manifest.tensors) {
    for (const TensorPiece& piece : impl_->pieces_of(tensor)) impl_->entry_of(tensor, piece);
  }
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
  std::vector<Impl::Read> reads;
  impl_->plan_read(impl_->find_weights(tensor), box, out, reads);
  HostAccess access;
  for (const Impl::Read& read : reads) impl_->run(read, access);
}

void Checkpoint::load(ParamStore& store, Stream& stream, bool with_optimizer_state, WorkCount* work) const {
  std::vector<Impl::Read> reads;
  for (const ParamRange& range : store.held(StateKind::master)) {
    if (store.table().parameters()[static_cast<std::size_t>(range.parameter)].in_base) continue;
    impl_->plan_range(store, range, StateKind::master, 0, reads);
  }
  const std::size_t states = with_optimizer_state ? store.options().state_names.size() : 0;
  for (std::size_t state = 0; state < states; ++state) {
    for (const ParamRange& range : store.held(StateKind::optimizer)) {
      const Parameter& parameter = store.table().parameters()[static_cast<std::size_t>(range.parameter)];
      if (!parameter.has_state(narrow<int>(state))) continue;
      impl_->plan_range(store, range, StateKind::optimizer, state, reads);
    }
  }
  if (with_optimizer_state)
    for (const FactorPlace& place : store.factor_places()) impl_->plan_factors(store, place, reads);
  HostAccess access(store.backend());
  // By file first, then by place: whatever wrote the pieces, each block is read and hashed once or twice.
  std::map<std::string_view, std::vector<const Impl::Read*>> by_file;
  for (const Impl::Read& read : reads) by_file[read.piece.file].push_back(&read);
  for (auto& [file, list] : by_file) {
    const auto offset = [this](const Impl::Read* read) { return impl_->entry_of(*read->tensor, read->piece).offset; };
    std::stable_sort(list.begin(), list.end(),
                     [&](const Impl::Read* a, const Impl::Read* b) { return offset(a) < offset(b); });
    for (const Impl::Read* read : list) impl_->run(*read, access, work);
  }
  access.finish();
  store.values_changed(stream);
}

void Checkpoint::use_averages() {
  const std::string suffix = state_tensor_name("", average_state);
  if (std::none_of(impl_->tensors.begin(), impl_->tensors.end(),
                   [&](const auto& tensor) { return tensor.first.ends_with(suffix); }))
    throw UserError(
        fmt::format("{}: the checkpoint holds no averages of its weights: it was trained without "
                    "train.ema",
                    impl_->folder.string()));
  const auto updates = impl_->manifest.scalars.find("updates");
  if (updates != impl_->manifest.scalars.end() && updates->second == "0")
    throw UserError(fmt::format("{}: the checkpoint has no averages yet: it was saved before the first update",
                                impl_->folder.string()));
  impl_->uses_averages = true;
}

void Checkpoint::verify() const {
  for (const ManifestTensor& tensor : impl_->manifest.tensors) impl_->pieces_of(tensor);
  for (const ManifestFile& file : impl_->manifest.files) {
    VerifiedFile(confined_path(impl_->folder, file.name, impl_->manifest_name()), file).verify_all();
  }
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const auto path = confined_path(folder, "manifest.json", folder.string());
  Manifest manifest = parse_manifest(read_text_file(path, manifest_limit_bytes), path.string());
  if (const auto& files = manifest.listed_files) {
    const std::unique_ptr<FileReader> list = open_list(folder, manifest);
    // No longer than the file.
    std::string bytes(files->bytes, '\0');
    list->read_at(files->first, std::as_writable_bytes(std::span(bytes)));
    decode_files(bytes, manifest, list->path().string() + ": files");
  }
  return manifest;
}

}  // namespace scaletrain
