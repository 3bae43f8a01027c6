#include "data/corpus/inspection.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "data/corpus/corpus_build.h"
#include "data/corpus/corpus_output.h"
#include "data/corpus/corpus_reader.h"
#include "data/instructions/instruction_record.h"
#include "data/source_files.h"
#include "data/tokens/packed_file.h"
#include "data/tokens/text_reader.h"
#include "data/tokens/token_file.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// Enough of a document to see what it is.
constexpr std::size_t kShownBytes = 400;
constexpr std::size_t kShownTokens = 64;

// Thrown by a sink that has seen enough.
struct SeenEnough {};

// The beginnings of the first documents.
class FirstDocuments final : public DocumentSink {
 public:
  explicit FirstDocuments(std::int64_t shown) : most_(shown) {}
  void text(std::string_view piece) override {
    is_empty_ = is_empty_ && piece.empty();
    if (beginning_.size() <= kShownBytes) beginning_ += piece.substr(0, kShownBytes + 1 - beginning_.size());
    // A document may be the whole of a large file.
    if (beginning_.size() > kShownBytes && std::ssize(shown_) + 1 >= most_) {
      end_document(0);
      throw SeenEnough();
    }
  }
  void end_document(std::uint64_t) override {
    if (!is_empty_) shown_.push_back(quoted(beginning_, kShownBytes));
    beginning_.clear();
    is_empty_ = true;
    if (std::ssize(shown_) >= most_) throw SeenEnough();
  }
  std::vector<std::string> take_shown() { return std::move(shown_); }

 private:
  std::int64_t most_;
  bool is_empty_ = true;
  std::string beginning_;
  std::vector<std::string> shown_;
};

// The first object of JSONL, without the field: what it is in place of text. Bad lines before it say nothing.
class FirstObject final : public LineSink {
 public:
  explicit FirstObject(const std::string& field) : field_(field) {}
  void line(std::string_view text, const LinePlace&) override {
    const nlohmann::json object = nlohmann::json::parse(text, nullptr, false);
    if (!object.is_object()) return pass_over();
    if (!object.contains(field_)) records_ = instructions_of(object);
    throw SeenEnough();
  }
  void too_long(const LinePlace&, std::uint64_t) override { pass_over(); }
  std::optional<RecordKind> records() const { return records_; }

 private:
  void pass_over() {
    constexpr int most = 100;
    if (++passed_over_ == most) throw SeenEnough();
  }

  int passed_over_ = 0;
  const std::string& field_;
  std::optional<RecordKind> records_;
};

// The first records of instructions, and how many there are.
class RecordCounter final : public LineSink {
 public:
  // read: hears after each line.
  RecordCounter(const TextSource& source, RecordKind records, std::int64_t shown, TextNotes& notes,
                std::function<void()> read)
      : source_(source), records_(records), most_(shown), notes_(notes), read_(std::move(read)) {}

  void line(std::string_view text, const LinePlace& place) override {
    try {
      const InstructionRecord record = parse_instruction(text, records_, line_text(file(), place));
      ++count_;
      if (!has_answer(record)) ++unanswered_;
      if (std::ssize(shown_) < most_) shown_.push_back(text_of(record));
    } catch (const BadRecordError& error) {
      pass_over(error);
    }
    read_();
  }
  void too_long(const LinePlace& place, std::uint64_t) override { pass_over(too_long_line(line_text(file(), place))); }
  std::int64_t count() const { return count_; }
  std::int64_t unanswered() const { return unanswered_; }
  std::vector<std::string> take_shown() { return std::move(shown_); }

 private:
  const TextFile& file() const { return source_.files.front(); }

  void pass_over(const BadRecordError& error) {
    if (source_.on_bad_record == BadRecordPolicy::fail) throw_bad_record(error, source_);
    notes_.add_skipped(error);
  }

  static std::string text_of(const InstructionRecord& record) {
    if (record.messages.empty())
      return fmt::format("prompt {}, completion {}", quoted(record.prompt, kShownBytes),
                         quoted(record.completion, kShownBytes));
    std::vector<std::string> messages;
    messages.reserve(record.messages.size());
    for (const ChatMessage& message : record.messages)
      messages.push_back(fmt::format("{} {}", quoted(message.role, 40), quoted(message.content, kShownBytes)));
    return fmt::format("{}", fmt::join(messages, ", "));
  }

  const TextSource& source_;
  RecordKind records_;
  std::int64_t most_;
  TextNotes& notes_;
  std::function<void()> read_;
  std::int64_t count_ = 0;
  std::int64_t unanswered_ = 0;
  std::vector<std::string> shown_;
};

std::uint64_t bytes_of(const fs::path& file) {
  std::error_code error;
  const auto bytes = fs::file_size(file, error);
  return error ? 0 : std::uint64_t{bytes};
}

// How far all files have been read; tells of it at most every MiB.
class ReadingProgress {
 public:
  ReadingProgress(const std::vector<FoundFile>& files, const InspectionProgress& tell) : tell_(tell) {
    for (const FoundFile& file : files) all_ += bytes_of(file.path);
  }
  // So many bytes of the current file.
  void read(std::uint64_t bytes) {
    constexpr std::uint64_t least = 1u << 20;
    if (!tell_ || before_ + bytes < told_ + least) return;
    told_ = before_ + bytes;
    tell_(std::min(told_, all_), all_);
  }
  void end_file(const FoundFile& file) {
    before_ += bytes_of(file.path);
    if (tell_) tell_(std::min(before_, all_), all_);
  }

 private:
  const InspectionProgress& tell_;
  std::uint64_t all_ = 0;
  std::uint64_t before_ = 0;  // of the files before the current one
  std::uint64_t told_ = 0;
};

class FileInspector {
 public:
  FileInspector(const InspectionOptions& options, TextNotes& notes, ReadingProgress& progress, bool reads_all)
      : options_(options), notes_(notes), progress_(progress), reads_all_(reads_all) {}

  // Fills in what it finds even where it throws then.
  void look_at(const FoundFile& file, InspectedFile& found) {
    if (file.kind == FileKind::tokens) {
      look_at_tokens(file, found);
    } else {
      look_at_text(file, found);
    }
  }

 private:
  void look_at_tokens(const FoundFile& file, InspectedFile& found) {
    found.kind = "token file";
    const auto tokens = open_token_file(file.path, FileCheck::header);
    found.kind = tokens->format();
    found.bytes = 0;
    for (const fs::path& part : tokens->files()) found.bytes += stamp_of(part).bytes;
    found.tokens = tokens->num_tokens();
    if (!tokens->one_document()) found.documents = tokens->num_documents();
    found.dtype = tokens->dtype();
    const auto* const packed = dynamic_cast<const PackedFile*>(tokens.get());
    if (packed != nullptr) found.learned = static_cast<std::int64_t>(packed->counts().learned);
    auto stem = tokens->path();
    stem.replace_extension();
    const std::optional<nlohmann::json> record = build_record(stem);
    std::int64_t vocab = std::numeric_limits<std::int32_t>::max();
    if (record) {
      const std::string where = with_ending(stem, kRecordEnding).string();
      const nlohmann::json& tokenizer = json_member(*record, "tokenizer", where);
      found.tokenizer =
          json_string(tokenizer, "name", where) + " (" + json_string(tokenizer, "description", where) + ")";
      vocab = json_integer(tokenizer, "vocab", where);
      if (reads_all_) compare_with(*record, stem, where, *tokens);
    }
    if (options_.tokenizer != nullptr) {
      vocab = options_.tokenizer->vocab_size();
      if (const auto other = other_tokenizer(tokens->path(), *options_.tokenizer)) {
        if (other->is_certain && reads_all_) throw InputError(other->text);
        if (options_.report) options_.report("notice: " + other->text);
      }
    }
    if (reads_all_) {
      tokens->verify();
      read_all(*tokens, vocab);
    }
    for (std::int64_t d = 0; d < std::min(options_.show, tokens->num_documents()); ++d)
      found.shown.push_back(packed != nullptr ? shown_instruction(*packed, d, vocab)
                                              : shown_document(*tokens, d, vocab));
  }

  static void compare_with(const nlohmann::json& record, const fs::path& stem, const std::string& where,
                           const TokenFile& tokens) {
    if (json_integer(record, "tokens", where) != tokens.num_tokens())
      throw InputError(fmt::format("{}.bin: {} tokens, but {} say {}", stem.string(), tokens.num_tokens(), where,
                                   json_integer(record, "tokens", where)));
    if (json_hash(record, "hash", where) != pair_hash(stem))
      throw InputError(
          fmt::format("{}: its bytes are not those that were built (checksum of {}): it is damaged, or was "
                      "changed; build it again",
                      tokens.path().string(), fs::path(where).filename().string()));
  }

  static void read_all(const TokenFile& tokens, std::int64_t vocab) {
    std::vector<std::int32_t> piece(1u << 20);
    for (std::int64_t done = 0; done < tokens.num_tokens();) {
      const auto part =
          std::span(piece).first(static_cast<std::size_t>(std::min(std::ssize(piece), tokens.num_tokens() - done)));
      tokens.read(done, part, vocab);
      done += std::ssize(part);
    }
  }

  std::string shown_document(const TokenFile& tokens, std::int64_t document, std::int64_t vocab) const {
    const std::int64_t begin = document == 0 ? 0 : tokens.document_end(document - 1);
    const std::int64_t size = tokens.document_end(document) - begin;
    std::vector<std::int32_t> ids(
        static_cast<std::size_t>(std::min<std::int64_t>(size, options_.tokenizer ? kShownBytes : kShownTokens)));
    tokens.read(begin, ids, vocab);
    if (options_.tokenizer != nullptr) return quoted(spelled(ids), kShownBytes);
    return fmt::format("{}{}", fmt::join(ids, " "), std::ssize(ids) < size ? " ..." : "");
  }

  // What the tokens say, special ones by their names.
  std::string spelled(std::span<const std::int32_t> ids) const {
    std::string text;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::string name = options_.tokenizer->special_name(ids[i]);
      if (name.empty()) continue;
      text += options_.tokenizer->decode(ids.subspan(begin, i - begin)) + name;
      begin = i;  // what follows is decoded behind it: some begin otherwise at the beginning of a text
    }
    return text + options_.tokenizer->decode(ids.subspan(begin));
  }

  // What is learned stands in brackets.
  std::string shown_instruction(const PackedFile& packed, std::int64_t document, std::int64_t vocab) const {
    const std::int64_t begin = document == 0 ? 0 : packed.document_end(document - 1);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(packed.document_end(document) - begin));
    std::vector<std::uint8_t> learned(ids.size());
    packed.read(begin, ids, vocab);
    packed.read_learned(begin, learned);
    std::string text;
    for (std::size_t at = 0; at < ids.size();) {
      const auto end = static_cast<std::size_t>(
          std::find(learned.begin() + static_cast<std::ptrdiff_t>(at), learned.end(), learned[at] == 0 ? 1 : 0) -
          learned.begin());
      const auto part = std::span(ids).subspan(at, end - at);
      const std::string said =
          options_.tokenizer != nullptr ? quoted(spelled(part), kShownBytes) : fmt::format("{}", fmt::join(part, " "));
      text += (text.empty() ? "" : " ") + (learned[at] != 0 ? "[" + said + "]" : said);
      at = end;
    }
    return text;
  }

  void look_at_text(const FoundFile& file, InspectedFile& found) {
    const TextFile text = text_file(file);
    found.kind = std::string(file.kind == FileKind::jsonl     ? "JSONL"
                             : file.kind == FileKind::parquet ? "Parquet"
                                                              : "text") +
                 (text.compression == Compression::gzip   ? " in gzip"
                  : text.compression == Compression::zstd ? " in Zstandard"
                                                          : "");
    found.bytes = stamp_of(file.path).bytes;
    if (text.kind == TextKind::jsonl) found.records = records_of(text);
    if (found.records) found.kind += fmt::format(" of {}", noun_of(*found.records));
    const TextSource source{.files = {text},
                            .field = options_.field,
                            .separator = options_.separator,
                            .on_bad_record = options_.on_bad_record,
                            .skip_setting = kSkipOption};
    if (found.records) return look_at_records(source, found);
    if (options_.show > 0) found.shown = first_documents(source);
    count_documents(source, found);
  }

  std::vector<std::string> first_documents(const TextSource& source) const {
    FirstDocuments first(options_.show);
    Hasher hasher;
    TextNotes told_by_the_count;
    try {
      read_documents(source.files.front(), source, first, hasher, told_by_the_count);
    } catch (const SeenEnough&) {
    }
    return first.take_shown();
  }

  // Without a tokenizer bytes are the quickest that there is.
  void count_documents(const TextSource& source, InspectedFile& found) {
    const ByteTokenizer bytes;
    const bool counts_tokens = options_.tokenizer != nullptr && !reads_all_;
    const CorpusRules rules{.source = source, .tokenizer = counts_tokens ? *options_.tokenizer : bytes};
    const std::vector<CorpusPiece> pieces = {{.file = 0, .range = {}}};
    const CorpusPlace from = first_place(pieces);
    // A folder may have many small files, and a machine many processors.
    constexpr std::uint64_t bytes_of_thread = std::uint64_t{4} << 20;
    const int threads = static_cast<int>(
        std::min<std::uint64_t>(static_cast<std::uint64_t>(options_.threads), 1 + found.bytes / bytes_of_thread));
    std::int64_t documents = 0;
    std::int64_t tokens = 0;
    std::uint64_t characters = 0;
    tokenise_corpus(
        {.rules = rules, .pieces = pieces, .from = from, .threads = threads, .write = [&](CorpusBatch& batch) {
           for (const CorpusBatch::Run& run : batch.runs) documents += run.ends_document ? 1 : 0;
           tokens += std::ssize(batch.tokens);
           characters += batch.characters;
           notes_.add(batch.notes);
           progress_.read(batch.bytes_read);
         }});
    found.documents = documents;
    found.characters = static_cast<std::int64_t>(characters);
    if (counts_tokens) found.tokens = tokens;
  }

  std::optional<RecordKind> records_of(const TextFile& text) const {
    FirstObject first(options_.field);
    try {
      read_lines(text, {}, first);
    } catch (const SeenEnough&) {
    }
    return first.records();
  }

  void look_at_records(const TextSource& source, InspectedFile& found) {
    std::uint64_t position = 0;
    RecordCounter counter(source, *found.records, options_.show, notes_, [&] { progress_.read(position); });
    read_lines(source.files.front(), {}, counter, {.file_position = &position});
    found.documents = counter.count();
    found.unanswered = counter.unanswered();
    found.shown = counter.take_shown();
  }

  const InspectionOptions& options_;
  TextNotes& notes_;
  ReadingProgress& progress_;
  bool reads_all_;
};

SourceSpec spec_of(const std::string& path, const InspectionOptions& options) {
  return {.key = "PATH",
          .path = path,
          .type = options.type,
          .field = options.field,
          .separator = options.separator,
          .part = {}};
}

// The files; of those whose kind cannot be told only what the problem is.
std::vector<FoundFile> files_of(const std::string& path, const InspectionOptions& options, Inspection& inspection) {
  std::vector<RefusedFile> refused;
  std::vector<FoundFile> files = find_files(spec_of(path, options), options.report, nullptr, {}, &refused);
  for (RefusedFile& file : refused) {
    InspectedFile& found = inspection.files.emplace_back();
    found.path = std::move(file.path);
    found.kind = "of no known kind";
    found.bytes = bytes_of(found.path);
    found.problem = std::move(file.problem);
  }
  if (inspection.files.empty()) check_options_are_used(options.separator, options.field, files);
  return files;
}

void sort_by_path(Inspection& inspection) {
  std::stable_sort(inspection.files.begin(), inspection.files.end(),
                   [](const InspectedFile& a, const InspectedFile& b) { return a.path.native() < b.path.native(); });
}

}  // namespace

Inspection inspect_data(const std::string& path, const InspectionOptions& options, const InspectionProgress& progress) {
  Inspection inspection;
  const std::vector<FoundFile> files = files_of(path, options, inspection);
  ReadingProgress reading(files, progress);
  FileInspector inspector(options, inspection.notes, reading, false);
  const bool is_alone = files.size() + inspection.files.size() == 1;
  for (const FoundFile& file : files) {
    inspection.files.emplace_back().path = file.path;
    try {
      inspector.look_at(file, inspection.files.back());
    } catch (const FileAccessError& error) {
      if (is_alone) throw;
      inspection.files.back().problem = error.what();
    } catch (const InputError& error) {
      // What text is has been told by then.
      if (is_alone && file.kind == FileKind::tokens) throw;
      inspection.files.back().problem = error.what();
    }
    reading.end_file(file);
  }
  sort_by_path(inspection);
  return inspection;
}

Inspection verify_data(const std::string& path, const InspectionOptions& options, const InspectionProgress& progress) {
  Inspection inspection;
  const std::vector<FoundFile> files = files_of(path, options, inspection);
  ReadingProgress reading(files, progress);
  FileInspector inspector(options, inspection.notes, reading, true);
  for (const FoundFile& file : files) {
    inspection.files.emplace_back().path = file.path;
    try {
      inspector.look_at(file, inspection.files.back());
    } catch (const InputError& error) {
      inspection.files.back().problem = error.what();
    }
    reading.end_file(file);
  }
  sort_by_path(inspection);
  return inspection;
}

}  // namespace scaletrain
