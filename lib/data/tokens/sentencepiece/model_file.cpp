#include "data/tokens/sentencepiece/model_file.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/text.h"

namespace scaletrain {

namespace {

// A protobuf message, field by field.
class MessageReader {
 public:
  struct Field {
    std::uint64_t number = 0;
    std::uint64_t value = 0;   // of a number
    std::string_view bytes{};  // of a text or message; of a float its four
    bool is_bytes = false;     // a text or message
  };

  MessageReader(std::string_view bytes, const std::string& where) : rest_(bytes), where_(where) {}

  std::optional<Field> next() {
    if (rest_.empty()) return std::nullopt;
    const std::uint64_t key = varint();
    Field field{.number = key >> 3};
    switch (key & 7) {
      case 0:
        field.value = varint();
        break;
      case 1:
        take(8);
        break;
      case 2:
        field.bytes = take(varint());
        field.is_bytes = true;
        break;
      case 5:
        field.bytes = take(4);
        break;
      default:
        refuse();
    }
    if (field.number == 0) refuse();
    return field;
  }

  [[noreturn]] void refuse() const {
    throw InputError(
        fmt::format("{}: no SentencePiece model, or a damaged one: it is no protobuf message of its kind", where_));
  }

 private:
  std::uint64_t varint() {
    std::uint64_t out = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1).front());
      out |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return out;
    }
    refuse();
  }
  std::string_view take(std::uint64_t size) {
    if (size > rest_.size()) refuse();
    const std::string_view out = rest_.substr(0, static_cast<std::size_t>(size));
    rest_.remove_prefix(static_cast<std::size_t>(size));
    return out;
  }

  std::string_view rest_;
  const std::string& where_;
};

SentencePieceModel::Piece read_piece(std::string_view bytes, const std::string& where) {
  constexpr std::uint64_t text = 1;
  constexpr std::uint64_t score = 2;
  constexpr std::uint64_t type = 3;
  SentencePieceModel::Piece piece;
  MessageReader reader(bytes, where);
  while (const auto field = reader.next()) {
    if (field->number == text && field->is_bytes) piece.text = field->bytes;
    if (field->number == score && !field->is_bytes && field->bytes.size() == sizeof piece.score)
      std::memcpy(&piece.score, field->bytes.data(), sizeof piece.score);
    if (field->number != type) continue;
    if (field->value < 1 || field->value > 6) reader.refuse();
    piece.kind = static_cast<SentencePieceModel::PieceKind>(field->value);
  }
  return piece;
}

void read_trainer(std::string_view bytes, const std::string& where, SentencePieceModel& model) {
  constexpr std::uint64_t model_type = 3;
  constexpr std::uint64_t treat_whitespace_as_suffix = 24;
  constexpr std::uint64_t byte_fallback = 35;
  constexpr std::uint64_t unk_surface = 44;
  MessageReader reader(bytes, where);
  while (const auto field = reader.next()) {
    if (field->number == model_type) {
      if (field->value < 1 || field->value > 4) reader.refuse();
      model.kind = static_cast<SentencePieceModel::Kind>(field->value);
    }
    if (field->number == treat_whitespace_as_suffix) model.has_space_behind = field->value != 0;
    if (field->number == byte_fallback) model.has_byte_fallback = field->value != 0;
    if (field->number == unk_surface && field->is_bytes) model.unknown_text = field->bytes;
  }
}

bool has_charsmap(std::string_view bytes, const std::string& where) {
  constexpr std::uint64_t precompiled_charsmap = 2;
  MessageReader reader(bytes, where);
  bool found = false;
  while (const auto field = reader.next())
    if (field->number == precompiled_charsmap) found = !field->bytes.empty();
  return found;
}

void read_normalizer(std::string_view bytes, const std::string& where, SentencePieceModel& model) {
  constexpr std::uint64_t add_dummy_prefix = 3;
  constexpr std::uint64_t remove_extra_whitespaces = 4;
  constexpr std::uint64_t escape_whitespaces = 5;
  model.has_rules = model.has_rules || has_charsmap(bytes, where);
  MessageReader reader(bytes, where);
  while (const auto field = reader.next()) {
    if (field->number == add_dummy_prefix) model.has_dummy_prefix = field->value != 0;
    if (field->number == remove_extra_whitespaces) model.removes_spaces = field->value != 0;
    if (field->number == escape_whitespaces) model.escapes_spaces = field->value != 0;
  }
}

}  // namespace

SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& where) {
  constexpr std::uint64_t pieces = 1;
  constexpr std::uint64_t trainer_spec = 2;
  constexpr std::uint64_t normalizer_spec = 3;
  constexpr std::uint64_t denormalizer_spec = 5;
  SentencePieceModel model;
  MessageReader reader(bytes, where);
  while (const auto field = reader.next()) {
    if (!field->is_bytes) continue;
    if (field->number == pieces) model.pieces.push_back(read_piece(field->bytes, where));
    if (field->number == trainer_spec) read_trainer(field->bytes, where, model);
    if (field->number == normalizer_spec) read_normalizer(field->bytes, where, model);
    if (field->number == denormalizer_spec)
      model.has_decoding_rules = model.has_decoding_rules || has_charsmap(field->bytes, where);
  }
  if (model.pieces.empty()) reader.refuse();
  for (std::size_t id = 0; id < model.pieces.size(); ++id)
    if (const auto at = first_invalid_utf8(model.pieces[id].text))
      throw InputError(fmt::format("{}: the piece of id {} is no UTF-8 at byte {}", where, id, *at));
  return model;
}

std::string without_dummy_prefix(std::string_view bytes) {
  // A message that comes a second time is merged into the first: of a field that both have the second one's value
  // counts. Field 3 of the model is normalizer_spec, of that field 3 is add_dummy_prefix.
  constexpr std::string_view no_prefix("\x1a\x02\x18\x00", 4);
  return std::string(bytes).append(no_prefix);
}

}  // namespace scaletrain
