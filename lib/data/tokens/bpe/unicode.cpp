#include "data/tokens/bpe/unicode.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <unordered_map>
#include <utility>

#include "data/tokens/bpe/unicode_tables.h"

namespace scaletrain {
namespace {

constexpr char32_t kNumCodePoints = 0x110000;

// Hangul syllables are composed by arithmetic: chapter 3.12 of the Unicode standard.
constexpr char32_t kSyllables = 0xac00;
constexpr char32_t kLeads = 0x1100;
constexpr char32_t kVowels = 0x1161;
constexpr char32_t kTails = 0x11a7;
constexpr char32_t kNumLeads = 19;
constexpr char32_t kNumVowels = 21;
constexpr char32_t kNumTails = 28;
constexpr char32_t kNumSyllables = kNumLeads * kNumVowels * kNumTails;

struct NamedCategories {
  std::string_view name;
  std::string_view long_name;
  std::uint32_t categories;
};

constexpr std::uint32_t bits(Category first, Category last) {
  return (category_bit(last) << 1) - category_bit(first);
}

constexpr std::array<NamedCategories, 7> kGroups = {{
    {"L", "Letter", bits(Category::Lu, Category::Lo)},
    {"M", "Mark", bits(Category::Mn, Category::Me)},
    {"N", "Number", bits(Category::Nd, Category::No)},
    {"P", "Punctuation", bits(Category::Pc, Category::Po)},
    {"S", "Symbol", bits(Category::Sm, Category::So)},
    {"Z", "Separator", bits(Category::Zs, Category::Zp)},
    {"C", "Other", bits(Category::Cc, Category::Cn) | category_bit(Category::space_control)},
}};

constexpr std::string_view kNames = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCoCn";

std::uint64_t pair_key(char32_t first, char32_t second) {
  return static_cast<std::uint64_t>(first) << 32 | second;
}

}  // namespace

std::optional<std::uint32_t> categories_of(std::string_view name) {
  for (const NamedCategories& group : kGroups) {
    if (name == group.name || name == group.long_name) return group.categories;
  }
  for (std::size_t i = 0; name.size() == 2 && i < kNames.size(); i += 2) {
    if (kNames.substr(i, 2) != name) continue;
    const auto category = static_cast<Category>(i / 2);
    const std::uint32_t also = category == Category::Cc ? category_bit(Category::space_control) : 0;
    return category_bit(category) | also;
  }
  return std::nullopt;
}

CodePoints::CodePoints() : flags_(kNumCodePoints) {
  const auto fill = [this](const auto& ranges, auto set) {
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const char32_t end = i + 1 < ranges.size() ? ranges[i + 1].first : kNumCodePoints;
      for (char32_t c = ranges[i].first; c < end; ++c) set(flags_[c], ranges[i]);
    }
  };
  fill(unicode_data::kCategories, [](std::uint8_t& flags, const auto& range) { flags = range.category; });
  for (const char32_t c : {0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x85})
    flags_[c] = static_cast<std::uint8_t>(Category::space_control);
  fill(unicode_data::kCombiningClasses, [](std::uint8_t& flags, const auto& range) {
    if (range.combining_class != 0) flags |= kUnstable;
  });
  for (const unicode_data::Decomposition& entry : unicode_data::kDecompositions) {
    if (entry.composes == 0) {
      flags_[entry.whole] |= kUnstable;
    } else {
      flags_[entry.first] |= kComposes;
      flags_[entry.second] |= kUnstable;
    }
  }
  for (char32_t i = 0; i < kNumLeads; ++i) flags_[kLeads + i] |= kComposes;
  for (char32_t i = 0; i < kNumSyllables; i += kNumTails) flags_[kSyllables + i] |= kComposes;
  for (char32_t i = 0; i < kNumVowels; ++i) flags_[kVowels + i] |= kUnstable;
  for (char32_t i = 1; i < kNumTails; ++i) flags_[kTails + i] |= kUnstable;
}

const CodePoints& CodePoints::get() {
  static const CodePoints only;
  return only;
}

bool CodePoints::is_word(char32_t c) const {
  constexpr std::uint32_t categories = bits(Category::Lu, Category::Me) | category_bit(Category::Nd) |
                                       category_bit(Category::Nl) | category_bit(Category::Pc);
  if ((categories >> static_cast<unsigned>(category(c)) & 1) != 0) return true;
  // The symbols with the property Alphabetic (letters in circles and squares), and the two joiners.
  return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
         (c >= 0x1f170 && c <= 0x1f189) || c == 0x200c || c == 0x200d;
}

int utf8_length_at(std::string_view text, std::size_t offset, int& malformed) {
  const auto byte = [text, offset](std::size_t i) -> unsigned {
    return offset + i < text.size() ? static_cast<unsigned char>(text[offset + i]) : 0;
  };
  const unsigned lead = byte(0);
  malformed = 1;
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const int length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // No longer form than needed, no surrogate, nothing beyond U+10FFFF.
  const unsigned lowest = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned highest = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < lowest || byte(1) > highest) return 0;
  for (malformed = 2; malformed < length; ++malformed) {
    if ((byte(static_cast<std::size_t>(malformed)) & 0xc0) != 0x80) return 0;
  }
  return length;
}

bool is_valid_utf8(std::string_view text) {
  std::size_t i = 0;
  int malformed = 0;
  while (i < text.size()) {
    std::uint64_t eight = 0;
    if (text.size() - i >= sizeof eight) {
      std::memcpy(&eight, text.data() + i, sizeof eight);
      if ((eight & 0x8080808080808080ull) == 0) {
        i += sizeof eight;
        continue;
      }
    }
    const int length = utf8_length_at(text, i, malformed);
    if (length == 0) return false;
    i += static_cast<std::size_t>(length);
  }
  return true;
}

std::string replace_malformed_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  int malformed = 0;
  for (std::size_t i = 0; i < text.size();) {
    const int length = utf8_length_at(text, i, malformed);
    if (length > 0) {
      out.append(text, i, static_cast<std::size_t>(length));
      i += static_cast<std::size_t>(length);
    } else {
      out += "\xef\xbf\xbd";
      i += static_cast<std::size_t>(malformed);
    }
  }
  return out;
}

void append_utf8(char32_t c, std::string& text) {
  const auto add = [&text](char32_t byte) { text.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (c < 0x80) {
    add(c);
  } else if (c < 0x800) {
    add(0xc0 | c >> 6);
    add(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    add(0xe0 | c >> 12);
    add(0x80 | (c >> 6 & 0x3f));
    add(0x80 | (c & 0x3f));
  } else {
    add(0xf0 | c >> 18);
    add(0x80 | (c >> 12 & 0x3f));
    add(0x80 | (c >> 6 & 0x3f));
    add(0x80 | (c & 0x3f));
  }
}

// Decomposition, canonical order, composition: chapter 3.11 of the Unicode standard, over one short run at a time.
class Normalizer {
 public:
  static const Normalizer& get() {
    static const Normalizer only;
    return only;
  }

  void append(std::u32string_view run, std::string& out) const {
    std::vector<Mark> marks;
    for (const char32_t c : run) decompose(c, marks);
    for (auto begin = marks.begin(); begin != marks.end();) {
      if (begin->combining_class == 0) {
        ++begin;
        continue;
      }
      const auto end = std::find_if(begin, marks.end(), [](const Mark& mark) { return mark.combining_class == 0; });
      std::stable_sort(begin, end, [](const Mark& a, const Mark& b) { return a.combining_class < b.combining_class; });
      begin = end;
    }
    for (const char32_t c : compose(marks)) append_utf8(c, out);
  }

 private:
  struct Mark {
    char32_t code_point;
    std::uint8_t combining_class;
  };

  Normalizer() {
    for (const unicode_data::Decomposition& entry : unicode_data::kDecompositions) {
      parts_[entry.whole] = {entry.first, entry.second};
      if (entry.composes != 0) wholes_[pair_key(entry.first, entry.second)] = entry.whole;
    }
  }

  static std::uint8_t combining_class(char32_t c) {
    const auto& ranges = unicode_data::kCombiningClasses;
    const auto behind = std::upper_bound(ranges.begin(), ranges.end(), c,
                                         [](char32_t code, const auto& range) { return code < range.first; });
    return std::prev(behind)->combining_class;
  }

  void decompose(char32_t c, std::vector<Mark>& out) const {
    if (c >= kSyllables && c < kSyllables + kNumSyllables) {
      const char32_t index = c - kSyllables;
      out.push_back({kLeads + index / (kNumVowels * kNumTails), 0});
      out.push_back({kVowels + index % (kNumVowels * kNumTails) / kNumTails, 0});
      if (index % kNumTails != 0) out.push_back({kTails + index % kNumTails, 0});
      return;
    }
    const auto found = parts_.find(c);
    if (found == parts_.end()) {
      out.push_back({c, combining_class(c)});
      return;
    }
    decompose(found->second.first, out);
    if (found->second.second != 0) decompose(found->second.second, out);
  }

  // 0: the two compose to nothing.
  char32_t whole_of(char32_t first, char32_t second) const {
    if (first >= kLeads && first < kLeads + kNumLeads && second >= kVowels && second < kVowels + kNumVowels)
      return kSyllables + ((first - kLeads) * kNumVowels + (second - kVowels)) * kNumTails;
    if (first >= kSyllables && first < kSyllables + kNumSyllables && (first - kSyllables) % kNumTails == 0 &&
        second > kTails && second < kTails + kNumTails)
      return first + (second - kTails);
    const auto found = wholes_.find(pair_key(first, second));
    return found == wholes_.end() ? 0 : found->second;
  }

  std::u32string compose(const std::vector<Mark>& marks) const {
    std::u32string out;
    std::optional<std::size_t> starter;
    std::uint8_t last_class = 0;  // of what stands behind the starter and was not composed
    bool is_adjacent = false;
    for (const Mark& mark : marks) {
      const bool is_blocked = !is_adjacent && (last_class == 0 || last_class >= mark.combining_class);
      const char32_t whole = starter && !is_blocked ? whole_of(out[*starter], mark.code_point) : 0;
      if (whole != 0) {
        out[*starter] = whole;
        continue;
      }
      if (mark.combining_class == 0) {
        starter = out.size();
        is_adjacent = true;
      } else {
        is_adjacent = false;
      }
      last_class = mark.combining_class;
      out.push_back(mark.code_point);
    }
    return out;
  }

  std::unordered_map<char32_t, std::pair<char32_t, char32_t>> parts_;
  std::unordered_map<std::uint64_t, char32_t> wholes_;
};

std::optional<std::string> normalize_nfc(std::string_view text) {
  const CodePoints& points = CodePoints::get();
  std::optional<std::string> out;
  std::size_t copied = 0;  // of the text, what stands in `out` or needs no change
  std::size_t stable = 0;  // where the last stable character begins
  const char* const begin = text.data();
  for (std::size_t i = 0; i < text.size();) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      stable = i++;
      continue;
    }
    const Decoded at = decode_utf8(begin + i);
    if (points.is_stable(at.code_point)) {
      stable = i;
      i += static_cast<std::size_t>(at.length);
      continue;
    }
    // A run that may change: from the last stable character to the next one.
    std::u32string run;
    std::size_t end = stable;
    while (end < text.size()) {
      const Decoded next = decode_utf8(begin + end);
      if (end > i && points.is_stable(next.code_point)) break;
      run.push_back(next.code_point);
      end += static_cast<std::size_t>(next.length);
    }
    std::string normal;
    Normalizer::get().append(run, normal);
    if (normal != text.substr(stable, end - stable)) {
      if (!out) out.emplace();
      out->append(text, copied, stable - copied);
      *out += normal;
      copied = end;
    }
    stable = end;
    i = end;
  }
  if (out) out->append(text, copied);
  return out;
}

}  // namespace scaletrain
