// How large a task (choice_task.h) is, without a tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>

namespace scaletrain {

// ChoiceTask::num_rows() of the file. InputError as there, but for what only tokens tell.
std::int64_t count_choices(const std::filesystem::path& file);

}  // namespace scaletrain
