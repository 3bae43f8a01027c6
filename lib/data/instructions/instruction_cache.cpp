#include "data/instructions/instruction_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/corpus/corpus_reader.h"
#include "data/corpus/ordered_pipeline.h"
#include "data/dataset.h"
#include "data/instructions/instruction_encoder.h"
#include "data/instructions/row_packer.h"
#include "data/tokens/text_reader.h"

namespace scaletrain {

namespace {

// Records are divided by what they say, as documents are by their text: not by the line, whose ids, white space and
// order of keys differ between duplicates.
std::uint64_t record_hash(const InstructionRecord& record) {
  Hasher hasher;
  const auto add = [&hasher](std::string_view text) {
    // No text may seem to be the end of one and the beginning of the next.
    const auto size = static_cast<std::uint64_t>(text.size());
    hasher.update(std::as_bytes(std::span(&size, 1)));
    hasher.update(std::as_bytes(std::span(text)));
  };
  for (const ChatMessage& message : record.messages) {
    add(message.role);
    add(message.content);
  }
  if (record.messages.empty()) {
    add(record.prompt);
    add(record.completion);
  }
  return hasher.digest();
}

bool is_in(const DocumentPart& part, const InstructionRecord& record) {
  return part_of_document(record_hash(record), {1.0 - part.held_out, part.held_out}) == (part.is_held_out ? 1u : 0u);
}

// Some lines, and what becomes of them.
struct RecordBatch {
  struct Line {
    std::size_t begin = 0;
    std::size_t size = 0;  // of one that is too long: nothing
    LinePlace place;
    bool is_too_long = false;
  };
  const TextFile* file = nullptr;
  std::string bytes;
  std::vector<Line> lines;
  std::uint64_t bytes_read = 0;  // of all files, as they lie

  std::vector<PackedDocument> documents;
  PackedCounts told;
  TextNotes notes;
};

// Makes batches of the files' lines.
class RecordReader final : public LineSink {
 public:
  using Use = std::function<void(std::unique_ptr<RecordBatch>)>;

  explicit RecordReader(Use use) : use_(std::move(use)) {}

  void read(const TextFile& file, Hasher& hasher) {
    file_ = &file;
    position_ = 0;
    read_lines(file, {}, *this, {.hasher = &hasher, .file_position = &position_});
    before_ += std::exchange(position_, 0);
    hand_on();
  }

  void line(std::string_view text, const LinePlace& place) override {
    RecordBatch& to = batch();
    to.lines.push_back({.begin = to.bytes.size(), .size = text.size(), .place = place});
    to.bytes += text;
    if (to.bytes.size() >= kBatchBytes) hand_on();
  }
  void too_long(const LinePlace& place, std::uint64_t) override {
    batch().lines.push_back({.begin = 0, .size = 0, .place = place, .is_too_long = true});
  }

 private:
  // Records take more time a byte than text does: so much of them is some milliseconds.
  static constexpr std::size_t kBatchBytes = 128u << 10;

  RecordBatch& batch() {
    if (!batch_) {
      batch_ = std::make_unique<RecordBatch>();
      batch_->file = file_;
      batch_->bytes.reserve(kBatchBytes + kBatchBytes / 4);
    }
    return *batch_;
  }

  void hand_on() {
    if (!batch_) return;
    batch_->bytes_read = before_ + position_;
    use_(std::move(batch_));
  }

  Use use_;
  const TextFile* file_ = nullptr;
  std::unique_ptr<RecordBatch> batch_;
  std::uint64_t position_ = 0;  // in the file
  std::uint64_t before_ = 0;    // bytes of the files before it
};

// Fills in what becomes of a batch's lines. Concurrent calls with different batches are fine.
class RecordTokeniser {
 public:
  RecordTokeniser(const TextSource& source, const InstructionEncoder& encoder) : source_(source), encoder_(encoder) {}

  void tokenise(RecordBatch& batch) const {
    for (const RecordBatch::Line& line : batch.lines) {
      const std::string where = line_text(*batch.file, line.place);
      if (line.is_too_long) {
        pass_over_unread(too_long_line(where), batch);
      } else {
        read(std::string_view(batch.bytes).substr(line.begin, line.size), where, batch);
      }
    }
    batch.bytes = {};
  }

 private:
  void read(std::string_view text, const std::string& where, RecordBatch& batch) const {
    InstructionRecord record;
    try {
      record = parse_instruction(text, encoder_.rules().records, where);
    } catch (const BadRecordError& error) {
      return pass_over_unread(error, batch);
    }
    if (source_.part && !is_in(*source_.part, record)) return;
    try {
      take(encoder_.encode(record, where), batch);
    } catch (const BadRecordError& error) {
      pass_over(error, batch);
    }
  }

  void take(EncodedInstruction encoded, RecordBatch& batch) const {
    if (encoded.quotes_special) ++batch.told.quoted;
    PackedDocument& document = encoded.document;
    const auto context = static_cast<std::size_t>(encoder_.rules().context);
    if (document.tokens.size() > context) {
      ++batch.told.cut;
      document.tokens.resize(context);
      document.learned.resize(context);
      if (std::find(document.learned.begin(), document.learned.end(), 1) == document.learned.end()) {
        ++batch.told.left_out;
        return;
      }
    }
    batch.documents.push_back(std::move(document));
  }

  // What cannot be read falls to no side: it is told on the one that is trained on.
  void pass_over_unread(const BadRecordError& error, RecordBatch& batch) const {
    const bool is_told = !source_.part || !source_.part->is_held_out || source_.on_bad_record == BadRecordPolicy::fail;
    if (is_told) pass_over(error, batch);
  }

  void pass_over(const BadRecordError& error, RecordBatch& batch) const {
    if (source_.on_bad_record == BadRecordPolicy::fail) throw_bad_record(error, source_);
    batch.notes.add_skipped(error);
  }

  const TextSource& source_;
  const InstructionEncoder& encoder_;
};

}  // namespace

TextNotes write_instructions(const InstructionReading& reading, PackedWriter& writer, PackedCounts& told) {
  const TextSource& source = reading.source;
  SCALETRAIN_CHECK(source.instructions.has_value());
  const InstructionEncoder encoder(*source.instructions, reading.tokenizer);
  const RecordTokeniser tokeniser(source, encoder);
  RowPacker packer(encoder.rules().context, [&writer](const RowPacker::Row& row) {
    for (const PackedDocument& document : row) writer.append_document(document.tokens, document.learned);
    writer.end_row();
  });
  TextNotes notes;
  OrderedPipeline<RecordBatch> pipeline(
      reading.threads, [&tokeniser](RecordBatch& batch) { tokeniser.tokenise(batch); },
      [&](RecordBatch& batch) {
        for (PackedDocument& document : batch.documents) packer.add(std::move(document));
        told.cut += batch.told.cut;
        told.left_out += batch.told.left_out;
        told.quoted += batch.told.quoted;
        notes.add(batch.notes);
        if (reading.read) reading.read(batch.bytes_read);
      });
  std::exception_ptr unreadable;
  try {
    RecordReader reader([&pipeline](std::unique_ptr<RecordBatch> batch) { pipeline.submit(std::move(batch)); });
    for (std::size_t i = 0; i < source.files.size(); ++i) {
      SCALETRAIN_CHECK(source.files[i].kind == TextKind::jsonl);
      Hasher hasher;
      reader.read(source.files[i], hasher);
      if (hasher.digest() != reading.contents[i].hash) throw_changed_file(source.files[i].path);
    }
  } catch (const InputError&) {  // a BadRecordError too
    unreadable = std::current_exception();
  }
  // What is wrong before that is told first, if anything is.
  pipeline.finish_all();
  if (unreadable) std::rethrow_exception(unreadable);
  packer.finish();
  return notes;
}

std::vector<std::string> packed_lines(const std::string& name, const PackedFile& file, const InstructionRules& rules) {
  const PackedCounts& counts = file.counts();
  const bool is_chat = rules.records == RecordKind::messages;
  const double room = static_cast<double>(counts.rows) * static_cast<double>(file.context());
  const double padding = room > 0 ? 100.0 * (room - static_cast<double>(counts.tokens)) / room : 0.0;
  std::vector<std::string> lines = {fmt::format(
      "{}: {} of {}, packed into {} of {} ({:.1f} % padding); the loss is on {}{}", name,
      grouped_count(counts.documents, is_chat ? "conversation" : "completion"), grouped_count(counts.tokens, "token"),
      grouped_count(counts.rows, "sample"), grouped_digits(static_cast<std::uint64_t>(file.context())), padding,
      rules.loss == InstructionLoss::all ? "all but the first of each"
                                         : fmt::format("the {} of answers", grouped_count(counts.learned, "token")),
      rules.chat  ? fmt::format("; chat template {}", rules.chat->name())
      : rules.end ? fmt::format("; each ends with token {} ({})", *rules.end, rules.end_named_by)
                  : "")};
  if (counts.cut > 0)
    lines.push_back(fmt::format(
        "notice: {}: {} longer than model.context {} and cut there{}", name,
        counts.cut == 1 ? "1 record is" : fmt::format("{} records are", grouped_digits(counts.cut)), file.context(),
        counts.left_out == 0 ? ""
                             : fmt::format("; {} of them left out, since no answer begins before that",
                                           grouped_digits(counts.left_out))));
  if (counts.quoted > 0)
    lines.push_back(fmt::format(
        "notice: {}: messages of {} spell special tokens; they are read as plain text, which no turn ends with", name,
        grouped_count(counts.quoted, "record")));
  return lines;
}

void read_row(const PackedFile& file, std::int64_t row, const SampleRules& rules, const SampleBuffers& out) {
  const auto context = out.inputs.size();
  SCALETRAIN_CHECK_EQ(static_cast<std::int64_t>(context), file.context());
  SCALETRAIN_CHECK_EQ(out.targets.size(), context);
  const std::int64_t end_document = file.row_end(row);
  std::int64_t document = row == 0 ? 0 : file.row_end(row - 1);
  const std::int64_t begin = document == 0 ? 0 : file.document_end(document - 1);
  const std::int64_t end = file.document_end(end_document - 1);
  if (end <= begin || end - begin > file.context())
    throw InputError(fmt::format("{}: row {} changed while the file was in use", file.path().string(), row));
  const auto size = static_cast<std::size_t>(end - begin);
  std::vector<std::uint8_t> learned(size);
  file.read_learned(begin, learned);
  file.read(begin, out.inputs.first(size), rules.vocab);
  std::fill(out.inputs.begin() + static_cast<std::ptrdiff_t>(size), out.inputs.end(), rules.padding);
  std::fill(out.targets.begin(), out.targets.end(), kMaskedTarget);
  for (std::size_t i = 1; i < size; ++i)
    if (learned[i] != 0) out.targets[i - 1] = out.inputs[i];
  if (out.document_starts == nullptr) return;
  out.document_starts->assign(1, 0);
  for (; document + 1 < end_document; ++document)
    out.document_starts->push_back(static_cast<std::int32_t>(file.document_end(document) - begin));
}

}  // namespace scaletrain
