#include "train/data/data_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "host/machine.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t named_files = 100;  // of a source
// Bytes of all files and caches that are named: with as much of holds (most_holds) half of what the store takes as one
// value, which leaves the rest to the sources themselves.
constexpr std::size_t most_named_bytes = std::size_t{4} << 20;
constexpr std::size_t told_sources = 3;
// Of how many files the others are told what each holds. For more they look into the record of what was read.
constexpr std::size_t most_holds = std::size_t{1} << 18;
constexpr std::uint64_t largest_claim = 16 << 20;
// Of one source: it has one for each time that files joined it.
constexpr std::size_t most_caches = 1024;
// Far more than a config holds, and than a path or a host's name may have.
constexpr std::size_t most_sources = std::size_t{1} << 16;
constexpr std::size_t most_path_bytes = std::size_t{1} << 15;
constexpr std::size_t most_name_bytes = 1024;

std::string text_from(const nlohmann::json& object, const char* key, std::size_t most, const std::string& where) {
  std::string text = json_string(object, key, where);
  if (text.size() > most)
    throw InputError(fmt::format("{}: {}: {} bytes, at most {} are expected", where, key, text.size(), most));
  return text;
}

const nlohmann::json& list_from(const nlohmann::json& object, const char* key, std::size_t most,
                                const std::string& where) {
  const nlohmann::json& list = json_member(object, key, where);
  if (!list.is_array()) throw InputError(fmt::format("{}: {}: a list is expected", where, key));
  if (list.size() > most)
    throw InputError(fmt::format("{}: {}: {} entries, at most {} are expected", where, key, list.size(), most));
  return list;
}

FileContent parse_file(const nlohmann::json& object, const std::string& where) {
  return {text_from(object, "path", most_path_bytes, where), json_unsigned(object, "bytes", where),
          json_hash(object, "hash", where)};
}

SourceContent parse_source(const nlohmann::json& object, const std::string& where) {
  SourceContent source;
  source.key = text_from(object, "key", most_name_bytes, where);
  source.path = text_from(object, "path", most_path_bytes, where);
  source.tokens = json_integer(object, "tokens", where);
  source.identity = json_hash(object, "identity", where);
  source.all_bytes = json_hash(object, "all_bytes", where);
  source.stamps = json_hash(object, "stamps", where);
  if (!from_hex(text_from(object, "holds", 16 * most_holds, where), source.holds))
    throw InputError(where + ": holds: numbers of 16 hexadecimal digits are expected");
  for (const auto& cache : list_from(object, "caches", most_caches, where))
    source.caches.push_back({text_from(cache, "path", most_path_bytes, where), json_hash(cache, "identity", where)});
  for (const auto& file : list_from(object, "files", named_files, where))
    source.files.push_back(parse_file(file, where));
  source.has_all_files = json_bool(object, "has_all_files", where);
  return source;
}

// By name; only what both sides have named of as many files as both have.
std::string file_difference(const FileContent& here, const FileContent* there) {
  if (there == nullptr) return fmt::format("{} is there on this host only", here.path.string());
  if (here.bytes != there->bytes)
    return fmt::format("{} has {} here and {} there", here.path.string(), grouped_count(here.bytes, "byte"),
                       grouped_count(there->bytes, "byte"));
  if (here.hash != there->hash)
    return fmt::format("{} has other content ({} both)", here.path.string(), grouped_count(here.bytes, "byte"));
  return "";
}

// The first file that is not the same on both sides, and how many more there are. Empty: none of those that are named.
std::string files_difference(const SourceContent& here, const SourceContent& there) {
  std::map<fs::path, const FileContent*> theirs;
  for (const FileContent& file : there.files) theirs.emplace(file.path, &file);
  std::string first;
  std::size_t count = 0;
  const auto add = [&](const std::string& text) {
    if (text.empty()) return;
    if (count++ == 0) first = text;
  };
  // Where the names are cut, one that is missing may stand behind the cut.
  const bool are_all_named = here.has_all_files && there.has_all_files;
  for (const FileContent& file : here.files) {
    const auto found = theirs.find(file.path);
    if (found == theirs.end() && !are_all_named) continue;
    add(file_difference(file, found == theirs.end() ? nullptr : found->second));
    if (found != theirs.end()) theirs.erase(found);
  }
  if (are_all_named)
    for (const auto& entry : theirs) add(fmt::format("{} is missing on this host", entry.first.string()));
  if (count > 1) first += fmt::format(", and {} more file{}", count - 1, count == 2 ? "" : "s");
  return first;
}

std::string source_difference(const SourceContent& here, const SourceContent& there, bool is_same_tokenizer) {
  if (here.identity == there.identity && here.all_bytes == there.all_bytes) return "";
  if (std::string text = files_difference(here, there); !text.empty())
    return fmt::format("{}: {}", here.key, std::move(text));
  if (!is_same_tokenizer) return "";  // the tokens of the same text are others, then
  return fmt::format("{}: {} holds other tokens ({} here, {} there)", here.key, here.path,
                     grouped_digits(static_cast<std::uint64_t>(here.tokens)),
                     grouped_digits(static_cast<std::uint64_t>(there.tokens)));
}

std::string text_of_json(const nlohmann::json& value) {
  // A path may be any bytes.
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// As many of the first files as may be named; named_bytes: those of all sources so far.
nlohmann::json files_json(const std::vector<FileContent>& files, std::size_t& named_bytes) {
  nlohmann::json out = nlohmann::json::array();
  for (const FileContent& file : files) {
    const nlohmann::json named = {{"path", file.path.string()}, {"bytes", file.bytes}, {"hash", to_hex(file.hash)}};
    const std::size_t bytes = text_of_json(named).size();
    if (out.size() == named_files || named_bytes + bytes > most_named_bytes) break;
    named_bytes += bytes;
    out.push_back(named);
  }
  return out;
}

// All or none, as far as there is room: who is told of none finds them by the record of what was read.
nlohmann::json caches_json(const std::vector<SourceContent::Cache>& caches, std::size_t& named_bytes) {
  nlohmann::json out = nlohmann::json::array();
  if (caches.size() > most_caches) return out;
  for (const SourceContent::Cache& cache : caches)
    out.push_back({{"path", cache.path}, {"identity", to_hex(cache.identity)}});
  const std::size_t bytes = text_of_json(out).size();
  if (named_bytes + bytes > most_named_bytes) return nlohmann::json::array();
  named_bytes += bytes;
  return out;
}

// What only processes of one host need of each other.
DataClaim without_findings(DataClaim claim) {
  for (SourceContent& source : claim.sources) {
    source.holds.clear();
    source.caches.clear();
  }
  return claim;
}

bool is_weights_file(const fs::path& path) {
  return path.extension() == ".safetensors" || path.filename() == "config.json" ||
         path.filename() == "adapter_config.json" || path.filename() == "model.safetensors.index.json";
}

}  // namespace

DataClaim make_data_claim(std::uint64_t tokenizer, std::vector<SourceContent> sources) {
  return {host_name(), tokenizer, std::move(sources)};
}

SourceContent content_of_weights(const std::string& key, const std::string& folder) {
  SourceContent content;
  content.key = key;
  content.path = folder;
  std::vector<fs::path> files;
  std::error_code error;
  // What is wrong with the folder itself is told by whoever loads it.
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator(); entry.increment(error))
    if (is_weights_file(entry->path())) files.push_back(entry->path());
  std::sort(files.begin(), files.end());
  Hasher hasher;
  for (const fs::path& file : files) {
    content.files.push_back(sampled_content_of(file));
    const std::array<std::uint64_t, 3> numbers = {hash_text(file.filename().string()), content.files.back().bytes,
                                                  content.files.back().hash};
    hasher.update(std::as_bytes(std::span(numbers)));
  }
  content.identity = hasher.digest();
  return content;
}

SourceContent content_of_task(const std::string& key, const std::string& path, const ChoiceTask& task) {
  SourceContent content;
  content.key = key;
  content.path = path;
  content.identity = task.hash();
  return content;
}

std::string claim_text(const DataClaim& claim) {
  nlohmann::json sources = nlohmann::json::array();
  std::size_t num_holds = 0;
  std::size_t named_bytes = 0;
  for (const SourceContent& source : claim.sources) {
    nlohmann::json caches = caches_json(source.caches, named_bytes);
    const nlohmann::json files = files_json(source.files, named_bytes);
    const bool has_room = num_holds + source.holds.size() <= most_holds;
    if (has_room) num_holds += source.holds.size();
    sources.push_back({{"key", source.key},
                       {"path", source.path},
                       {"tokens", source.tokens},
                       {"identity", to_hex(source.identity)},
                       {"all_bytes", to_hex(source.all_bytes)},
                       {"stamps", to_hex(source.stamps)},
                       {"holds", has_room ? to_hex(source.holds) : ""},
                       {"caches", std::move(caches)},
                       {"files", files},
                       {"has_all_files", source.has_all_files && files.size() == source.files.size()}});
  }
  const nlohmann::json object = {
      {"host", claim.host}, {"tokenizer", to_hex(claim.tokenizer)}, {"sources", std::move(sources)}};
  return text_of_json(object);
}

DataClaim parse_claim(const std::string& text) {
  const std::string where = "what another rank says of its data";
  const nlohmann::json object = parse_json(text, where, {.depth = 8, .bytes = largest_claim});
  DataClaim claim;
  claim.host = text_from(object, "host", most_name_bytes, where);
  claim.tokenizer = json_hash(object, "tokenizer", where);
  for (const auto& source : list_from(object, "sources", most_sources, where))
    claim.sources.push_back(parse_source(source, where));
  return claim;
}

std::string data_differences(const DataClaim& here, const DataClaim& there) {
  std::string text;
  std::size_t count = 0;
  const auto add = [&](const std::string& difference) {
    if (difference.empty()) return;
    if (count < told_sources) text += (count > 0 ? "; " : "") + difference;
    ++count;
  };
  const bool is_same_tokenizer = here.tokenizer == there.tokenizer;
  if (!is_same_tokenizer) add("data.tokenizer is another one, or has other files");
  if (here.sources.size() != there.sources.size())
    add(fmt::format("{} sources here and {} there", here.sources.size(), there.sources.size()));
  for (std::size_t i = 0; i < std::min(here.sources.size(), there.sources.size()); ++i)
    add(source_difference(here.sources[i], there.sources[i], is_same_tokenizer));
  if (count > told_sources)
    text += fmt::format("; and {} more of data.train and data.validation", count - told_sources);
  return text;
}

void agree_on_data(StartUp& start_up, Rank rank, const DataClaim& claim) {
  const std::optional<std::string> first =
      start_up.data_of_first(rank == Rank(0) ? claim_text(without_findings(claim)) : "");
  if (!first) return;
  const DataClaim there = parse_claim(*first);
  const std::string differences = data_differences(claim, there);
  if (differences.empty()) return;
  throw InputError(
      fmt::format("rank {} on host {} has other data than rank 0 on host {}: {}. Copy the data again to the host that "
                  "has it wrong, or have all hosts read one file system",
                  rank.value(), claim.host, there.host, differences));
}

}  // namespace scaletrain
