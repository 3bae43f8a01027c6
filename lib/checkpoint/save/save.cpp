#include "checkpoint/save/save.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <map>
#include <new>
#include <set>
#include <span>
#include <system_error>
#include <tuple>
#include <utility>

#include "backend/host_access.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/process/memory_limit.h"
#include "base/text.h"
#include "checkpoint/box_copy.h"
#include "checkpoint/format/piece_list.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/quarantine.h"
#include "checkpoint/save/save_exchange.h"
#include "checkpoint/state_name.h"

namespace scaletrain {

namespace {

constexpr std::uint64_t largest_tokenizer_file = std::uint64_t{1} << 30;
constexpr std::size_t write_bytes = 16u << 20;  // between two looks whether the save is still wanted

std::string_view role_text(ParamRole role) {
  switch (role) {
    case ParamRole::trained:
      return "trained";
    case ParamRole::frozen:
      return "frozen";
  }
  SCALETRAIN_CHECK(false);
}

// The values where the store has them.
class StoreState final : public SavedState {
 public:
  explicit StoreState(const ParamStore& store) : store_(store) {}
  const ParamTable& table() const override { return store_.table(); }
  const ShardLayout& layout() const override { return store_.layout(); }
  const std::vector<std::string>& state_names() const override { return store_.options().state_names; }
  DType dtype() const override { return store_.options().dtype; }
  ConstView values(const SavePiece& piece) const override { return stored_values(store_, piece); }
  Backend* backend() const override { return &store_.backend(); }

 private:
  const ParamStore& store_;
};

std::vector<SavePiece> plan_of(const SavedState& state, const SaveRequest& request) {
  return make_save_plan(state.table(), state.layout(), state.state_names(), state.dtype(), request.max_file_bytes);
}

ManifestFile write_file(const SavedState& state, const SaveRequest& request, const std::filesystem::path& path,
                        const std::string& save_id, std::span<const SavePiece> pieces, HostAccess& access) {
  std::vector<SafetensorsTensor> tensors;
  for (const SavePiece& piece : pieces) {
    tensors.push_back({.name = piece.key, .dtype = state.values(piece).dtype(), .shape = shape_of_box(piece.box)});
  }
  SafetensorsWriter writer(path, tensors, {{"format", "scaletrain"}, {"save_id", save_id}});
  for (const SavePiece& piece : pieces) {
    const ConstView values = state.values(piece);
    SCALETRAIN_CHECK_EQ(values.num_elements(), piece.box.num_elements());
    access.read(values, [&](const ConstView& view) {
      auto bytes = std::span(view.bytes(), view.num_bytes());
      while (!bytes.empty()) {
        if (request.is_abandoned && request.is_abandoned())
          throw InputError(fmt::format("{}: the save was given up: training has ended", path.string()));
        const auto part = bytes.first(std::min(bytes.size(), write_bytes));
        writer.write(part);
        bytes = bytes.subspan(part.size());
      }
    });
  }
  WrittenFile written = writer.finish();
  return {.name = path.filename().string(), .bytes = written.bytes, .block_hashes = std::move(written.block_hashes)};
}

// The pieces that this rank has, into an existing folder.
std::vector<ManifestFile> write_files(const SavedState& state, const SaveRequest& request,
                                      const std::filesystem::path& folder, const std::string& save_id) {
  const std::vector<SavePiece> plan = plan_of(state, request);
  const auto access =
      state.backend() == nullptr ? std::make_unique<HostAccess>() : std::make_unique<HostAccess>(*state.backend());
  std::vector<ManifestFile> files;
  for (std::size_t first = 0; first < plan.size();) {
    std::size_t end = first;
    while (end < plan.size() && plan[end].file == plan[first].file) ++end;
    const auto pieces = std::span(plan).subspan(first, end - first);
    files.push_back(write_file(state, request, folder / plan[first].file, save_id, pieces, *access));
    first = end;
  }
  return files;
}

std::filesystem::path temporary_path(const SaveRequest& request, const std::string& save_id) {
  return request.folder / fmt::format("{}{}-{}", saving_prefix, checkpoint_name(request.manifest.step), save_id);
}

// Of a save that came to nothing. A rank that was given up may be making a file in it at this moment: another try finds
// that one too. What is left even so goes with the next pruning.
void remove_temporary(const std::filesystem::path& folder) {
  constexpr int tries = 3;
  std::error_code error;
  for (int i = 0; i < tries; ++i) {
    std::filesystem::remove_all(folder, error);
    if (!error) return;
  }
}

// Rank 0's part of a save: the temporary folder and the manifest as it grows. Removes the folder unless it was
// committed.
class Save {
 public:
  Save(const SavedState& state, const SaveRequest& request) : state_(state), request_(request) {
    manifest_ = request.manifest;
    manifest_.format_version = checkpoint_format_version;
    manifest_.save_id = random_id();
    manifest_.tensors.clear();
    manifest_.files.clear();
    manifest_.tokenizer_files.clear();
    final_ = request.folder / checkpoint_name(manifest_.step);
    temporary_ = temporary_path(request, manifest_.save_id);
  }
  ~Save() { abandon(); }
  Save(const Save&) = delete;
  Save& operator=(const Save&) = delete;

  const std::string& save_id() const { return manifest_.save_id; }
  const std::filesystem::path& folder() const { return temporary_; }
  // Removes the folder unless it was committed.
  void abandon() const {
    if (!committed_) remove_temporary(temporary_);
  }
  void begin() {
    create_folders(request_.folder);
    create_folders(temporary_);
  }
  // The files that a rank wrote for these pieces: both become part of the manifest. InputError if they do not fit.
  void add_rank(std::span<const SavePiece> pieces, std::vector<ManifestFile> files);
  // Everything else, after the last rank was added.
  SaveResult finish();

 private:
  void make_tensors();
  void write_tokenizer_file(const TokenizerFile& file);
  void write_piece_list();
  void write_manifest();
  void commit();
  bool is_committed() const;
  bool is_superseded(const std::filesystem::path& older) const;
  void tell_unsynced(const InputError& error) const {
    if (!request_.warn) return;
    request_.warn(fmt::format("{}: committed, but a power cut now may undo that until the next save: {}",
                              final_.string(), error.what()));
  }
  void add_file(ManifestFile file) {
    bytes_ += file.bytes;
    manifest_.files.push_back(std::move(file));
  }

  const SavedState& state_;
  const SaveRequest& request_;
  const MonotonicTime start_ = monotonic_now();
  Manifest manifest_;
  // By state, part of it, and parameter.
  std::map<std::tuple<int, StatePart, int>, std::vector<TensorPiece>> pieces_;
  std::filesystem::path final_;
  std::filesystem::path temporary_;
  std::uint64_t bytes_ = 0;
  bool committed_ = false;
};

void Save::add_rank(std::span<const SavePiece> pieces, std::vector<ManifestFile> files) {
  std::set<std::string> planned;
  for (const SavePiece& piece : pieces) {
    planned.insert(piece.file);
    pieces_[{piece.state, piece.part, piece.parameter}].push_back(
        {.file = piece.file, .key = piece.key, .box = piece.box});
  }
  std::set<std::string> written;
  for (const ManifestFile& file : files) written.insert(file.name);
  if (planned != written || files.size() != written.size()) {
    throw InputError(
        fmt::format("{} files were written where the plan has {}, or others: does every rank run the same "
                    "config and version of the program?",
                    files.size(), planned.size()));
  }
  for (ManifestFile& file : files) add_file(std::move(file));
}

void Save::make_tensors() {
  for (auto& [place, pieces] : pieces_) {
    const auto [state, part, index] = place;
    const Parameter& parameter = state_.table().parameters()[static_cast<std::size_t>(index)];
    std::int64_t covered = 0;
    for (const TensorPiece& piece : pieces) covered += piece.box.num_elements();
    const Shape shape = saved_shape(parameter, part);
    SCALETRAIN_CHECK_EQ(covered, shape.num_elements());
    const bool is_master = state < 0;
    const std::string of_state = is_master ? std::string() : state_.state_names()[static_cast<std::size_t>(state)];
    manifest_.tensors.push_back({.name = saved_name(parameter, state, of_state, part),
                                 .role = std::string(is_master ? role_text(parameter.role) : "slot"),
                                 .dtype = saved_dtype(parameter, of_state, part, state_.dtype()),
                                 .shape = shape,
                                 .pieces = std::move(pieces)});
  }
  pieces_.clear();
}

void Save::write_tokenizer_file(const TokenizerFile& file) {
  const std::string& name = file.name;
  const auto has_name = [&](const ManifestFile& other) { return other.name == name; };
  if (name.empty() || name.front() == '.' || name == "manifest.json" || name == piece_list_name ||
      std::any_of(manifest_.files.begin(), manifest_.files.end(), has_name)) {
    throw InputError(fmt::format("{}: a tokenizer file of this name cannot be stored in a checkpoint", name));
  }
  HashingWriter writer(temporary_ / name);
  writer.write(std::as_bytes(std::span(*file.content)));
  WrittenFile written = writer.finish();
  add_file({.name = name, .bytes = written.bytes, .block_hashes = std::move(written.block_hashes)});
  manifest_.tokenizer_files.push_back(name);
}

// Of many pieces; few stay in the manifest.
void Save::write_piece_list() {
  std::uint64_t pieces = 0;
  for (const ManifestTensor& tensor : manifest_.tensors) pieces += tensor.pieces.size();
  if (pieces <= request_.max_manifest_pieces) return;
  const std::string list = list_pieces(manifest_);
  const std::filesystem::path path = temporary_ / piece_list_name;
  Manifest again = manifest_;
  decode_files(std::string_view(list).substr(0, manifest_.listed_files->bytes), again, path.string() + ": files");
  for (const ManifestTensor& tensor : manifest_.tensors)
    decode_pieces(std::string_view(list).substr(tensor.listed->first, tensor.listed->bytes), tensor, manifest_,
                  fmt::format("{}: tensor {}", path.string(), tensor.name));
  FileWriter writer(path);
  writer.write(list);
  writer.finish();
  bytes_ += list.size();
}

void Save::write_manifest() {
  write_piece_list();
  const std::string text = manifest_text(manifest_);
  const std::filesystem::path path = temporary_ / "manifest.json";
  if (text.size() > manifest_limit_bytes) {
    throw InputError(fmt::format("{}: the manifest of {} is larger than {}, which no program would read", path.string(),
                                 bytes_text(text.size()), bytes_text(manifest_limit_bytes)));
  }
  // A checkpoint that could not be read back must not appear: everything that a reader refuses is refused here.
  parse_manifest(text, path.string());
  FileWriter writer(path);
  writer.write(text);
  writer.finish();
  bytes_ += text.size();
}

// One whose manifest cannot be read is not known to be that save.
bool is_of_save(const std::filesystem::path& checkpoint, const std::string& save_id) {
  try {
    return read_manifest(checkpoint).save_id == save_id;
  } catch (const InputError&) {
    return false;
  }
}

// What the destination's manifest says decides whether a rename that reported an error took place.
bool Save::is_committed() const {
  return is_of_save(final_, manifest_.save_id);
}

bool Save::is_superseded(const std::filesystem::path& older) const {
  return !request_.supersedes.empty() && is_of_save(older, request_.supersedes);
}

void Save::commit() {
  std::error_code error;
  const bool replaces = std::filesystem::exists(std::filesystem::symlink_status(final_, error));
  // Exchanging the two names keeps a checkpoint under the final name at every instant. File systems without it (some
  // network ones) get two renames, and the old one back if the second fails.
  // An exchange that reports an error may have taken place all the same.
  if (replaces &&
      (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, final_.c_str(), RENAME_EXCHANGE) == 0 || is_committed())) {
    committed_ = true;
    // Now the older checkpoint is under the temporary name. What fails from here on does not undo the save: a name that
    // is not synced yet is a matter of a power cut, and nobody goes on from the older checkpoint.
    try {
      sync_folder(request_.folder);
      rename_durably(temporary_,
                     free_hidden_name(final_, is_superseded(temporary_) ? removing_prefix : abandoned_prefix));
    } catch (const InputError& failure) {  // the next pruning removes the older one
      tell_unsynced(failure);
    }
    return;
  }
  std::filesystem::path aside;
  if (replaces) aside = rename_to_hidden(final_, abandoned_prefix);
  try {
    rename_durably(temporary_, final_);
    committed_ = true;
    if (replaces && is_superseded(aside)) rename_durably(aside, free_hidden_name(final_, removing_prefix));
  } catch (const InputError& failure) {
    committed_ = is_committed();
    if (committed_) return tell_unsynced(failure);
    if (!aside.empty()) rename_durably(aside, final_);
    throw;
  }
}

SaveResult Save::finish() {
  make_tensors();
  for (const auto& file : request_.tokenizer_files) write_tokenizer_file(file);
  write_manifest();
  sync_folder(temporary_);
  if (request_.may_commit && !request_.may_commit()) {
    throw InputError(fmt::format("{}: the save was abandoned before its commit: this process no longer owns the run",
                                 final_.string()));
  }
  commit();
  return {.path = final_, .save_id = manifest_.save_id, .bytes = bytes_, .seconds = seconds_since(start_)};
}

// Runs f; what a file system or the memory refuses becomes an InputError.
template <class F>
auto as_input_errors(const SaveRequest& request, F f) {
  try {
    return f();
  } catch (const std::filesystem::filesystem_error& error) {
    const bool no_space = error.code() == std::errc::no_space_on_device;
    throw_failure({fmt::format("{}: saving failed: {}", request.folder.string(), error.what()), no_space});
  } catch (const std::bad_alloc&) {
    throw InputError(
        fmt::format("{}: saving failed: not enough memory{}", request.folder.string(), MemoryLimitText().view()));
  }
}

SaveResult save_alone(const SavedState& state, const SaveRequest& request) {
  SCALETRAIN_CHECK_EQ(state.layout().mesh().world(), 1);
  Save save(state, request);
  save.begin();
  save.add_rank(plan_of(state, request), write_files(state, request, save.folder(), save.save_id()));
  return save.finish();
}

// What every rank says about the first rank that failed; no text if none did. More space helps if it helps all.
SaveFailure first_failure(std::span<const SaveReport> reports) {
  SaveFailure first{.no_space = true};
  std::size_t failed = 0;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const SaveFailure& failure = reports[rank].failure;
    if (failure.text.empty()) continue;
    if (failed++ == 0) first.text = fmt::format("rank {}: {}", rank, failure.text);
    first.no_space = first.no_space && failure.no_space;
  }
  if (failed == 0) return {};
  if (failed > 1) first.text += fmt::format(" (and {} more ranks failed)", failed - 1);
  return first;
}

// What was thrown, for the other ranks.
SaveFailure failure_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const NoSpaceError& error) {
    return {.text = error.what(), .no_space = true};
  } catch (const std::exception& error) {
    return {.text = error.what()};
  }
}

bool is_input_error(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const InputError&) {
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

class GroupSave {
 public:
  GroupSave(const SavedState& state, const SaveRequest& request)
      : state_(state), request_(request), exchange_(request.group, request.manifest.generation, request.manifest.step) {
    SCALETRAIN_CHECK_EQ(state.layout().mesh().world(), request.group.world);
    SCALETRAIN_CHECK(state.layout().mesh().rank_of(state.layout().position()) == request.group.rank);
  }
  SaveResult run() { return request_.group.rank == Rank(0) ? lead() : follow(); }

 private:
  SaveResult lead();
  SaveResult follow();
  std::vector<ManifestFile> write_own(const std::filesystem::path& folder, const std::string& save_id) const {
    return as_input_errors(request_, [&] { return write_files(state_, request_, folder, save_id); });
  }
  // Removes the save's folder and tells the other ranks, then throws: an InputError with the common message, or what
  // rank 0 itself has thrown.
  [[noreturn]] void fail(const Save& save, const SaveFailure& failure, const std::exception_ptr& own);

  const SavedState& state_;
  const SaveRequest& request_;
  SaveExchange exchange_;
};

void GroupSave::fail(const Save& save, const SaveFailure& failure, const std::exception_ptr& own) {
  save.abandon();
  exchange_.publish_failure(failure);
  if (own && !is_input_error(own)) std::rethrow_exception(own);
  throw_failure(failure);
}

SaveResult GroupSave::lead() {
  Save save(state_, request_);
  std::exception_ptr own;
  std::vector<SaveReport> reports(1);
  try {
    as_input_errors(request_, [&] { save.begin(); });
  } catch (const std::exception&) {
    own = std::current_exception();
    reports[0].failure = failure_of(own);
    fail(save, first_failure(reports), own);
  }
  exchange_.begin(save.save_id());
  try {
    reports[0].files = write_own(save.folder(), save.save_id());
  } catch (const std::exception&) {
    own = std::current_exception();
    reports[0].failure = failure_of(own);
  }
  // All reports are waited for after a failure too, so that nobody writes when the folder is removed, but for a rank
  // that the deadline gave up: its files and its folder vanish under it, and it removes what it makes later (follow).
  std::vector<SaveReport> others = exchange_.collect();
  others[0] = std::move(reports[0]);
  const SaveFailure failure = first_failure(others);
  if (!failure.text.empty()) fail(save, failure, own);
  SaveResult result;
  try {
    result = as_input_errors(request_, [&] {
      for (std::int64_t rank = 0; rank < request_.group.world; ++rank) {
        save.add_rank(request_.group.plan_of(Rank(rank)), std::move(others[static_cast<std::size_t>(rank)].files));
      }
      return save.finish();
    });
  } catch (const std::exception&) {
    own = std::current_exception();
    others.assign(1, {.files = {}, .failure = failure_of(own)});
    fail(save, first_failure(others), own);
  }
  exchange_.publish(result);
  return result;
}

SaveResult GroupSave::follow() {
  const std::string save_id = exchange_.wait_for_begin();
  SaveReport report;
  std::exception_ptr own;
  const std::filesystem::path folder = temporary_path(request_, save_id);
  try {
    report.files = write_own(folder, save_id);
    // Rank 0 may sit on another host, whose sync of the folder knows nothing of files made here.
    if (!report.files.empty()) sync_folder(folder);
  } catch (const std::exception&) {
    own = std::current_exception();
    report = {.files = {}, .failure = failure_of(own)};
    std::error_code unknown;
    if (!std::filesystem::exists(folder, unknown) && !unknown) {
      report.failure = {.text = fmt::format("{}: the folder is gone, rank 0 has given this save up: {}",
                                            folder.string(), report.failure.text)};
    }
  }
  exchange_.report(report);
  if (own && !is_input_error(own)) {
    exchange_.leave();
    std::rethrow_exception(own);
  }
  try {
    SaveResult result = exchange_.wait_for_result();
    result.path = request_.folder / checkpoint_name(request_.manifest.step);
    return result;
  } catch (const InputError&) {
    // Rank 0 removed the folder before it said so. If this rank was too late for it, files of it may lie there again.
    remove_temporary(folder);
    throw;
  }
}

}  // namespace

TokenizerFile read_tokenizer_file(const std::filesystem::path& path) {
  return {path.filename().string(), std::make_shared<const std::string>(read_text_file(path, largest_tokenizer_file))};
}

SaveResult save_checkpoint(const SavedState& state, const SaveRequest& request) {
  if (request.group.store != nullptr) return GroupSave(state, request).run();
  return as_input_errors(request, [&] { return save_alone(state, request); });
}

SaveResult save_checkpoint(const ParamStore& store, const SaveRequest& request) {
  return save_checkpoint(StoreState(store), request);
}

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("step-{:08}", step);
}

}  // namespace scaletrain
