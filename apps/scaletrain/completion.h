// What a shell offers when the user presses the tabulator key. The shells' scripts know nothing of the program: they
// ask it, by the hidden command `complete -- WORD...`, what may stand for the last word, so that completions are always
// those of the program that is called.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace scaletrain {

struct Completion {
  std::string word;  // whole; one that ends in '=' goes on
  std::string meaning;
};

struct Completions {
  std::vector<Completion> words;  // that begin with what was typed
  bool files = false;             // paths of files and folders may stand here too
};

// words: those behind the program's name, up to the cursor; the last one is being typed and may be empty.
Completions complete(const CLI::App& app, const std::vector<std::string>& words);

// A line for each: the word, a tabulator, its meaning; a line ":files" for paths.
std::string to_text(const Completions& completions);

}  // namespace scaletrain
