// The hidden names inside a checkpoints folder, which no listing shows.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace scaletrain {

inline constexpr std::string_view saving_prefix = ".saving-";        // a save in progress, or left by a dead one
inline constexpr std::string_view removing_prefix = ".removing-";    // being deleted
inline constexpr std::string_view damaged_prefix = ".damaged-";      // did not verify; kept for a person to look at
inline constexpr std::string_view abandoned_prefix = ".abandoned-";  // of a branch that training left; kept likewise

// FOLDER/PREFIX NAME-N with the smallest N that is free.
std::filesystem::path free_hidden_name(const std::filesystem::path& checkpoint, std::string_view prefix);
// Renames durably to such a name and returns it.
std::filesystem::path rename_to_hidden(const std::filesystem::path& checkpoint, std::string_view prefix);

}  // namespace scaletrain
