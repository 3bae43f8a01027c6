// What the user may have meant by a key, also by one that does not exist.
#pragma once

#include <string>
#include <string_view>

namespace scaletrain {

// `path` is the unknown key's full path ("train.lr", "data.train.0.wieght"). Returns the end of a sentence, "; did you
// mean train.optimizer.learning_rate?", or a pointer to the list of keys.
std::string suggest_key(std::string_view path);

// As the key table writes it: "data.train.0.weight" is "data.train[].weight".
std::string table_path(std::string_view path);

}  // namespace scaletrain
