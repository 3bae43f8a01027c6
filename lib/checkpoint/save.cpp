#include "checkpoint/save.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <set>
#include <system_error>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/box_copy.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/set_aside.h"
#include "checkpoint/slot_name.h"

namespace scaletrain {

namespace {

constexpr std::size_t copy_bytes = 1u << 20;  // of a tokenizer file at a time

View view_of(const ParamStore& store, const SavePiece& piece) {
  const std::string& name = store.table().rows()[static_cast<std::size_t>(piece.row)].name;
  const View view = piece.slot < 0 ? store.master(name) : store.slot(name, static_cast<std::size_t>(piece.slot));
  SCALETRAIN_CHECK(static_cast<bool>(view));
  return view;
}

// Names files and starts the next one when one is full.
class FileNames {
 public:
  FileNames(std::string stem, std::uint64_t most) : stem_(std::move(stem)), most_(most) {}
  std::string place(std::uint64_t bytes) {
    if (used_ > 0 && bytes > most_ - std::min(most_, used_)) {
      ++number_;
      used_ = 0;
    }
    used_ += bytes;
    return fmt::format("{}-{:05}.safetensors", stem_, number_);
  }

 private:
  std::string stem_;
  std::uint64_t most_;
  std::uint64_t used_ = 0;
  int number_ = 0;
};

std::string_view role_text(ParamRole role) {
  switch (role) {
    case ParamRole::trained:
      return "trained";
    case ParamRole::frozen:
      return "frozen";
    case ParamRole::state:
      return "state";
  }
  SCALETRAIN_CHECK(false);
}

// One save: the temporary folder and the manifest as it grows. Removes the folder unless it was committed.
class Save {
 public:
  Save(const ParamStore& store, const SaveRequest& request) : store_(store), request_(request) {
    manifest_ = request.manifest;
    manifest_.format_version = checkpoint_format_version;
    manifest_.save_id = random_id();
    manifest_.tensors.clear();
    manifest_.files.clear();
    manifest_.tokenizer_files.clear();
    final_ = request.folder / checkpoint_name(manifest_.step);
    temporary_ =
        request.folder / fmt::format("{}{}-{}", saving_prefix, checkpoint_name(manifest_.step), manifest_.save_id);
  }
  ~Save() {
    std::error_code ignored;
    if (!committed_) std::filesystem::remove_all(temporary_, ignored);
  }
  Save(const Save&) = delete;
  Save& operator=(const Save&) = delete;

  SaveResult run();

 private:
  void write_tensors();
  void write_file(const std::string& name, std::span<const SavePiece> pieces);
  void copy_tokenizer_file(const std::filesystem::path& from);
  void write_manifest();
  void commit();
  bool is_committed() const;
  void add_file(const std::string& name, WrittenFile written);

  const ParamStore& store_;
  const SaveRequest& request_;
  Manifest manifest_;
  std::filesystem::path final_;
  std::filesystem::path temporary_;
  std::uint64_t bytes_ = 0;
  bool committed_ = false;
};

void Save::add_file(const std::string& name, WrittenFile written) {
  bytes_ += written.bytes;
  manifest_.files.push_back({.name = name, .bytes = written.bytes, .block_hashes = std::move(written.block_hashes)});
}

void Save::write_file(const std::string& name, std::span<const SavePiece> pieces) {
  std::vector<SafetensorsTensor> tensors;
  for (const SavePiece& piece : pieces) {
    const View view = view_of(store_, piece);
    const ParamRow& row = store_.table().rows()[static_cast<std::size_t>(piece.row)];
    tensors.push_back({.name = piece.key, .dtype = view.dtype(), .shape = shape_of_box(piece.box)});
    manifest_.tensors.push_back({.name = piece.key,
                                 .role = std::string(piece.slot < 0 ? role_text(row.role) : "slot"),
                                 .dtype = view.dtype(),
                                 .shape = row.shape,
                                 .pieces = {{.file = name, .key = piece.key, .box = piece.box}}});
  }
  SafetensorsWriter writer(temporary_ / name, tensors, {{"format", "scaletrain"}, {"save_id", manifest_.save_id}});
  for (const SavePiece& piece : pieces) {
    const View view = view_of(store_, piece);
    writer.write({static_cast<const std::byte*>(view.data()), view.num_bytes()});
  }
  add_file(name, writer.finish());
}

void Save::write_tensors() {
  const std::vector<SavePiece> plan = make_save_plan(store_.table(), store_.layout(), store_.options().slot_names,
                                                     store_.options().dtype, request_.max_file_bytes);
  for (std::size_t first = 0; first < plan.size();) {
    std::size_t end = first;
    while (end < plan.size() && plan[end].file == plan[first].file) ++end;
    write_file(plan[first].file, std::span(plan).subspan(first, end - first));
    first = end;
  }
}

void Save::copy_tokenizer_file(const std::filesystem::path& from) {
  const std::string name = from.filename().string();
  const auto has_name = [&](const ManifestFile& file) { return file.name == name; };
  if (name.empty() || name.front() == '.' || name == "manifest.json" ||
      std::any_of(manifest_.files.begin(), manifest_.files.end(), has_name)) {
    throw InputError(fmt::format("{}: a tokenizer file of this name cannot be stored in a checkpoint", from.string()));
  }
  const FileReader reader(from);
  HashingWriter writer(temporary_ / name);
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min<std::uint64_t>(reader.size(), copy_bytes)));
  for (std::uint64_t offset = 0; offset < reader.size(); offset += piece.size()) {
    const auto size = std::min<std::uint64_t>(piece.size(), reader.size() - offset);
    const auto part = std::span(piece).first(static_cast<std::size_t>(size));
    reader.read_at(offset, part);
    writer.write(part);
  }
  add_file(name, writer.finish());
  manifest_.tokenizer_files.push_back(name);
}

void Save::write_manifest() {
  const std::string text = manifest_text(manifest_);
  FileWriter writer(temporary_ / "manifest.json");
  writer.write(text);
  writer.finish();
  bytes_ += text.size();
}

// What the destination's manifest says decides whether a rename that reported an error took place.
bool Save::is_committed() const {
  try {
    return read_manifest(final_).save_id == manifest_.save_id;
  } catch (const InputError&) {
    return false;
  }
}

void Save::commit() {
  std::error_code error;
  const bool replaces = std::filesystem::exists(std::filesystem::symlink_status(final_, error));
  // Exchanging the two names keeps a checkpoint under the final name at every instant. File systems without it (some
  // network ones) get two renames, and the old one back if the second fails.
  if (replaces && ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, final_.c_str(), RENAME_EXCHANGE) == 0) {
    committed_ = true;
    // Now the older checkpoint is under the temporary name. What fails from here on does not undo the save: a name that
    // is not synced yet is a matter of a power cut, and the older checkpoint is of a branch that nobody continues.
    try {
      sync_folder(request_.folder);
      rename_durably(temporary_, free_hidden_name(final_, abandoned_prefix));
    } catch (const InputError&) {
      SCALETRAIN_CHECK(is_committed());
    }
    return;
  }
  std::filesystem::path aside;
  if (replaces) aside = set_aside(final_, abandoned_prefix);
  try {
    rename_durably(temporary_, final_);
    committed_ = true;
  } catch (const InputError&) {
    committed_ = is_committed();
    if (committed_) return;
    if (!aside.empty()) rename_durably(aside, final_);
    throw;
  }
}

SaveResult Save::run() {
  const auto start = std::chrono::steady_clock::now();
  create_folders(request_.folder);
  create_folders(temporary_);
  write_tensors();
  for (const auto& file : request_.tokenizer_files) copy_tokenizer_file(file);
  write_manifest();
  sync_folder(temporary_);
  if (request_.may_commit && !request_.may_commit()) {
    throw InputError(fmt::format("{}: the save was abandoned before its commit: this process no longer owns the run",
                                 final_.string()));
  }
  commit();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return {.path = final_, .save_id = manifest_.save_id, .bytes = bytes_, .seconds = seconds.count()};
}

}  // namespace

std::vector<SavePiece> make_save_plan(const ParamTable& table, const ShardLayout& layout,
                                      std::span<const std::string> slot_names, DType dtype,
                                      std::uint64_t max_file_bytes) {
  std::vector<SavePiece> plan;
  FileNames model("model", max_file_bytes);
  FileNames optimizer("optimizer", max_file_bytes);
  const auto add = [&](const ParamSpan& span, int slot, FileNames& files) {
    const ParamRow& row = table.rows()[static_cast<std::size_t>(span.row)];
    const bool trained = row.role == ParamRole::trained;
    if (row.tied_to || (slot >= 0 && !trained)) return;
    SavePiece piece{.row = span.row, .slot = slot, .file = {}, .key = row.name, .box = span.box};
    if (slot >= 0) piece.key = slot_tensor_name(row.name, slot_names[static_cast<std::size_t>(slot)]);
    const std::size_t element = size_of(trained ? dtype : row.dtype);
    piece.file = files.place(static_cast<std::size_t>(span.box.num_elements()) * element);
    plan.push_back(std::move(piece));
  };
  for (const ParamSpan& span : layout.spans()) add(span, -1, model);
  for (int slot = 0; slot < narrow<int>(slot_names.size()); ++slot) {
    for (const ParamSpan& span : layout.spans()) add(span, slot, optimizer);
  }
  return plan;
}

SaveResult save_checkpoint(const ParamStore& store, const SaveRequest& request) {
  try {
    return Save(store, request).run();
  } catch (const std::filesystem::filesystem_error& error) {
    throw InputError(fmt::format("{}: saving failed: {}", request.folder.string(), error.what()));
  } catch (const std::bad_alloc&) {
    throw InputError(fmt::format("{}: saving failed: not enough memory", request.folder.string()));
  }
}

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("step-{:08}", step);
}

}  // namespace scaletrain
