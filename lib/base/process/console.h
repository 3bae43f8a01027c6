// Writing for people to a terminal, a pipe or a job's log that may stand still: a pager that is left on a page, a
// terminal with Ctrl-S. A program that trains must not stand with it.
#pragma once

#include <string_view>

namespace scaletrain {

// Writes all of the text, or as much as is taken within `patience` seconds; false if that is not all. Regular files are
// always waited for. Other processes that share the descriptor see no change of its flags. Errors count as written:
// there is nobody to read.
bool write_to_console(int descriptor, std::string_view text, double patience);

}  // namespace scaletrain
