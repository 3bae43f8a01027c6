#include "data/corpus/corpus_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "data/corpus/ordered_pipeline.h"
#include "data/tokens/content_record.h"

namespace scaletrain {
namespace {

constexpr std::size_t kBatchBytes = 1u << 20;

// Makes batches of what the readers of text find.
class BatchMaker final : public LineSink, public DocumentSink {
 public:
  BatchMaker(const CorpusRules& rules, const std::vector<CorpusPiece>& pieces, CorpusPlace from,
             const std::function<void(std::unique_ptr<CorpusBatch>)>& use, const FileRead& file_read)
      : rules_(rules), pieces_(pieces), place_(std::move(from)), use_(use), file_read_(file_read) {}

  void read() {
    const std::size_t first = place_.piece;
    for (std::size_t i = 0; i < first; ++i) bytes_before_ += bytes_of(pieces_[i]);
    for (std::size_t i = first; i < pieces_.size(); ++i) read_piece(i, i == first);
    hand_on();
  }

  void line(std::string_view text, const LinePlace& place) override {
    add({.begin = 0, .size = 0, .place = place}, text);
    place_.offset = place.offset + (file().kind == TextKind::parquet ? 1 : text.size() + 1);
    place_.line = place.number > 0 ? place.number + 1 : 0;
    if (batch_->bytes.size() >= kBatchBytes) hand_on();
  }

  void too_long(const LinePlace& place, std::uint64_t size) override {
    const BadRecordError error = too_long_line(line_text(file(), place));
    if (rules_.source.on_bad_record == BadRecordPolicy::fail) throw_bad_record(error, rules_.source);
    batch().notes.add_skipped(error);
    place_.offset = place.offset + size + 1;
    place_.line = place.number > 0 ? place.number + 1 : 0;
  }

  void text(std::string_view piece) override {
    pending_ += piece;
    if (pending_.size() < wanted_) return;
    const std::size_t cut = rules_.tokenizer.safe_cut(pending_);
    // Where there is none, the next look is at twice as much: all looks together then take linear time.
    wanted_ = cut == 0 ? 2 * pending_.size() : kBatchBytes;
    if (cut > 0) add_text(cut, false);
  }

  void end_document(std::uint64_t next) override {
    if (!pending_.empty() || place_.part >= 0) add_text(pending_.size(), true);
    place_.part = -1;
    place_.offset = next;
    wanted_ = kBatchBytes;
    if (batch_ && batch_->bytes.size() >= kBatchBytes) hand_on();
  }

 private:
  const TextFile& file() const { return rules_.source.files[pieces_[place_.piece].file]; }

  std::uint64_t bytes_of(const CorpusPiece& piece) const {
    const std::uint64_t size = stamp_of(rules_.source.files[piece.file].path).bytes;
    return std::min(size, piece.range.end) - std::min(size, piece.range.begin);
  }

  void read_piece(std::size_t index, bool goes_on) {
    const CorpusPiece& piece = pieces_[index];
    if (!goes_on)
      place_ = {.piece = index, .offset = piece.range.begin, .line = piece.range.line, .part = -1, .scan = {}};
    if (file().kind != TextKind::text) hand_on();
    file_position_ = 0;
    Hasher hasher;
    const ReadingHooks hooks{.hasher = file_read_ ? &hasher : nullptr, .file_position = &file_position_};
    if (file().kind == TextKind::jsonl) {
      TextRange range = piece.range;
      range.begin = place_.offset;
      range.line = place_.line;
      read_lines(file(), range, *this, hooks);
    } else if (file().kind == TextKind::parquet) {
      // The notes of what is skipped go to the batch in whose turn it is.
      const auto first = static_cast<std::int64_t>(place_.offset);
      TextNotes notes;
      read_rows(
          file(), rules_.source, first,
          [&](std::string_view text, const LinePlace& place) {
            batch().notes.add(std::exchange(notes, {}));
            line(text, place);
          },
          notes, hooks);
      batch().notes.add(notes);
    } else {
      scan_.emplace(file().path.string(), place_.offset);
      if (!place_.scan.empty()) scan_->restore(nlohmann::json::parse(place_.scan), file().path.string());
      read_text(file(), rules_.source, place_.offset, *this, *scan_, hooks);
      scan_->finish(batch().notes);
      scan_.reset();
    }
    if (file_read_) file_read_(piece.file, hasher.digest());
    bytes_before_ += bytes_of(piece);
    // What was read of it is whole: reading goes on behind it.
    place_.piece = index + 1;
    place_.scan.clear();
    if (index + 1 < pieces_.size()) {
      place_.offset = pieces_[index + 1].range.begin;
      place_.line = pieces_[index + 1].range.line;
    }
    file_position_ = 0;
    // A batch is of text, or of one file of records.
    const bool is_text = rules_.source.files[piece.file].kind == TextKind::text;
    if (batch_ && (!is_text || batch_->bytes.size() >= kBatchBytes)) hand_on();
  }

  CorpusBatch& batch() {
    if (!batch_) {
      batch_ = std::make_unique<CorpusBatch>();
      batch_->bytes.reserve(kBatchBytes + kBatchBytes / 4);
    }
    return *batch_;
  }

  void add(CorpusBatch::Text text, std::string_view bytes) {
    CorpusBatch& to = batch();
    if (to.texts.empty()) to.file = &file();
    text.begin = to.bytes.size();
    text.size = bytes.size();
    to.bytes += bytes;
    to.texts.push_back(text);
  }

  void add_text(std::size_t size, bool ends_document) {
    const bool begins = place_.part < 0;
    if (begins) {
      const std::uint64_t hash = document_hash(pending_);
      place_.part = static_cast<std::int64_t>(part_of_document(hash, rules_.shares));
    }
    add({.begin = 0,
         .size = 0,
         .place = {},
         .part = place_.part,
         .begins_document = begins,
         .ends_document = ends_document},
        std::string_view(pending_).substr(0, size));
    pending_.erase(0, size);
    place_.offset += size;
    if (!ends_document) hand_on();
  }

  void hand_on() {
    if (!batch_) return;
    if (batch_->file == nullptr) batch_->file = &rules_.source.files.front();
    batch_->next = place_;
    batch_->can_go_on = !rules_.source.separator || place_.part < 0;
    if (scan_) batch_->next.scan = scan_->state().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    const bool is_within_piece = place_.piece < pieces_.size();
    const std::uint64_t skipped = is_within_piece ? pieces_[place_.piece].range.begin : 0;
    batch_->bytes_read = bytes_before_ + file_position_ - std::min(file_position_, skipped);
    use_(std::move(batch_));
  }

  const CorpusRules& rules_;
  const std::vector<CorpusPiece>& pieces_;
  CorpusPlace place_;
  const std::function<void(std::unique_ptr<CorpusBatch>)>& use_;
  const FileRead& file_read_;
  std::unique_ptr<CorpusBatch> batch_;
  std::string pending_;
  std::size_t wanted_ = kBatchBytes;
  std::optional<OddTextScan> scan_;  // of a file of text
  std::uint64_t bytes_before_ = 0;   // of the pieces before
  std::uint64_t file_position_ = 0;
};

}  // namespace

std::uint64_t document_hash(std::string_view text) {
  return hash_text(text.substr(0, kHashedBytes));
}

std::size_t part_of_document(std::uint64_t hash, const std::vector<double>& shares) {
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  // 53 bits, which a double holds: in [0, 1).
  const double point = static_cast<double>(hash >> 11) * 0x1p-53 * all;
  double end = 0.0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] <= 0.0) continue;
    last = i;
    end += shares[i];
    if (point < end) return i;
  }
  return last;
}

std::vector<CorpusPiece> pieces_of_shard(const TextSource& source, std::int64_t shard, std::int64_t shards) {
  SCALETRAIN_CHECK(shard >= 0 && shard < shards);
  std::vector<std::uint64_t> sizes;
  for (const TextFile& file : source.files) sizes.push_back(stamp_of(file.path).bytes);
  const std::uint64_t all = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  // Without the product, which could wrap.
  const auto cut = [&](std::int64_t of) {
    const auto n = static_cast<std::uint64_t>(shards);
    const auto k = static_cast<std::uint64_t>(of);
    return all / n * k + all % n * k / n;
  };
  const std::uint64_t begin = cut(shard);
  const std::uint64_t end = cut(shard + 1);
  std::vector<CorpusPiece> pieces;
  std::uint64_t first = 0;  // of the file
  for (std::size_t i = 0; i < sizes.size(); first += sizes[i], ++i) {
    const TextFile& file = source.files[i];
    if (file.kind == TextKind::jsonl && file.compression == Compression::none) {
      const std::uint64_t from = std::max(begin, first);
      const std::uint64_t to = std::min(end, first + sizes[i]);
      if (from >= to) continue;
      TextRange range;
      range.begin = from - first;
      range.line = range.begin == 0 ? 1 : 0;
      if (to < first + sizes[i]) range.end = to - first;
      pieces.push_back({i, range});
    } else if (first >= begin && (first < end || (first == all && shard + 1 == shards))) {
      pieces.push_back({i, {}});
    }
  }
  return pieces;
}

nlohmann::json CorpusPlace::to_json() const {
  return {{"piece", piece}, {"offset", offset}, {"line", line}, {"part", part}, {"scan", scan}};
}

CorpusPlace CorpusPlace::from_json(const nlohmann::json& value, const std::string& where) {
  CorpusPlace place;
  place.piece = static_cast<std::size_t>(json_unsigned(value, "piece", where));
  place.offset = json_unsigned(value, "offset", where);
  place.line = json_integer(value, "line", where);
  place.part = json_integer(value, "part", where);
  place.scan = json_string(value, "scan", where);
  return place;
}

void tokenise(CorpusBatch& batch, const CorpusRules& rules) {
  const auto append = [&](std::string_view text, std::size_t part, bool begins, bool ends) {
    if (rules.only && part != *rules.only) return;
    batch.characters += static_cast<std::uint64_t>(std::count_if(
        text.begin(), text.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0u) != 0x80u; }));
    if (begins) {
      const auto before = rules.tokenizer.before_document();
      batch.tokens.insert(batch.tokens.end(), before.begin(), before.end());
    }
    const std::vector<std::int32_t> tokens = begins ? rules.tokenizer.encode(text) : rules.tokenizer.encode_rest(text);
    batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end());
    if (ends && rules.appends_end)
      if (const auto end = rules.tokenizer.end_of_document()) batch.tokens.push_back(*end);
    batch.runs.push_back({.end = batch.tokens.size(), .part = part, .ends_document = ends});
  };
  batch.tokens.reserve(batch.bytes.size() / 3);
  for (const CorpusBatch::Text& text : batch.texts) {
    const std::string_view bytes = std::string_view(batch.bytes).substr(text.begin, text.size);
    if (batch.file->kind == TextKind::text) {
      append(bytes, static_cast<std::size_t>(text.part), text.begins_document, text.ends_document);
      continue;
    }
    const std::string where = line_text(*batch.file, text.place);
    try {
      // Of Parquet the text is the document.
      std::string parsed;
      if (batch.file->kind == TextKind::jsonl) parsed = document_of_line(bytes, rules.source.field, where);
      const std::string_view document = batch.file->kind == TextKind::jsonl ? parsed : bytes;
      note_odd_document(document, *batch.file, where, batch.notes);
      if (!document.empty()) append(document, part_of_document(document_hash(document), rules.shares), true, true);
    } catch (const BadRecordError& error) {
      if (rules.source.on_bad_record == BadRecordPolicy::fail) throw_bad_record(error, rules.source);
      batch.notes.add_skipped(error);
    }
  }
  batch.bytes = {};
}

CorpusPlace first_place(const std::vector<CorpusPiece>& pieces) {
  if (pieces.empty()) return {};
  return {.piece = 0, .offset = pieces[0].range.begin, .line = pieces[0].range.line, .part = -1, .scan = {}};
}

void read_corpus(const CorpusRules& rules, const std::vector<CorpusPiece>& pieces, const CorpusPlace& from,
                 const std::function<void(std::unique_ptr<CorpusBatch>)>& use, const FileRead& file_read) {
  BatchMaker(rules, pieces, from, use, file_read).read();
}

void tokenise_corpus(const CorpusReading& reading) {
  OrderedPipeline<CorpusBatch> pipeline(
      reading.threads, [&reading](CorpusBatch& batch) { tokenise(batch, reading.rules); }, reading.write);
  std::exception_ptr unreadable;
  try {
    read_corpus(
        reading.rules, reading.pieces, reading.from,
        [&pipeline](std::unique_ptr<CorpusBatch> batch) { pipeline.submit(std::move(batch)); }, reading.file_read);
  } catch (const InputError&) {  // a BadRecordError too
    unreadable = std::current_exception();
  }
  // What is wrong before that is told first, if anything is.
  pipeline.finish_all();
  if (unreadable) std::rethrow_exception(unreadable);
}

}  // namespace scaletrain
