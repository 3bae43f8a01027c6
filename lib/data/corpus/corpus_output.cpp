#include "data/corpus/corpus_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "data/tokens/content_record.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLeftFolder = ".left-";

std::string shard_ending(std::int64_t shard, std::int64_t shards) {
  return shards == 1 ? "" : fmt::format("-{:05}-of-{:05}", shard, shards);
}

// A number of bytes that the record promises is there.
bool is_whole(const fs::path& stem, const nlohmann::json& record) {
  std::error_code error;
  const auto size = fs::file_size(with_ending(stem, ".bin"), error);
  const std::uint64_t width = record.value("dtype", "") == "uint16" ? 2 : 4;
  return !error && size == record.value("tokens", std::uint64_t{0}) * width && is_plain_file(with_ending(stem, ".idx"));
}

// Members that are there have their types.
void check_record(const nlohmann::json& record, const fs::path& path) {
  if (!record.is_object()) throw InputError(path.string() + ": an object is expected; remove it and build again");
  const auto check = [&](const char* key, auto is_right) {
    if (const auto found = record.find(key); found != record.end() && !is_right(*found))
      throw InputError(fmt::format("{}: {} is {}; remove the file and build again", path.string(),
                                   quoted(std::string_view(key)), found->type_name()));
  };
  for (const char* key : {"build", "hash", "dtype"})
    check(key, [](const nlohmann::json& value) { return value.is_string(); });
  for (const char* key : {"shard", "shards", "tokens", "documents"})
    check(key, [](const nlohmann::json& value) { return value.is_number_integer(); });
  for (const char* key : {"is_complete", "has_failed"})
    check(key, [](const nlohmann::json& value) { return value.is_boolean(); });
}

// What a build that was killed while it left its folder has left of it.
void remove_left_folders(const fs::path& folder) {
  const std::string begin = folder.filename().string() + std::string(kLeftFolder);
  const fs::path parent = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  std::error_code error;
  for (fs::directory_iterator entry(parent, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    std::error_code ignored;
    if (entry->path().filename().string().starts_with(begin)) fs::remove_all(entry->path(), ignored);
  }
}

}  // namespace

fs::path with_ending(const fs::path& stem, const char* ending) {
  return stem.string() + ending;
}

OutputNames::OutputNames(const std::string& output, std::int64_t shard, std::int64_t shards) {
  if (output.empty()) throw UserError("--output: a folder or the beginning of a name is expected");
  const fs::path path = output;
  const bool is_within = output.ends_with('/') || is_folder(path);
  folder_ = is_within ? path : path.has_parent_path() ? path.parent_path() : fs::path(".");
  base_ = is_within ? "" : path.filename().string();
  ending_ = shard_ending(shard, shards);
}

std::string OutputNames::name(const std::string& part) const {
  if (base_.empty()) return part.empty() ? "corpus" : part;
  return part.empty() ? base_ : base_ + "-" + part;
}

std::uint64_t pair_hash(const fs::path& stem) {
  const std::array<fs::path, 2> files = {with_ending(stem, ".bin"), with_ending(stem, ".idx")};
  return hash_of_files(files);
}

bool is_record_of(const nlohmann::json& record, const BuildId& id) {
  return record.value("build", "") == to_hex(id.hash) && record.value("shard", std::int64_t{-1}) == id.shard &&
         record.value("shards", std::int64_t{-1}) == id.shards;
}

std::optional<nlohmann::json> build_record(const fs::path& stem) {
  const fs::path path = with_ending(stem, kRecordEnding);
  if (!path_exists(path)) return std::nullopt;
  nlohmann::json record = read_json_file(path);
  check_record(record, path);
  return record;
}

std::optional<OtherTokenizer> other_tokenizer(const fs::path& token_file, const Tokenizer& tokenizer) {
  if (!tokenizer.reads_text()) return std::nullopt;  // ids mean what they did
  fs::path stem = token_file;
  stem.replace_extension();
  std::string name;
  std::string made_with;
  std::int64_t vocab = 0;
  std::string ids;  // empty: of a build that did not say
  try {
    const std::optional<nlohmann::json> record = build_record(stem);
    if (!record) return std::nullopt;
    const std::string where = with_ending(stem, kRecordEnding).string();
    const nlohmann::json& theirs = json_member(*record, "tokenizer", where);
    name = json_string(theirs, "name", where);
    made_with = json_string(theirs, "description", where);
    vocab = json_integer(theirs, "vocab", where);
    if (theirs.contains("ids")) ids = json_string(theirs, "ids", where);
  } catch (const InputError& error) {  // the tokens are there all the same
    return OtherTokenizer{.text = fmt::format("which tokenizer made {} is not known: {}", token_file.string(),
                                              std::string_view(error.what())),
                          .is_certain = false};
  }
  // Behind that come rules and versions, which change few ids or none.
  const auto content_of = [](const std::string& description) {
    return description.substr(0, description.find(", end of document"));
  };
  const std::string theirs = content_of(made_with);
  const std::string ours = content_of(tokenizer.description());
  if (theirs == ours) return std::nullopt;
  // "bpe HASH, 500 tokens". One may have been added tokens to.
  const auto kind_of = [](const std::string& text) { return text.substr(0, text.find_first_of(" ,")); };
  const bool is_within = vocab >= 0 && vocab <= tokenizer.vocab_size();
  if (!ids.empty() && is_within && ids == to_hex(tokenizer.hash_of_ids(vocab))) return std::nullopt;
  const bool is_certain = !ids.empty() || !is_within || kind_of(theirs) != kind_of(ours);
  return OtherTokenizer{
      fmt::format("{} was made with the tokenizer {} ({}), and this is another file ({}), whose ids {} other tokens",
                  token_file.string(), name, theirs, ours, is_certain ? "mean" : "may mean"),
      is_certain};
}

Workplace::Workplace(const OutputNames& names, const std::vector<std::string>& parts, const BuildId& id)
    : folder_(names.work_folder()), id_(id) {
  for (const std::string& part : parts) stems_.push_back(names.stem(part));
  std::vector<std::string> all = {""};
  all.insert(all.end(), kCorpusParts.begin(), kCorpusParts.end());
  for (const std::string& part : all)
    if (std::find(parts.begin(), parts.end(), part) == parts.end()) other_stems_.push_back(names.stem(part));
}

// A build that ends takes the folder away, maybe between two of these calls: what is locked must be what lies there.
void Workplace::lock() {
  constexpr int attempts = 1000;
  for (int i = 0; i < attempts; ++i) {
    create_folders(folder_);
    const fs::path path = folder_ / "lock";
    lock_ = FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!lock_ && errno == ENOENT) continue;
    if (!lock_) throw_file_error(path, "opening", errno);
    if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      throw UserError(fmt::format("{}: another process builds there now", folder_.string()));
    struct stat locked {};
    struct stat there {};
    if (::fstat(lock_.get(), &locked) == 0 && ::stat(path.c_str(), &there) == 0 && locked.st_ino == there.st_ino &&
        locked.st_dev == there.st_dev)
      return;
  }
  throw InputError(
      fmt::format("{}: the folder vanished {} times in a row while it was locked", folder_.string(), attempts));
}

std::optional<std::vector<nlohmann::json>> Workplace::find_built(bool reads_all) const {
  std::vector<nlohmann::json> records;
  for (const fs::path& stem : stems_) {
    auto record = build_record(stem);
    if (!record || !is_record_of(*record, id_) || !is_whole(stem, *record)) return std::nullopt;
    if (reads_all && to_hex(pair_hash(stem)) != record->value("hash", "")) return std::nullopt;
    records.push_back(std::move(*record));
  }
  return records;
}

std::optional<nlohmann::json> Workplace::enter(bool overwrites) {
  lock();
  remove_left_folders(folder_);
  const fs::path path = folder_ / "state.json";
  std::optional<nlohmann::json> state;
  if (path_exists(path)) {
    state = read_json_file(path);
    check_record(*state, path);
  }
  const bool is_same = state && is_record_of(*state, id_);
  if (state && !is_same && !overwrites && !state->value("has_failed", false))
    throw UserError(
        fmt::format("{}: an unfinished build of other sources, other options or files that have changed "
                    "since; --overwrite throws it away",
                    folder_.string()));
  if (is_same && state->value("is_complete", false)) return state;
  if (!overwrites && !find_built()) refuse_what_is_there();
  return is_same ? state : std::nullopt;
}

void Workplace::save(nlohmann::json state) const {
  state["build"] = to_hex(id_.hash);
  state["shard"] = id_.shard;
  state["shards"] = id_.shards;
  write_file_durably(folder_ / "state.json", state.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void Workplace::note_failure() const {
  const fs::path path = folder_ / "state.json";
  try {
    nlohmann::json state = read_json_file(path);
    state["has_failed"] = true;
    write_file_durably(path, state.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } catch (const InputError&) {  // what the build has ended by is told, not this
  }
}

void Workplace::publish(bool overwrites) {
  for (std::size_t i = 0; i < stems_.size(); ++i) {
    const fs::path from = stem_within(i);
    // The record is the last to be renamed: while it is here, so may be others of the output.
    if (!path_exists(with_ending(from, kRecordEnding))) continue;
    std::error_code ignored;
    if (path_exists(with_ending(from, ".bin"))) {
      // Never tokens of one build with the index of another.
      fs::remove(with_ending(stems_[i], kRecordEnding), ignored);
      fs::remove(with_ending(stems_[i], ".idx"), ignored);
      rename_durably(with_ending(from, ".bin"), with_ending(stems_[i], ".bin"));
    }
    if (path_exists(with_ending(from, ".idx")))
      rename_durably(with_ending(from, ".idx"), with_ending(stems_[i], ".idx"));
    rename_durably(with_ending(from, kRecordEnding), with_ending(stems_[i], kRecordEnding));
  }
  if (overwrites) remove_others();
  leave();
}

bool Workplace::has_others() const {
  return std::any_of(other_stems_.begin(), other_stems_.end(),
                     [](const fs::path& other) { return path_exists(with_ending(other, kRecordEnding)); });
}

void Workplace::remove_others() {
  for (const fs::path& other : other_stems_) {
    std::error_code ignored;
    if (!path_exists(with_ending(other, kRecordEnding))) continue;  // not of a build
    for (const char* const ending : {".bin", ".idx", kRecordEnding}) fs::remove(with_ending(other, ending), ignored);
  }
}

// Under another name first: whoever begins meanwhile makes a folder of their own, of which nothing is removed.
void Workplace::leave() {
  std::error_code error;
  const fs::path left = folder_.string() + std::string(kLeftFolder) + random_id();
  fs::rename(folder_, left, error);
  fs::remove_all(error ? folder_ : left, error);
  lock_ = {};
}

void Workplace::refuse_what_is_there() {
  for (const fs::path& stem : stems_)
    for (const char* ending : {".bin", ".idx", kRecordEnding})
      if (const fs::path path = with_ending(stem, ending); path_exists(path)) {
        if (!path_exists(folder_ / "state.json")) leave();
        throw UserError(
            fmt::format("{}: is there, and was not made by this build of these files; --overwrite "
                        "replaces it, or name another --output",
                        path.string()));
      }
}

std::vector<CorpusOutput> outputs_of(const Workplace& work, const std::vector<std::string>& parts,
                                     const std::vector<nlohmann::json>& records) {
  std::vector<CorpusOutput> outputs;
  for (std::size_t i = 0; i < parts.size(); ++i)
    outputs.push_back({parts[i], work.stem(i), json_integer(records[i], "documents", "a record"),
                       json_integer(records[i], "tokens", "a record")});
  return outputs;
}

}  // namespace scaletrain
