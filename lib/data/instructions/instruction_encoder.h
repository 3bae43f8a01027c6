// Instructions as tokens, with the mask of those that are learned.
//
//   messages           the chat template's text, whose ids are those of Hugging Face's
//   apply_chat_template(tokenize=True).
//                      Learned are each answer and the token that ends its turn, as `{% generation %}` marks them; not
//                      the role before it, nor what the template puts behind the turn.
//   prompt_completion  what begins a document, prompt and completion as one text, and the token that ends a completion
//                      (completion_end() in instruction_source.h) unless the text ends with it already. Learned are the
//                      completion and that token.
//
// A token that reaches over the border is learned if any of it is: where "a: " and "b" make the token " b", that one.
//
// What people wrote as a message's content is text: a special token that it spells (`<|im_end|>`) becomes the tokens of
// its letters, so that nobody ends a turn from within one. (transformers lets it; its split_special_tokens=True does as
// is done here.) Prompts and completions are whole texts, in which special tokens are themselves, as in all text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "data/instructions/instruction_record.h"
#include "data/instructions/row_packer.h"
#include "data/tokens/bpe/added_tokens.h"
#include "data/tokens/chat/chat_template.h"
#include "data/tokens/tokenizer.h"

namespace scaletrain {

// All that decides what a record becomes, but for the tokenizer.
struct InstructionRules {
  RecordKind records = RecordKind::messages;
  InstructionLoss loss = InstructionLoss::answers;
  std::optional<ChatTemplate> chat{};  // of messages
  std::int64_t context = 0;            // tokens of a row
  // Ends a completion in place of the tokenizer's end_of_document(), which is another token; and who names it.
  std::optional<std::int32_t> end{};
  std::string end_named_by{};
  std::string template_key = "data.instructions.chat_template";  // names the template in messages; decides nothing
  std::uint64_t hash() const;
};

struct EncodedInstruction {
  PackedDocument document;
  bool quotes_special = false;  // a message spells a special token, which was taken for text
};

// Const members may be called concurrently. Does not own the tokenizer.
class InstructionEncoder {
 public:
  // InputError: the template's token that ends a turn is none of the tokenizer's, or takes white space around it, which
  // is not done here.
  InstructionEncoder(InstructionRules rules, const Tokenizer& tokenizer);

  // BadRecordError, whose message begins with `where`: a role that the template does not have; nothing that is learned.
  EncodedInstruction encode(const InstructionRecord& record, const std::string& where) const;

  const InstructionRules& rules() const { return rules_; }

 private:
  class Assembly;

  EncodedInstruction encode_messages(const InstructionRecord& record, const std::string& where) const;
  EncodedInstruction encode_completion(const InstructionRecord& record) const;

  InstructionRules rules_;
  const Tokenizer& tokenizer_;
  AddedTokenFinder special_;
};

}  // namespace scaletrain
