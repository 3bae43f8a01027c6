#include "data/corpus/corpus_build.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "data/corpus/corpus_output.h"
#include "data/corpus/corpus_reader.h"
#include "data/corpus/megatron_writer.h"
#include "data/source_files.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// Changes when the same files would give other tokens, documents or parts.
constexpr std::uint64_t kCorpusRules = 1;

// Of the parts with a share.
std::vector<std::string> parts_of_split(const std::vector<double>& split) {
  if (split.empty()) return {""};
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < split.size(); ++i)
    if (split[i] > 0.0) parts.emplace_back(kCorpusParts.at(i));
  return parts;
}
std::vector<double> split_shares(const std::vector<double>& split) {
  if (split.empty()) return {1.0};
  std::vector<double> shares;
  std::copy_if(split.begin(), split.end(), std::back_inserter(shares), [](double share) { return share > 0.0; });
  return shares;
}

// The files of all sources, one after the other.
TextSource find_text(const CorpusRequest& request) {
  TextSource text{.files = {},
                  .field = request.field,
                  .separator = request.separator,
                  .on_bad_record = request.on_bad_record,
                  .skip_setting = kSkipOption};
  std::vector<FoundFile> all;
  for (const std::string& path : request.sources) {
    const SourceSpec spec{
        .key = "SOURCES", .path = path, .type = request.type, .field = request.field, .separator = {}};
    for (const FoundFile& file : find_files(spec, request.report)) {
      if (file.kind == FileKind::tokens)
        throw UserError(fmt::format("{}: {} holds tokens already: train on it as it is, or name text and JSONL alone",
                                    path, file.path.string()));
      all.push_back(file);
      text.files.push_back(text_file(file));
    }
  }
  check_options_are_used(request.separator, request.field, all);
  return text;
}

// What makes two builds the same but for their shards. Times stand for the content of files that may be terabytes.
std::uint64_t request_hash(const CorpusRequest& request, const TextSource& text) {
  Hasher hasher;
  const auto add = [&hasher](std::uint64_t number) { hasher.update(std::as_bytes(std::span(&number, 1))); };
  for (const std::uint64_t number :
       {kCorpusRules, request.tokenizer->hash(), std::uint64_t{request.appends_end}, hash_text(text.field),
        std::uint64_t{text.separator.has_value()}, hash_text(text.separator.value_or("")),
        static_cast<std::uint64_t>(text.on_bad_record), std::uint64_t{text.files.size()},
        std::uint64_t{request.split.size()}})
    add(number);
  for (const double share : request.split) hasher.update(std::as_bytes(std::span(&share, 1)));
  for (const TextFile& file : text.files) {
    const FileStamp stamp = stamp_of(file.path);
    for (const std::uint64_t number :
         {hash_text(fs::absolute(file.path).lexically_normal().string()), static_cast<std::uint64_t>(file.kind),
          static_cast<std::uint64_t>(file.compression), stamp.bytes, static_cast<std::uint64_t>(stamp.modified)})
      add(number);
  }
  return hasher.digest();
}

// What NAME.build.json will say; nothing of time, host or threads.
nlohmann::json record_of(const CorpusRequest& request, std::uint64_t hash, const CorpusOutput& output,
                         std::uint64_t content, const TextNotes& notes) {
  const Tokenizer& tokenizer = *request.tokenizer;
  nlohmann::json end;
  if (request.appends_end && tokenizer.end_of_document()) end = *tokenizer.end_of_document();
  const TokenType type = megatron_token_type(tokenizer.vocab_size());
  return {{"version", 1},
          {"build", to_hex(hash)},
          {"shard", request.shard},
          {"shards", request.shards},
          {"sources", request.sources},
          {"part", output.part},
          {"split", request.split},
          {"documents", output.documents},
          {"tokens", output.tokens},
          {"dtype", token_type_name(type)},
          {"hash", to_hex(content)},
          {"tokenizer",
           {{"name", request.tokenizer_name},
            {"description", tokenizer.description()},
            {"vocab", tokenizer.vocab_size()},
            {"ids", to_hex(tokenizer.hash_of_ids(tokenizer.vocab_size()))},
            {"end_of_document", end}}},
          {"notes", notes.to_json()}};
}

nlohmann::json to_json(const MegatronWriter::Extent& extent) {
  return {extent.tokens, extent.documents, extent.open_tokens};
}

MegatronWriter::Extent extent_from(const nlohmann::json& value, const std::string& where) {
  if (!value.is_array() || value.size() != 3) throw InputError(where + ": three numbers are expected");
  return {value[0].get<std::int64_t>(), value[1].get<std::int64_t>(), value[2].get<std::int64_t>()};
}

// One build, from its beginning or its record to files that only need their names.
class Build {
 public:
  Build(const CorpusRequest& request, const TextSource& text, std::uint64_t hash, Workplace& work)
      : request_(request),
        text_(text),
        hash_(hash),
        work_(work),
        parts_(parts_of_split(request.split)),
        rules_{text, *request.tokenizer, split_shares(request.split), request.appends_end},
        pieces_(pieces_of_shard(text, request.shard, request.shards)),
        place_(first_place(pieces_)) {
    for (const CorpusPiece& piece : pieces_) {
      const std::uint64_t size = stamp_of(text.files[piece.file].path).bytes;
      all_bytes_ += std::min(size, piece.range.end) - piece.range.begin;
    }
  }

  // False: what the state speaks of is not there, and it has begun anew.
  bool run(const std::optional<nlohmann::json>& state) {
    const bool goes_on = state && is_there(*state);
    open_writers(goes_on ? state : std::nullopt);
    if (!goes_on) save();
    const CorpusPlace from = place_;
    tokenise_corpus({.rules = rules_,
                     .pieces = pieces_,
                     .from = from,
                     .threads = request_.threads,
                     .write = [this](CorpusBatch& batch) { write(batch); }});
    finish();
    return goes_on;
  }

  const std::vector<nlohmann::json>& records() const { return records_; }
  const TextNotes& notes() const { return notes_; }

 private:
  // Whether the files are as long as the state says: a crash of the host, or somebody, may have cut them.
  bool is_there(const nlohmann::json& state) const {
    const std::string where = "state.json";
    const nlohmann::json& outputs = json_member(state, "outputs", where);
    const TokenType type = megatron_token_type(request_.tokenizer->vocab_size());
    for (std::size_t i = 0; i < parts_.size() && i < outputs.size(); ++i)
      if (!MegatronWriter::is_there(work_.stem_within(i), type, extent_from(outputs[i], where))) return false;
    return true;
  }

  void open_writers(const std::optional<nlohmann::json>& state) {
    const std::string where = "state.json";
    if (state) {
      place_ = CorpusPlace::from_json(json_member(*state, "place", where), where);
      notes_ = TextNotes::from_json(json_member(*state, "notes", where), where);
      if (json_member(*state, "outputs", where).size() != parts_.size())
        throw InputError(where + ": it speaks of other outputs");
    }
    const TokenType type = megatron_token_type(request_.tokenizer->vocab_size());
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const auto extent = state ? extent_from((*state)["outputs"][i], where) : MegatronWriter::Extent{};
      writers_.push_back(std::make_unique<MegatronWriter>(work_.stem_within(i), type, extent));
    }
  }

  void write(CorpusBatch& batch) {
    std::size_t begin = 0;
    for (const CorpusBatch::Run& run : batch.runs) {
      writers_[run.part]->append(std::span(batch.tokens).subspan(begin, run.end - begin));
      if (run.ends_document) writers_[run.part]->end_document();
      begin = run.end;
    }
    notes_.add(batch.notes);
    place_ = batch.next;
    if (request_.progress) request_.progress(batch.bytes_read, all_bytes_);
    if (batch.can_go_on && seconds_since(saved_) >= until_next_save_) save();
  }

  void save() {
    // On a slow disk seldom enough that the build takes no twentieth longer for it.
    constexpr double least_ratio = 20.0;
    const MonotonicTime begin = monotonic_now();
    nlohmann::json extents = nlohmann::json::array();
    for (const auto& writer : writers_) extents.push_back(to_json(writer->sync()));
    work_.save(
        {{"is_complete", false}, {"place", place_.to_json()}, {"notes", notes_.to_json()}, {"outputs", extents}});
    saved_ = monotonic_now();
    const double least = request_.record_seconds;
    until_next_save_ = least > 0.0 ? std::max(least, least_ratio * seconds_since(begin)) : 0.0;
  }

  void finish() {
    if (request_hash(request_, text_) != hash_)
      throw InputError("a source has changed while it was read; start again when it is complete, with --overwrite");
    refuse_nothing_left();
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      writers_[i]->finish();
      const MegatronWriter::Extent& extent = writers_[i]->extent();
      records_.push_back(record_of(request_, hash_, {parts_[i], work_.stem(i), extent.documents, extent.tokens},
                                   pair_hash(work_.stem_within(i)), notes_));
      write_file_durably(with_ending(work_.stem_within(i), kRecordEnding),
                         records_.back().dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    }
    work_.save({{"is_complete", true}, {"notes", notes_.to_json()}});
  }

  // A shard may be of bad records alone; the whole may not.
  void refuse_nothing_left() const {
    const bool is_empty = std::all_of(writers_.begin(), writers_.end(),
                                      [](const auto& writer) { return writer->extent().documents == 0; });
    if (!is_empty || notes_.num_skipped() == 0 || request_.shards > 1) return;
    throw InputError(
        fmt::format("SOURCES: nothing is left to build: {}; without --on-bad-record skip the first record "
                    "is named with what is wrong with it",
                    notes_.lines("sources").front()));
  }

  const CorpusRequest& request_;
  const TextSource& text_;
  std::uint64_t hash_;
  Workplace& work_;
  std::vector<std::string> parts_;
  CorpusRules rules_;
  std::vector<CorpusPiece> pieces_;
  CorpusPlace place_;
  TextNotes notes_;
  std::vector<std::unique_ptr<MegatronWriter>> writers_;
  std::vector<nlohmann::json> records_;
  std::uint64_t all_bytes_ = 0;
  MonotonicTime saved_ = monotonic_now();
  double until_next_save_ = 0.0;  // seconds
};

void check_request(const CorpusRequest& request) {
  SCALETRAIN_CHECK(request.tokenizer != nullptr && request.threads > 0);
  if (request.sources.empty()) throw UserError("SOURCES: name what to read: files, folders or patterns");
  if (request.shards < 1 || request.shard < 0 || request.shard >= request.shards)
    throw UserError(fmt::format("--shard: {}/{} is none: shards are numbered from 0 to their number less one",
                                request.shard, request.shards));
  if (request.split.size() > kCorpusParts.size())
    throw UserError("--split: at most three shares are expected, of train, validation and test");
}

}  // namespace

CorpusResult build_corpus(const CorpusRequest& request) {
  check_request(request);
  const OutputNames names(request.output, request.shard, request.shards);
  const TextSource text = find_text(request);
  const std::vector<std::string> parts = parts_of_split(request.split);
  const std::uint64_t hash = request_hash(request, text);
  Workplace work(names, parts, {hash, request.shard, request.shards});
  CorpusResult result;
  const auto tell_built = [&](const std::vector<nlohmann::json>& built) {
    result.was_there = true;
    result.outputs = outputs_of(work, parts, built);
    result.notes = TextNotes::from_json(json_member(built.front(), "notes", "a record"), "a record");
    return result;
  };
  if (const auto built = work.find_built(request.overwrites)) {
    const bool leaves_others = request.overwrites && work.has_others();
    if (leaves_others || path_exists(names.work_folder())) {
      work.enter(true);
      if (leaves_others) work.remove_others();
      work.leave();
    }
    return tell_built(*built);
  }
  create_folders(names.folder());
  const std::optional<nlohmann::json> state = work.enter(request.overwrites);
  result.went_on = state.has_value();
  // Another process may have ended the same build since the first look.
  if (const auto built = state || request.overwrites ? std::nullopt : work.find_built()) {
    work.leave();
    return tell_built(*built);
  }
  if (state && state->value("is_complete", false)) {
    work.publish(request.overwrites);
    const auto built = work.find_built();
    if (!built) throw InputError(names.work_folder().string() + ": what was complete there is not; use --overwrite");
    result.outputs = outputs_of(work, parts, *built);
    result.notes = TextNotes::from_json(json_member(*state, "notes", "state.json"), "state.json");
    return result;
  }
  Build build(request, text, hash, work);
  try {
    result.went_on = build.run(state);
    if (state && !result.went_on && request.report)
      request.report(names.work_folder().string() + ": what an earlier build has left there was cut: built anew");
  } catch (const FileAccessError&) {
    throw;  // once the disk has room, say, it goes on
  } catch (const InputError&) {
    work.note_failure();
    throw;
  }
  result.outputs = outputs_of(work, parts, build.records());
  result.notes = build.notes();
  work.publish(request.overwrites);
  return result;
}

}  // namespace scaletrain
