// What the user may have meant by a key that does not exist.
#pragma once

#include <string>
#include <string_view>

namespace scaletrain {

// `path` is the unknown key's full path ("train.lr", "data.train.0.wieght"). Returns the end of a sentence, "; did you
// mean train.optimizer.learning_rate?", or a pointer to the list of keys.
std::string suggest_key(std::string_view path);

// The feature that an unknown key asks for, if it is one that does not exist yet ("context parallelism"); else empty.
std::string_view later_feature(std::string_view path);

}  // namespace scaletrain
