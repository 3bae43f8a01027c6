#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "data/corpus/corpus_build.h"
#include "data/corpus/corpus_output.h"
#include "data/corpus/megatron_writer.h"
#include "data/tokens/token_file.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// NAME-00003-of-00008.build.json: 8. Nothing for other names.
std::optional<std::int64_t> shards_in_name(std::string_view file, std::string_view name) {
  if (!file.starts_with(name) || !file.ends_with(kRecordEnding)) return std::nullopt;
  file.remove_prefix(name.size());
  file.remove_suffix(std::string_view(kRecordEnding).size());
  constexpr std::size_t digits = 5;
  constexpr std::string_view of = "-of-";
  if (file.size() < 1 + digits + of.size() + digits || file[0] != '-' || file.substr(1 + digits, of.size()) != of)
    return std::nullopt;
  const std::string_view number = file.substr(1 + digits + of.size());
  std::int64_t shards = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), shards);
  if (error != std::errc() || end != number.data() + number.size() || shards < 2) return std::nullopt;
  return shards;
}

struct FoundShards {
  std::vector<std::string> parts;
  std::int64_t shards = 0;
};

FoundShards find_shards(const OutputNames& names) {
  FoundShards found;
  std::set<std::int64_t> numbers;
  std::vector<std::string> parts = {""};
  parts.insert(parts.end(), kCorpusParts.begin(), kCorpusParts.end());
  for (const std::string& part : parts) {
    bool is_there = false;
    std::error_code error;
    for (fs::directory_iterator entry(names.folder(), error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
      if (const auto shards = shards_in_name(entry->path().filename().string(), names.name(part))) {
        numbers.insert(*shards);
        is_there = true;
      }
    }
    if (is_there) found.parts.push_back(part);
  }
  const std::string where = (names.folder() / names.name("")).string();
  if (numbers.empty())
    throw UserError(fmt::format("{}: no shard is there, which `scaletrain data build --shard 0/N` writes", where));
  if (numbers.size() > 1)
    throw UserError(fmt::format("{}: shards of builds with {} shards are there; remove those that are not meant", where,
                                fmt::join(numbers, " and ")));
  found.shards = *numbers.begin();
  return found;
}

// The records of a part's shards, which must be those of one build.
std::vector<nlohmann::json> records_of(const std::string& output, const std::string& part, std::int64_t shards) {
  std::vector<nlohmann::json> records;
  std::vector<std::int64_t> missing;
  for (std::int64_t shard = 0; shard < shards; ++shard) {
    const fs::path stem = OutputNames(output, shard, shards).stem(part);
    if (auto record = build_record(stem)) {
      if (!records.empty() && record->value("build", "") != records.front().value("build", ""))
        throw InputError(
            fmt::format("{}: of another build than the first shard: other sources, options or files that "
                        "have changed; build it again",
                        stem.string()));
      records.push_back(std::move(*record));
    } else {
      missing.push_back(shard);
    }
  }
  if (!missing.empty())
    throw InputError(fmt::format("{}: of {} shards {} missing: {}; build them first", output, shards,
                                 missing.size() == 1 ? "one is" : fmt::format("{} are", missing.size()),
                                 fmt::join(missing, ", ")));
  return records;
}

void append_file(const TokenFile& file, std::int64_t vocab, MegatronWriter& writer) {
  constexpr std::int64_t most = 1 << 20;
  std::vector<std::int32_t> tokens;
  std::int64_t done = 0;
  for (std::int64_t document = 0; document < file.num_documents(); ++document) {
    for (const std::int64_t end = file.document_end(document); done < end;) {
      tokens.resize(static_cast<std::size_t>(std::min(most, end - done)));
      file.read(done, tokens, vocab);
      writer.append(tokens);
      done += std::ssize(tokens);
    }
    writer.end_document();
  }
}

// Shards may be of bad records alone; all of them together may not, as a build without shards may not.
void refuse_nothing_left(const std::string& output, const std::vector<std::vector<nlohmann::json>>& records,
                         const TextNotes& notes) {
  for (const auto& part : records)
    for (const nlohmann::json& record : part)
      if (json_integer(record, "documents", output) > 0) return;
  if (notes.num_skipped() == 0) return;
  throw InputError(
      fmt::format("{}: nothing is left to build: no shard holds a document: {}; a shard that is built without "
                  "--on-bad-record skip names the first record with what is wrong with it",
                  output, notes.lines("sources").front()));
}

}  // namespace

std::vector<fs::path> shards_beside_merged(const std::vector<fs::path>& files) {
  constexpr std::size_t ending = std::string_view("-00003-of-00008.bin").size();
  std::vector<fs::path> shards;
  for (const fs::path& file : files) {
    const std::string text = file.string();
    if (text.size() <= ending) continue;
    const fs::path merged = text.substr(0, text.size() - ending) + ".bin";
    const std::string record = file.stem().string() + kRecordEnding;
    if (!shards_in_name(record, merged.stem().string())) continue;
    if (std::find(files.begin(), files.end(), merged) == files.end()) continue;
    try {
      const auto of_shard = build_record(text.substr(0, text.size() - 4));
      const auto of_merged = build_record(merged.string().substr(0, merged.string().size() - 4));
      if (of_shard && of_merged && of_shard->value("build", "") == of_merged->value("build", "-"))
        shards.push_back(file);
    } catch (const InputError&) {  // a record that cannot be read says nothing
    }
  }
  return shards;
}

CorpusResult merge_corpus(const std::string& output, bool overwrites) {
  const OutputNames names(output, 0, 1);
  const FoundShards found = find_shards(names);
  std::vector<std::vector<nlohmann::json>> records;
  for (const std::string& part : found.parts) records.push_back(records_of(output, part, found.shards));
  for (std::size_t i = 0; i < records.size(); ++i)
    if (records[i].front().at("build") != records.front().front().at("build"))
      throw InputError(fmt::format("{}: of another build than {}: remove what is not meant, or build it again",
                                   names.stem(found.parts[i]).string(), names.stem(found.parts.front()).string()));
  CorpusResult result;
  for (const nlohmann::json& record : records.front())
    result.notes.add(TextNotes::from_json(json_member(record, "notes", output), output));
  refuse_nothing_left(output, records, result.notes);
  const BuildId id{.hash = json_hash(records.front().front(), "build", output), .shard = 0, .shards = 1};
  Workplace work(names, found.parts, id);
  if (const auto built = work.find_built(overwrites)) {
    result.was_there = true;
    result.outputs = outputs_of(work, found.parts, *built);
    result.notes = TextNotes::from_json(json_member(built->front(), "notes", output), output);
    return result;
  }
  const auto state = work.enter(overwrites);
  if (state && state->value("is_complete", false)) {
    work.publish(overwrites);
    return merge_corpus(output, overwrites);
  }
  std::vector<nlohmann::json> merged;
  for (std::size_t i = 0; i < found.parts.size(); ++i) {
    nlohmann::json record = records[i].front();
    const std::int64_t vocab = json_integer(json_member(record, "tokenizer", output), "vocab", output);
    MegatronWriter writer(work.stem_within(i), megatron_token_type(vocab), {});
    for (std::int64_t shard = 0; shard < found.shards; ++shard) {
      const fs::path stem = OutputNames(output, shard, found.shards).stem(found.parts[i]);
      const nlohmann::json& of_shard = records[i][static_cast<std::size_t>(shard)];
      if (pair_hash(stem) != json_hash(of_shard, "hash", stem.string()))
        throw InputError(stem.string() + ": its .bin or .idx is not what was built; build the shard again");
      append_file(*open_token_file(stem), vocab, writer);
    }
    writer.finish();
    record["shard"] = 0;
    record["shards"] = 1;
    record["documents"] = writer.extent().documents;
    record["tokens"] = writer.extent().tokens;
    record["hash"] = to_hex(pair_hash(work.stem_within(i)));
    record["notes"] = result.notes.to_json();
    write_file_durably(with_ending(work.stem_within(i), kRecordEnding),
                       record.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    merged.push_back(std::move(record));
  }
  result.outputs = outputs_of(work, found.parts, merged);
  work.save({{"is_complete", true}, {"notes", result.notes.to_json()}});
  work.publish(overwrites);
  return result;
}

}  // namespace scaletrain
