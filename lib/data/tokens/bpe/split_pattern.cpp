#include "data/tokens/bpe/split_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace scaletrain {
namespace {

constexpr std::int64_t kUnbounded = INT64_MAX;
constexpr int kMaxCopies = 16;  // of a group with a count: each copy is compiled
constexpr int kMaxDepth = 32;
constexpr std::size_t kMaxSets = 64;
constexpr std::size_t kMaxAlternatives = 32;
constexpr std::size_t kMaxNodes = 4096;

bool is_ascii_letter(char32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

}  // namespace

// A recursive descent over the pattern. The tree is compiled from its end, since each node knows what comes next.
class PatternCompiler {
 public:
  explicit PatternCompiler(std::string_view pattern) : pattern_(pattern) {
    if (!is_valid_utf8(pattern)) throw PatternError("the pattern is no UTF-8");
  }

  SplitPattern compile() {
    const Tree root = choice(false, 0);
    if (at_ < pattern_.size()) refuse("a ) that closes nothing");
    out_.nodes_.emplace_back();  // accept
    std::vector<int> alternatives;
    if (root.kind == Tree::Kind::choice) {
      for (const Tree& branch : root.children) alternatives.push_back(emit(branch, 0));
    } else {
      alternatives.push_back(emit(root, 0));
    }
    out_.finish(alternatives);
    return std::move(out_);
  }

  static SplitPattern compile_literal(std::string_view text) {
    PatternCompiler compiler(text);
    Tree all{.kind = Tree::Kind::sequence};
    while (compiler.at_ < text.size()) all.children.push_back(compiler.one(compiler.next()));
    compiler.out_.nodes_.emplace_back();
    compiler.out_.finish({compiler.emit(all, 0)});
    return std::move(compiler.out_);
  }

 private:
  using Set = SplitPattern::Set;
  using Node = SplitPattern::Node;

  struct Tree {
    enum class Kind { set, sequence, choice, repeat, look } kind = Kind::sequence;
    int set = 0;
    std::int64_t min = 0;
    std::int64_t max = 0;
    bool is_possessive = false;
    bool is_negative = false;
    std::vector<Tree> children = {};
  };

  [[noreturn]] void refuse(std::string_view what) const {
    throw PatternError(fmt::format("at byte {} of the pattern: {}", at_, what));
  }

  bool is_at(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool take(std::string_view text) {
    if (!is_at(text)) return false;
    at_ += text.size();
    return true;
  }
  char32_t next() {
    if (at_ >= pattern_.size()) refuse("it ends too early");
    const Decoded at = decode_utf8(pattern_.data() + at_);
    at_ += static_cast<std::size_t>(at.length);
    return at.code_point;
  }

  int add_set(Set set) {
    auto& sets = out_.sets_;
    const auto found = std::find(sets.begin(), sets.end(), set);
    if (found != sets.end()) return static_cast<int>(found - sets.begin());
    if (sets.size() == kMaxSets) refuse("more than 64 different characters and classes");
    sets.push_back(std::move(set));
    return static_cast<int>(sets.size()) - 1;
  }
  Tree set_tree(Set set) { return Tree{.kind = Tree::Kind::set, .set = add_set(std::move(set))}; }
  Tree one(char32_t c) { return set_tree(Set{.ranges = {{c, c}}}); }

  // A character within (?i:...): what folds to it as well. Beyond ASCII that takes tables that nobody asks for.
  void add_folded(char32_t c, Set& set) {
    if (c >= 0x80) refuse("a character beyond ASCII within (?i:...) is not supported");
    set.ranges.push_back({c, c});
    if (!is_ascii_letter(c)) return;
    set.ranges.push_back({c ^ 0x20, c ^ 0x20});
    if ((c | 0x20) == 's') set.ranges.push_back({0x17f, 0x17f});    // long s
    if ((c | 0x20) == 'k') set.ranges.push_back({0x212a, 0x212a});  // the sign of kelvin
  }

  Tree choice(bool is_folded, int depth) {
    if (depth > kMaxDepth) refuse("groups are nested too deeply");
    Tree all{.kind = Tree::Kind::choice};
    do all.children.push_back(sequence(is_folded, depth));
    while (take("|"));
    if (all.children.size() == 1) return std::move(all.children.front());
    return all;
  }

  Tree sequence(bool is_folded, int depth) {
    Tree all{.kind = Tree::Kind::sequence};
    char32_t last = 0;  // a letter within (?i:...) just before
    while (at_ < pattern_.size() && pattern_[at_] != '|' && pattern_[at_] != ')') {
      const std::size_t begin = at_;
      Tree item = atom(is_folded, depth);
      if (is_folded) {
        const char32_t c = at_ == begin + 1 && is_ascii_letter(pattern_[begin]) ? pattern_[begin] | 0x20 : 0;
        // One character folds to two letters: sharp s, and the ligatures of ff, fi, fl, st.
        if ((last == 's' && (c == 's' || c == 't')) || (last == 'f' && (c == 'f' || c == 'i' || c == 'l')))
          refuse("ss, st, ff, fi or fl within (?i:...) is not supported");
        last = c;
      }
      all.children.push_back(repeated(std::move(item)));
    }
    return all;
  }

  Tree repeated(Tree item) {
    Tree out{.kind = Tree::Kind::repeat};
    if (take("?")) {
      out.max = 1;
    } else if (take("*")) {
      out.max = kUnbounded;
    } else if (take("+")) {
      out.min = 1;
      out.max = kUnbounded;
    } else if (is_at("{")) {
      return counted(std::move(item));
    } else {
      return item;
    }
    if (take("?")) refuse("lazy repetition is not supported");
    out.is_possessive = take("+");
    check_repeatable(item);
    out.children.push_back(std::move(item));
    return out;
  }

  Tree counted(Tree item) {
    take("{");
    Tree out{.kind = Tree::Kind::repeat};
    const bool has_min = is_digit();
    if (has_min) out.min = number();
    if (take(",")) {
      out.max = is_digit() ? number() : kUnbounded;
      if (!has_min && out.max == kUnbounded) refuse("{,} is no count");
    } else if (has_min) {
      out.max = out.min;
    } else {
      refuse("{ begins no count; write \\{ for the character");
    }
    if (!take("}") || out.max < out.min || out.max == 0) refuse("no valid count in { }");
    if (is_at("?") || is_at("+") || is_at("*") || is_at("{")) refuse("a count that is repeated is not supported");
    check_repeatable(item);
    out.children.push_back(std::move(item));
    return out;
  }

  void check_repeatable(const Tree& item) const {
    if (item.kind == Tree::Kind::look) refuse("a lookahead that is repeated is not supported");
  }

  bool is_digit() const { return at_ < pattern_.size() && pattern_[at_] >= '0' && pattern_[at_] <= '9'; }
  int number() {
    int value = 0;
    for (; is_digit(); ++at_) {
      value = value * 10 + (pattern_[at_] - '0');
      if (value > 1000) refuse("a count above 1000 is not supported");
    }
    return value;
  }

  Tree atom(bool is_folded, int depth) {
    if (take("(?!")) return look(true, is_folded, depth);
    if (take("(?=")) return look(false, is_folded, depth);
    if (take("(?:")) return group(is_folded, depth);
    if (take("(?i:")) return group(true, depth);
    if (is_at("(?")) refuse("this group is not supported; only (?:, (?i:, (?! and (?= are");
    if (take("(")) return group(is_folded, depth);
    if (take("[")) return set_tree(bracket(is_folded));
    if (is_at("^") || is_at("$")) refuse("anchors (^ and $) are not supported");
    if (is_at("*") || is_at("+") || is_at("?")) refuse("a repetition of nothing");
    if (take(".")) return set_tree(Set{.ranges = {{'\n', '\n'}}, .is_negated = true});
    Set set;
    if (take("\\")) {
      add_escape(set, is_folded);
    } else if (const char32_t c = next(); is_folded) {
      add_folded(c, set);
    } else {
      set.ranges.push_back({c, c});
    }
    return set_tree(std::move(set));
  }

  Tree group(bool is_folded, int depth) {
    Tree inside = choice(is_folded, depth + 1);
    if (!take(")")) refuse("a ( that nothing closes");
    return inside;
  }

  Tree look(bool is_negative, bool is_folded, int depth) {
    Tree inside = group(is_folded, depth);
    if (inside.kind == Tree::Kind::sequence && inside.children.size() == 1) inside = std::move(inside.children.front());
    if (inside.kind != Tree::Kind::set) refuse("a lookahead at more than one character or class is not supported");
    return Tree{.kind = Tree::Kind::look, .set = inside.set, .is_negative = is_negative};
  }

  // Behind a backslash: adds what it stands for. The character, if it is one.
  std::optional<char32_t> add_escape(Set& set, bool is_folded) {
    const std::size_t begin = at_;
    const char32_t c = next();
    const auto add_categories = [&](std::uint32_t categories, bool is_negated) {
      if (is_folded) refuse("a class within (?i:...) is not supported");
      constexpr std::uint32_t all = (1u << kNumCategories) - 1;
      set.categories |= is_negated ? all & ~categories : categories;
      return std::nullopt;
    };
    const auto add_one = [&](char32_t one) {
      if (is_folded) {
        add_folded(one, set);
      } else {
        set.ranges.push_back({one, one});
      }
      return std::optional(one);
    };
    switch (c) {
      case 's':
      case 'S':
        return add_categories(kSpaceCategories, c == 'S');
      case 'd':
      case 'D':
        return add_categories(category_bit(Category::Nd), c == 'D');
      case 'p':
      case 'P':
        return add_property(c == 'P', add_categories);
      case 'r':
        return add_one('\r');
      case 'n':
        return add_one('\n');
      case 't':
        return add_one('\t');
      case 'f':
        return add_one('\f');
      case 'v':
        return add_one('\v');
      case 'x':
        return add_one(hexadecimal(2));
      case 'u':
        return add_one(hexadecimal(4));
      default:
        break;
    }
    if (c >= 0x80 || is_ascii_letter(c) || (c >= '0' && c <= '9')) {
      at_ = begin;
      std::string name;
      append_utf8(c, name);
      refuse(fmt::format("\\{} is not supported", name));
    }
    return add_one(c);
  }

  template <class Add>
  std::optional<char32_t> add_property(bool is_negated, Add add_categories) {
    if (!take("{")) refuse("\\p without {");
    if (take("^")) is_negated = !is_negated;
    const std::size_t end = pattern_.find('}', at_);
    if (end == std::string_view::npos) refuse("\\p{ that nothing closes");
    const std::string_view name = pattern_.substr(at_, end - at_);
    const auto categories = categories_of(name);
    if (!categories)
      refuse(fmt::format("the property {} is not supported; only general categories are (L, Lu, N, ...)", name));
    at_ = end + 1;
    return add_categories(*categories, is_negated);
  }

  char32_t hexadecimal(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t c = next();
      const char32_t lower = c | 0x20;
      if (c >= '0' && c <= '9') {
        value = value * 16 + (c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        value = value * 16 + (lower - 'a' + 10);
      } else {
        refuse(fmt::format("{} hexadecimal digits are expected", digits));
      }
    }
    return value;
  }

  Set bracket(bool is_folded) {
    Set set;
    set.is_negated = take("^");
    if (is_at("]")) refuse("an empty class, or one that begins with ], is not supported");
    while (!take("]")) {
      if (is_at("[")) refuse("a class within a class is not supported");
      if (is_at("&&")) refuse("an intersection of classes is not supported");
      const std::optional<char32_t> first = member(set, is_folded);
      if (!first || !is_at("-") || is_at("-]")) continue;
      take("-");
      if (is_folded) refuse("a range within (?i:...) is not supported");
      const std::optional<char32_t> last = member(set, is_folded);
      if (!last || *last < *first) refuse("no valid range in [ ]");
      set.ranges.push_back({*first, *last});
    }
    return set;
  }

  std::optional<char32_t> member(Set& set, bool is_folded) {
    if (take("\\")) return add_escape(set, is_folded);
    const char32_t c = next();
    if (is_folded) {
      add_folded(c, set);
    } else {
      set.ranges.push_back({c, c});
    }
    return c;
  }

  int add_node(Node node) {
    if (out_.nodes_.size() == kMaxNodes) refuse("it is too long");
    out_.nodes_.push_back(std::move(node));
    return static_cast<int>(out_.nodes_.size()) - 1;
  }

  int emit(const Tree& tree, int next) {
    switch (tree.kind) {
      case Tree::Kind::set:
        return add_node({.kind = Node::Kind::run, .set = tree.set, .min = 1, .max = 1, .next = next});
      case Tree::Kind::look:
        return add_node({.kind = Node::Kind::look, .set = tree.set, .is_negative = tree.is_negative, .next = next});
      case Tree::Kind::sequence:
        for (auto child = tree.children.rbegin(); child != tree.children.rend(); ++child) next = emit(*child, next);
        return next;
      case Tree::Kind::choice: {
        Node node{.kind = Node::Kind::choice};
        for (const Tree& child : tree.children) node.branches.push_back(emit(child, next));
        return add_node(std::move(node));
      }
      case Tree::Kind::repeat:
        return emit_repeat(tree, next);
    }
    return next;
  }

  int emit_repeat(const Tree& tree, int next) {
    const Tree* item = &tree.children.front();
    while (item->kind == Tree::Kind::sequence && item->children.size() == 1) item = &item->children.front();
    if (item->kind == Tree::Kind::set)
      return add_node({.kind = Node::Kind::run,
                       .set = item->set,
                       .min = tree.min,
                       .max = tree.max,
                       .is_possessive = tree.is_possessive,
                       .next = next});
    if (tree.max > kMaxCopies) refuse("a group that repeats without end, or often, is not supported");
    if (tree.is_possessive) refuse("a possessive group is not supported");
    // X{1,3} is X(X(X)?)?: the last copy first.
    for (std::int64_t copy = tree.max; copy > 0; --copy) {
      const int behind = copy == tree.max ? next : emitted_;
      int body = emit(*item, behind);
      if (copy > tree.min) {
        Node node{.kind = Node::Kind::choice};
        node.branches = {body, next};
        body = add_node(std::move(node));
      }
      emitted_ = body;
    }
    return emitted_;
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  int emitted_ = 0;
  SplitPattern out_;
};

bool SplitPattern::Set::contains(char32_t c) const {
  bool is_in = (categories >> static_cast<unsigned>(CodePoints::get().category(c)) & 1) != 0;
  for (const Range& range : ranges) is_in = is_in || (c >= range.first && c <= range.last);
  return is_in != is_negated;
}

SplitPattern::SplitPattern(std::string_view pattern) : SplitPattern(PatternCompiler(pattern).compile()) {}

SplitPattern SplitPattern::literal(std::string_view text) {
  return PatternCompiler::compile_literal(text);
}

// `firsts`: of all nodes before this one, which are all that it leads to.
SplitPattern::First SplitPattern::first_of(const Node& node, const std::vector<First>& firsts) {
  const auto known = [&firsts](int index) { return firsts[static_cast<std::size_t>(index)]; };
  First first;
  switch (node.kind) {
    case Node::Kind::accept:
      first.accepts = first.is_nullable = true;
      break;
    case Node::Kind::look:
      first = known(node.next);
      first.looks |= 1ull << static_cast<unsigned>(node.set);
      first.accepts = false;
      break;
    case Node::Kind::choice:
      for (const int branch : node.branches) {
        const First other = known(branch);
        first.sets |= other.sets;
        first.looks |= other.looks;
        first.accepts = first.accepts || other.accepts;
        first.is_nullable = first.is_nullable || other.is_nullable;
      }
      break;
    case Node::Kind::run:
      if (node.min == 0) first = known(node.next);
      first.sets |= 1ull << static_cast<unsigned>(node.set);
      break;
  }
  return first;
}

void SplitPattern::finish(const std::vector<int>& alternatives) {
  if (alternatives.size() > kMaxAlternatives) throw PatternError("more than 32 alternatives are not supported");
  points_ = &CodePoints::get();
  alternatives_ = alternatives;
  for (std::size_t i = 0; i < sets_.size(); ++i) {
    const Set& set = sets_[i];
    const std::uint64_t bit = 1ull << i;
    for (char32_t c = 0; c < ascii_sets_.size(); ++c) {
      if (set.contains(c)) ascii_sets_[c] |= bit;
    }
    for (std::size_t category = 0; category < category_sets_.size(); ++category) {
      if (((set.categories >> category & 1) != 0) != set.is_negated) category_sets_[category] |= bit;
    }
    if (std::any_of(set.ranges.begin(), set.ranges.end(), [](const auto& range) { return range.last >= 0x80; }))
      exact_sets_ |= bit;
  }
  std::vector<First> firsts;
  for (const Node& node : nodes_) firsts.push_back(first_of(node, firsts));
  follows_.resize(sets_.size());
  for (const Node& node : nodes_) {
    if (node.kind != Node::Kind::run) continue;
    const First first = firsts[static_cast<std::size_t>(node.next)];
    std::uint64_t& follows = follows_[static_cast<std::size_t>(node.set)];
    follows |= first.sets | first.looks;
    if (node.max > 1) follows |= 1ull << static_cast<unsigned>(node.set);
  }
  for (const int alternative : alternatives_) {
    const First first = firsts[static_cast<std::size_t>(alternative)];
    if (first.is_nullable) throw PatternError("a pattern that matches the empty text is not supported");
    first_sets_.push_back(first.sets);
    // The characters that this alternative matches by themselves: of its runs that may come first, those behind which
    // nothing has to come.
    int index = alternative;
    for (const Node* node = &nodes_[static_cast<std::size_t>(index)]; node->kind == Node::Kind::run;
         index = node->next, node = &nodes_[static_cast<std::size_t>(index)]) {
      if (node->min <= 1 && firsts[static_cast<std::size_t>(node->next)].accepts)
        alone_sets_ |= 1ull << static_cast<unsigned>(node->set);
      if (node->min > 0) break;
    }
  }
  for (std::size_t c = 0; c < ascii_sets_.size(); ++c) {
    for (std::size_t i = 0; i < alternatives_.size(); ++i) {
      if ((first_sets_[i] & ascii_sets_[c]) != 0) ascii_alternatives_[c] |= 1u << i;
    }
  }
}

std::uint64_t SplitPattern::sets_of(char32_t c) const {
  if (c < 0x80) return ascii_sets_[c];
  std::uint64_t sets = category_sets_[static_cast<std::size_t>(points_->category(c))];
  for (std::uint64_t left = exact_sets_; left != 0; left &= left - 1) {
    const int i = std::countr_zero(left);
    const std::uint64_t bit = 1ull << static_cast<unsigned>(i);
    sets = sets_[static_cast<std::size_t>(i)].contains(c) ? sets | bit : sets & ~bit;
  }
  return sets;
}

const char* SplitPattern::run(int index, const char* at, const char* end) const {
  for (;;) {
    const Node& node = nodes_[static_cast<std::size_t>(index)];
    const std::uint64_t bit = 1ull << static_cast<unsigned>(node.set);
    switch (node.kind) {
      case Node::Kind::accept:
        return at;
      case Node::Kind::look:
        if ((at < end && (sets_of(decode_utf8(at).code_point) & bit) != 0) == node.is_negative) return nullptr;
        break;
      case Node::Kind::choice:
        for (const int branch : node.branches) {
          if (const char* stop = run(branch, at, end)) return stop;
        }
        return nullptr;
      case Node::Kind::run: {
        std::int64_t count = 0;
        for (; count < node.max && at < end; ++count) {
          const auto byte = static_cast<unsigned char>(*at);
          if (byte < 0x80) {
            if ((ascii_sets_[byte] & bit) == 0) break;
            ++at;
          } else {
            const Decoded next = decode_utf8(at);
            if ((sets_of(next.code_point) & bit) == 0) break;
            at += next.length;
          }
        }
        if (count < node.min) return nullptr;
        if (node.next == 0) return at;
        if (node.is_possessive) break;
        for (; count > node.min; --count) {
          if (const char* stop = run(node.next, at, end)) return stop;
          at = previous_utf8(at);
        }
        break;
      }
    }
    index = node.next;
  }
}

const char* SplitPattern::match(const char* begin, const char* end) const {
  const auto byte = static_cast<unsigned char>(*begin);
  if (byte < 0x80) {
    for (std::uint32_t left = ascii_alternatives_[byte]; left != 0; left &= left - 1) {
      const auto i = static_cast<std::size_t>(std::countr_zero(left));
      if (const char* stop = run(alternatives_[i], begin, end)) return stop;
    }
    return nullptr;
  }
  const std::uint64_t sets = sets_of(decode_utf8(begin).code_point);
  for (std::size_t i = 0; i < alternatives_.size(); ++i) {
    if ((first_sets_[i] & sets) == 0) continue;
    if (const char* stop = run(alternatives_[i], begin, end)) return stop;
  }
  return nullptr;
}

bool SplitPattern::may_straddle(char32_t x, char32_t y) const {
  const std::uint64_t next = sets_of(y);
  for (std::uint64_t left = sets_of(x); left != 0; left &= left - 1) {
    if ((follows_[static_cast<std::size_t>(std::countr_zero(left))] & next) != 0) return true;
  }
  return false;
}

bool SplitPattern::matches_alone(char32_t x) const {
  return (sets_of(x) & alone_sets_) != 0;
}

}  // namespace scaletrain
