#include "data/instructions/instruction_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/corpus/corpus_reader.h"
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

class RecordReader final : public LineSink {
 public:
  RecordReader(const TextSource& source, const InstructionEncoder& encoder, RowPacker& packer, PackedCounts& told,
               TextNotes& notes, const BytesRead& read)
      : source_(source), encoder_(encoder), packer_(packer), told_(told), notes_(notes), read_(read) {}

  void read(const TextFile& file, Hasher& hasher) {
    file_ = &file;
    position_ = 0;
    read_lines(file, {}, *this, {.hasher = &hasher, .file_position = &position_});
    before_ += position_;
    if (read_) read_(before_);
  }

  void line(std::string_view text, const LinePlace& place) override {
    tell_progress();
    const std::string where = line_text(*file_, place);
    InstructionRecord record;
    try {
      record = parse_instruction(text, encoder_.rules().records, where);
    } catch (const BadRecordError& error) {
      return pass_over_unread(error);
    }
    if (source_.part && !is_in(*source_.part, record)) return;
    try {
      take(encoder_.encode(record, where));
    } catch (const BadRecordError& error) {
      pass_over(error);
    }
  }
  void too_long(const LinePlace& place, std::uint64_t) override {
    pass_over_unread(too_long_line(line_text(*file_, place)));
  }

 private:
  void tell_progress() {
    constexpr std::uint64_t lines = 1024;
    if (++lines_ % lines == 0 && read_) read_(before_ + position_);
  }

  void take(EncodedInstruction encoded) {
    if (encoded.quotes_special) ++told_.quoted;
    PackedDocument& document = encoded.document;
    const auto context = static_cast<std::size_t>(encoder_.rules().context);
    if (document.tokens.size() > context) {
      ++told_.cut;
      document.tokens.resize(context);
      document.learned.resize(context);
      if (std::find(document.learned.begin(), document.learned.end(), 1) == document.learned.end()) {
        ++told_.left_out;
        return;
      }
    }
    packer_.add(std::move(document));
  }

  // What cannot be read falls to no side: it is told on the one that is trained on.
  void pass_over_unread(const BadRecordError& error) {
    const bool is_told = !source_.part || !source_.part->is_held_out || source_.on_bad_record == BadRecordPolicy::fail;
    if (is_told) pass_over(error);
  }

  void pass_over(const BadRecordError& error) {
    if (source_.on_bad_record == BadRecordPolicy::fail) throw_bad_record(error, source_);
    notes_.add_skipped(error);
  }

  const TextSource& source_;
  const InstructionEncoder& encoder_;
  RowPacker& packer_;
  PackedCounts& told_;
  TextNotes& notes_;
  const BytesRead& read_;
  const TextFile* file_ = nullptr;
  std::uint64_t position_ = 0;  // in the file
  std::uint64_t before_ = 0;    // bytes of the files before it
  std::uint64_t lines_ = 0;
};

}  // namespace

TextNotes write_instructions(const TextSource& source, const Tokenizer& tokenizer,
                             const std::vector<FileContent>& contents, PackedWriter& writer, PackedCounts& told,
                             const BytesRead& read) {
  SCALETRAIN_CHECK(source.instructions.has_value());
  const InstructionEncoder encoder(*source.instructions, tokenizer);
  RowPacker packer(encoder.rules().context, [&writer](const RowPacker::Row& row) {
    for (const PackedDocument& document : row) writer.append_document(document.tokens, document.learned);
    writer.end_row();
  });
  TextNotes notes;
  RecordReader reader(source, encoder, packer, told, notes, read);
  for (std::size_t i = 0; i < source.files.size(); ++i) {
    SCALETRAIN_CHECK(source.files[i].kind == TextKind::jsonl);
    Hasher hasher;
    reader.read(source.files[i], hasher);
    if (hasher.digest() != contents[i].hash) throw_changed_file(source.files[i].path);
  }
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
      rules.chat ? fmt::format("; chat template {}", rules.chat->name()) : "")};
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
