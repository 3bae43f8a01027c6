// What tests ask of texts, and of the messages of errors.
#pragma once

#include <string>
#include <string_view>

namespace scaletrain {

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// The message of the Error that f throws; empty if it throws nothing. Any other exception fails the test.
template <class Error, class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace scaletrain
