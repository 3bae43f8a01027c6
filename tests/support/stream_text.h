// What is printed to a stream that is no terminal.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

namespace scaletrain {

inline std::string stream_text(const std::function<void(std::FILE*)>& print) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* stream = ::open_memstream(&text, &size);
  print(stream);
  std::fclose(stream);
  std::string out(text, size);
  std::free(text);  // NOLINT(cppcoreguidelines-no-malloc): open_memstream's buffer is the caller's to free
  return out;
}

}  // namespace scaletrain
