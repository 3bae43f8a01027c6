#include "data/tokens/bpe/bpe_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/tokens/bpe/unicode.h"

namespace scaletrain {
namespace {

// Raise it when the ids of some text become others with the same files: through the Unicode tables, patterns, added
// tokens, normalisation or merges. It is part of the tokenizer's hash, so that text in the cache is tokenised anew.
constexpr int kBpeRules = 1;

// What published tokenizers call the token between documents.
constexpr std::array<std::string_view, 5> kEndNames = {"<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>",
                                                       "</s>", "<eos>"};

std::string place_of(const BpeSpec& spec) {
  return spec.files.empty() ? "the tokenizer" : spec.files.front().string();
}

enum class Wanted { all, plain };

std::vector<AddedToken> those_of(const BpeSpec& spec, bool is_normalized, Wanted wanted) {
  const bool is_nfc = spec.is_nfc;
  std::vector<AddedToken> out;
  for (const AddedToken& token : spec.added) {
    if (token.is_normalized != is_normalized || (wanted == Wanted::plain && token.is_special)) continue;
    out.push_back(token);
    if (!is_normalized || !is_nfc) continue;
    if (auto content = normalize_nfc(token.content)) out.back().content = *std::move(content);
  }
  return out;
}

}  // namespace

// One call of encode().
struct BpeTokenizer::Run {
  struct Range {
    std::size_t begin;
    std::size_t end;
    bool is_match;
  };

  const Finders* finders = nullptr;
  BpeMerges::Workspace workspace;
  const char* readable_end = nullptr;  // of the text that pieces now are cut from
  std::vector<std::int32_t> tokens;
  std::vector<AddedTokenFinder::Part> parts;
  std::vector<AddedTokenFinder::Part> normalized_parts;
};

BpeTokenizer::BpeTokenizer(BpeSpec spec, std::optional<std::int64_t> end_of_document)
    : spec_(std::move(spec)),
      merges_(spec_.model),
      added_{AddedTokenFinder(those_of(spec_, false, Wanted::all)),
             AddedTokenFinder(those_of(spec_, true, Wanted::all))},
      added_plain_{AddedTokenFinder(those_of(spec_, false, Wanted::plain)),
                   AddedTokenFinder(those_of(spec_, true, Wanted::plain))},
      prefix_step_(spec_.steps.size()) {
  if (spec_.uses_gpt2_pattern) spec_.steps.push_back({SplitPattern(kGpt2Pattern)});
  set_texts();
  choose_end(end_of_document);
  spec_.model = BpeModel();
}

BpeTokenizer::~BpeTokenizer() = default;

void BpeTokenizer::set_texts() {
  std::size_t size = spec_.model.tokens.size();
  for (const AddedToken& token : spec_.added) size = std::max(size, static_cast<std::size_t>(token.id) + 1);
  texts_.resize(size);
  for (std::size_t id = 0; id < spec_.model.tokens.size(); ++id) texts_[id] = spec_.model.tokens[id].value_or("");
  for (const AddedToken& token : spec_.added)
    texts_[static_cast<std::size_t>(token.id)] = token.is_special ? "" : token.content;
  for (const auto* ids : {&spec_.before_text, &spec_.after_text}) {
    for (const std::int32_t id : *ids) {
      if (static_cast<std::size_t>(id) >= size)
        throw InputError(fmt::format("{}: post_processor: the template's token {} is not in the vocabulary of {}",
                                     place_of(spec_), id, size));
    }
  }
}

void BpeTokenizer::choose_end(std::optional<std::int64_t> given) {
  const auto added = [this](auto is_it) { return std::find_if(spec_.added.begin(), spec_.added.end(), is_it); };
  std::optional<std::int64_t> end = given;
  if (!end && !spec_.after_text.empty()) end = spec_.after_text.front();
  for (const std::string_view name : kEndNames) {
    const auto found = added([name](const AddedToken& token) { return token.content == name; });
    if (!end && found != spec_.added.end()) end = found->id;
  }
  const std::string file = place_of(spec_);
  if (!end)
    throw UnknownEndError(fmt::format("{}: it is not known which token ends a document: there is none of {}", file,
                                      fmt::join(kEndNames, ", ")));
  if (*end < 0 || *end >= vocab_size())
    throw UserError(fmt::format("data.tokenizer.end_of_document: {} is not a token; {} has the tokens 0 to {}", *end,
                                file, vocab_size() - 1));
  end_of_document_ = static_cast<std::int32_t>(*end);
  const auto found = added([this](const AddedToken& token) { return token.id == end_of_document_; });
  end_text_ = found != spec_.added.end() ? found->content : texts_[static_cast<std::size_t>(end_of_document_)];
}

std::unique_ptr<BpeTokenizer::Run> BpeTokenizer::borrow() const {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto run = std::move(idle_.back());
      idle_.pop_back();
      return run;
    }
  }
  return std::make_unique<Run>();
}

void BpeTokenizer::give_back(std::unique_ptr<Run> run) const {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(run));
}

std::vector<std::int32_t> BpeTokenizer::encode(std::string_view text) const {
  return encode_with(added_, text);
}

std::vector<std::int32_t> BpeTokenizer::encode_plain(std::string_view text) const {
  return encode_with(added_plain_, text);
}

std::vector<AddedToken> BpeTokenizer::special_tokens() const {
  std::vector<AddedToken> tokens;
  for (const AddedToken& token : spec_.added)
    if (token.is_special) tokens.push_back(token);
  return tokens;
}

std::string BpeTokenizer::normalized(std::string_view text) const {
  std::string valid = is_valid_utf8(text) ? std::string(text) : replace_malformed_utf8(text);
  if (!spec_.is_nfc) return valid;
  return normalize_nfc(valid).value_or(valid);
}

std::vector<std::int32_t> BpeTokenizer::encode_with(const Finders& finders, std::string_view text) const {
  std::unique_ptr<Run> run = borrow();
  run->finders = &finders;
  run->tokens.reserve(text.size() / 4 + 8);  // English has about 4.5 bytes a token
  if (is_valid_utf8(text)) {
    encode_parts(text, *run);
  } else {
    encode_parts(replace_malformed_utf8(text), *run);
  }
  std::vector<std::int32_t> tokens = std::move(run->tokens);
  run->tokens.clear();
  give_back(std::move(run));
  return tokens;
}

void BpeTokenizer::encode_parts(std::string_view text, Run& run) const {
  run.parts.clear();
  run.finders->exact.split(text, run.parts);
  for (const AddedTokenFinder::Part& part : run.parts) {
    if (part.token) {
      run.tokens.push_back(*part.token);
      continue;
    }
    if (spec_.is_nfc) {
      if (const auto normal = normalize_nfc(part.text)) {
        run.readable_end = normal->data() + normal->size();
        encode_normalized(*normal, run);
        continue;
      }
    }
    run.readable_end = text.data() + text.size();
    encode_normalized(part.text, run);
  }
}

void BpeTokenizer::encode_normalized(std::string_view text, Run& run) const {
  if (run.finders->normalized.empty()) {
    deliver(0, text, run);
    return;
  }
  const char* const readable_end = run.readable_end;
  run.normalized_parts.clear();
  run.finders->normalized.split(text, run.normalized_parts);
  for (const AddedTokenFinder::Part& part : run.normalized_parts) {
    run.readable_end = readable_end;
    if (part.token) {
      run.tokens.push_back(*part.token);
    } else {
      deliver(0, part.text, run);
    }
  }
}

// A piece that comes to step `step`; behind the last one it is encoded.
void BpeTokenizer::deliver(std::size_t step, std::string_view piece, Run& run) const {
  if (piece.empty()) return;
  if (step == prefix_step_ && spec_.adds_prefix_space && piece.front() != ' ') {
    std::string spaced = " ";
    spaced += piece;
    const char* const readable_end = std::exchange(run.readable_end, spaced.data() + spaced.size());
    split(step, spaced, run);
    run.readable_end = readable_end;
    return;
  }
  split(step, piece, run);
}

void BpeTokenizer::split(std::size_t step, std::string_view text, Run& run) const {
  if (step == spec_.steps.size()) {
    merges_.encode(text, run.readable_end, run.workspace, run.tokens);
    return;
  }
  if (spec_.steps[step].behavior != SplitBehavior::isolated) {
    split_by_ranges(step, text, run);
    return;
  }
  const SplitPattern& pattern = spec_.steps[step].pattern;
  const bool is_last = step + 1 == spec_.steps.size() && !(spec_.adds_prefix_space && step + 1 == prefix_step_);
  const auto give = [&](const char* begin, const char* end) {
    const std::string_view piece(begin, static_cast<std::size_t>(end - begin));
    if (is_last) {
      merges_.encode(piece, run.readable_end, run.workspace, run.tokens);
    } else {
      deliver(step + 1, piece, run);
    }
  };
  const char* const end = text.data() + text.size();
  const char* gap = text.data();  // from here on nothing has matched
  for (const char* at = gap; at < end;) {
    const char* const stop = pattern.match(at, end);
    if (stop == nullptr) {
      at += decode_utf8(at).length;
      continue;
    }
    if (gap < at) give(gap, at);
    give(at, stop);
    gap = at = stop;
  }
  if (gap < end) give(gap, end);
}

// The other behaviours, as tokenizers' NormalizedString::split has them.
void BpeTokenizer::split_by_ranges(std::size_t step, std::string_view text, Run& run) const {
  const SplitStep& rules = spec_.steps[step];
  std::vector<Run::Range> ranges;
  const auto add = [&](std::size_t begin, std::size_t end, bool is_match) {
    if (begin < end) ranges.push_back({begin, end, is_match != rules.is_inverted});
  };
  const char* const begin = text.data();
  std::size_t gap = 0;
  for (std::size_t at = 0; at < text.size();) {
    const char* const stop = rules.pattern.match(begin + at, begin + text.size());
    if (stop == nullptr) {
      at += static_cast<std::size_t>(decode_utf8(begin + at).length);
      continue;
    }
    add(gap, at, false);
    add(at, static_cast<std::size_t>(stop - begin), true);
    gap = at = static_cast<std::size_t>(stop - begin);
  }
  add(gap, text.size(), false);

  std::vector<Run::Range> joined;
  const bool is_backward = rules.behavior == SplitBehavior::merged_with_next;
  if (is_backward) std::reverse(ranges.begin(), ranges.end());
  bool was_match = false;
  for (const Run::Range& range : ranges) {
    const bool joins = !joined.empty() && (rules.behavior == SplitBehavior::contiguous ? range.is_match == was_match
                                                                                       : range.is_match && !was_match);
    if (rules.behavior == SplitBehavior::removed) {
      if (!range.is_match) joined.push_back(range);
    } else if (!joins) {
      joined.push_back(range);
    } else if (is_backward) {
      joined.back().begin = range.begin;
    } else {
      joined.back().end = range.end;
    }
    was_match = range.is_match;
  }
  if (is_backward) std::reverse(joined.begin(), joined.end());
  for (const Run::Range& range : joined) deliver(step + 1, text.substr(range.begin, range.end - range.begin), run);
}

std::string BpeTokenizer::decode(std::span<const std::int32_t> tokens) const {
  return joined_texts(texts_, tokens);
}

std::string BpeTokenizer::special_name(std::int32_t token) const {
  for (const AddedToken& added : spec_.added)
    if (added.id == token && added.is_special) return added.content;
  return {};
}

// Between x and y each step cuts, or lets nothing depend on where the text ends; and one of them cuts.
bool BpeTokenizer::is_safe(char32_t x, char32_t y) const {
  const CodePoints& points = CodePoints::get();
  // Before a y that composes with what follows, which is not known here, stands another character in the end.
  if (spec_.is_nfc && !(points.is_stable(x) && points.is_stable(y) && !points.may_compose(y))) return false;
  if (added_.exact.may_straddle(x, y) || added_.normalized.may_straddle(x, y)) return false;
  bool is_cut = false;
  for (std::size_t step = 0; step < spec_.steps.size(); ++step) {
    const SplitStep& rules = spec_.steps[step];
    if (rules.behavior != SplitBehavior::isolated || rules.pattern.may_straddle(x, y)) return false;
    if (step == prefix_step_ && spec_.adds_prefix_space && !is_cut && y != ' ') return false;
    is_cut = is_cut || rules.pattern.matches_alone(x);
  }
  return is_cut;
}

std::size_t BpeTokenizer::safe_cut(std::string_view text) const {
  return last_cut(text, [this](char32_t x, char32_t y) { return is_safe(x, y); });
}

std::string BpeTokenizer::description() const {
  return fmt::format("bpe {}, {} tokens, end of document {} {}, rules {}", to_hex(spec_.content_hash), vocab_size(),
                     end_of_document_, quoted(end_text_), kBpeRules);
}

}  // namespace scaletrain
