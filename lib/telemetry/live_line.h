// The text of a line that renews itself on a terminal: it must not wrap, because a line that wraps cannot be cleared
// again, and should not end inside a word.
#pragma once

#include <cstdio>
#include <span>
#include <string>

namespace scaletrain {

// The first fields, as many as fit whole into the terminal behind the stream as wide as it is now; all where the stream
// is no terminal. Of a first field that is wider than the terminal its beginning.
std::string fields_that_fit(std::FILE* out, std::span<const std::string> fields);

}  // namespace scaletrain
