#include "checkpoint/save/save_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"

namespace scaletrain {

namespace {

using nlohmann::json;

constexpr std::size_t hash_digits = 16;
// The other ranks wait longer than rank 0: after the last report it still has the manifest to write.
constexpr double result_deadlines = 2.0;
// JSON is UTF-8, and a path in a message may not be.
constexpr auto replace_invalid = json::error_handler_t::replace;

std::string failure_text(const SaveFailure& failure) {
  return json{{"error", failure.text}, {"no_space", failure.no_space}}.dump(-1, ' ', false, replace_invalid);
}

SaveFailure parse_failure(const json& value, const std::string& where) {
  return {.text = json_string(value, "error", where),
          .no_space = value.contains("no_space") && value["no_space"] == true};
}

std::string report_text(const SaveReport& report) {
  if (!report.failure.text.empty()) return failure_text(report.failure);
  json files = json::array();
  for (const ManifestFile& file : report.files) {
    std::string hashes;
    hashes.reserve(file.block_hashes.size() * hash_digits);
    for (const std::uint64_t hash : file.block_hashes) hashes += to_hex(hash);
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"block_hashes", std::move(hashes)}});
  }
  return json{{"files", std::move(files)}}.dump();
}

SaveReport parse_report(const std::string& text, const std::string& where) {
  const json value = parse_json(text, where);
  SaveReport report;
  if (value.is_object() && value.contains("error")) {
    report.failure = parse_failure(value, where);
    return report;
  }
  const json& files = json_member(value, "files", where);
  if (!files.is_array()) throw InputError(where + ": \"files\" is not an array");
  for (const json& item : files) {
    ManifestFile file;
    file.name = json_string(item, "name", where);
    file.bytes = json_unsigned(item, "bytes", where);
    const std::string hashes = json_string(item, "block_hashes", where);
    file.block_hashes.resize(hashes.size() / hash_digits);
    for (std::size_t block = 0; block < file.block_hashes.size(); ++block) {
      if (!from_hex(std::string_view(hashes).substr(block * hash_digits, hash_digits), file.block_hashes[block]))
        throw InputError(where + ": a hash is not hexadecimal");
    }
    report.files.push_back(std::move(file));
  }
  return report;
}

}  // namespace

void throw_failure(const SaveFailure& failure) {
  if (failure.no_space) throw NoSpaceError(failure.text);
  throw InputError(failure.text);
}

SaveExchange::SaveExchange(const SaveGroup& group, std::int64_t generation, std::int64_t step)
    : group_(group), prefix_(fmt::format("save/{}/{}/{}/", generation, step, group.attempt)), start_(monotonic_now()) {}

void SaveExchange::begin(const std::string& save_id) {
  group_.store->set(key("begin"), json{{"save_id", save_id}}.dump());
}

std::vector<SaveReport> SaveExchange::collect() {
  std::vector<SaveReport> reports(static_cast<std::size_t>(group_.world));
  for (std::int64_t rank = 1; rank < group_.world; ++rank) {
    const std::string name = key(fmt::format("report/{}", rank));
    SaveReport& report = reports[static_cast<std::size_t>(rank)];
    const double left = std::max(0.0, group_.deadline - seconds_since(start_));
    const std::optional<std::string> text = group_.store->find_within(name, left);
    if (!text) {
      report.failure.text = fmt::format("no report within {}: it is dead or stuck", duration_text(group_.deadline));
      continue;
    }
    try {
      report = parse_report(*text, fmt::format("the report of rank {}", rank));
    } catch (const InputError& error) {
      report.failure.text = error.what();
    }
    group_.store->remove(name);
  }
  return reports;
}

void SaveExchange::publish(const SaveResult& result) {
  const json value = {{"error", ""}, {"save_id", result.save_id}, {"bytes", result.bytes}, {"seconds", result.seconds}};
  group_.store->set(key("result"), value.dump());
  has_read(false);
}

void SaveExchange::publish_failure(const SaveFailure& failure) {
  group_.store->set(key("result"), failure_text(failure));
  group_.store->set(key("begin"), json{{"save_id", ""}}.dump());
  has_read(true);
}

std::string SaveExchange::wait_for_begin() {
  // The result is there before this rank came: the others gave it up.
  if (group_.store->find(key("result"))) wait_for_result();
  const std::string where = "what rank 0 says about the save";
  const json value = parse_json(group_.store->wait(key("begin"), group_.deadline), where);
  std::string save_id = json_string(value, "save_id", where);
  if (save_id.empty()) wait_for_result();
  return save_id;
}

void SaveExchange::report(const SaveReport& report) {
  group_.store->set(key(fmt::format("report/{}", group_.rank.value())), report_text(report));
}

SaveResult SaveExchange::wait_for_result() {
  const std::string where = "what rank 0 says about the save";
  const json value = parse_json(group_.store->wait(key("result"), result_deadlines * group_.deadline), where);
  const SaveFailure failure = parse_failure(value, where);
  has_read(!failure.text.empty());
  if (!failure.text.empty()) throw_failure(failure);
  return {.path = {},
          .save_id = json_string(value, "save_id", where),
          .bytes = json_unsigned(value, "bytes", where),
          .seconds = json_number(value, "seconds", where)};
}

void SaveExchange::leave() {
  has_read(true);
}

void SaveExchange::has_read(bool failed) {
  if (group_.store->add(key("read"), 1) < group_.world) return;
  for (const char* name : {"begin", "result", "read"}) group_.store->remove(key(name));
  // A rank that was too late for the others may have reported after all.
  if (!failed) return;
  for (std::int64_t rank = 1; rank < group_.world; ++rank) group_.store->remove(key(fmt::format("report/{}", rank)));
}

}  // namespace scaletrain
