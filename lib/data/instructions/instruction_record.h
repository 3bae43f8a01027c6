// A line of JSONL as the conversation, or the prompt and completion, that it holds.
//
//   records: messages           {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", ...}, ...]}
//                               {"prompt": [{"role": ...}, ...], "completion": [{"role": "assistant", ...}]}
//   records: prompt_completion  {"prompt": "...", "completion": "..."}
//
// The shapes are those of Hugging Face's TRL. Other keys of a line are left alone, but for those that would make the
// text another one (tools, a message's tool_calls, ...): such a record is a bad one, and never read without them.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "data/tokens/chat/chat_template.h"

namespace scaletrain {

struct InstructionRecord {
  std::vector<ChatMessage> messages;  // of records: messages; at least one
  std::size_t first_answer = 0;       // answers before this message are read, not learned
  std::string prompt;                 // of records: prompt_completion
  std::string completion;
};

// BadRecordError, whose message begins with `where`: it holds no such record.
InstructionRecord parse_instruction(std::string_view line, RecordKind records, const std::string& where);

// There is something to learn where only answers are: a completion, or a message of the assistant that is not only
// read.
bool has_answer(const InstructionRecord& record);

// What a line without the field that `records: text` names looks like by its other fields; nothing: no instructions.
std::optional<RecordKind> instructions_of(const nlohmann::json& object);
// "conversations", "prompts and completions".
std::string_view noun_of(RecordKind records);
// What reads such lines, and what does not.
std::string instruction_uses(RecordKind records);

}  // namespace scaletrain
