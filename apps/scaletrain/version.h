// What this program is: --version.
#pragma once

#include <string>

namespace scaletrain {

// The commit it was built from: "d0e8671c1f5a", "... with local changes"; empty where that was not known.
extern const char* const built_commit;

// Some lines without a last line end: version and commit, compiler and build type, libraries, and the kernels that this
// processor is given.
std::string version_text();

}  // namespace scaletrain
