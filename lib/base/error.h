// Errors, told apart by who can mend them. Each kind ends the process with its own exit code (see process/exit_code.h).
//
// A message names the key, file, offset or rank, what was found, what was expected and what to do. Throwing is the only
// way a function of this project reports failure; destructors never throw.
#pragma once

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace scaletrain {

// The user's command line or config is wrong: nothing was started, nothing was written.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Data, a checkpoint or a file system is not what it should be.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A peer, a worker or the network failed; a restart from the newest checkpoint may succeed.
class PeerError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Training diverged past what the config's policy allows.
class DivergedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A bug in this program. Thrown by SCALETRAIN_CHECK and base/numbers/checked.h only.
class BugError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

namespace detail {
[[noreturn]] void throw_bug(const char* file, int line, std::string_view condition, std::string_view operands);

template <class A, class B>
[[noreturn]] void throw_bug_operands(const char* file, int line, std::string_view condition, const A& a, const B& b) {
  std::ostringstream text;
  text << a << " against " << b;
  throw_bug(file, line, condition, text.str());
}
}  // namespace detail

}  // namespace scaletrain

// A condition that only a bug can break; the message has file and line. Always on.
#define SCALETRAIN_CHECK(condition)                                                        \
  do {                                                                                     \
    if (!(condition)) [[unlikely]]                                                         \
      ::scaletrain::detail::throw_bug(__FILE__, __LINE__, #condition, std::string_view()); \
  } while (false)

// The same for a comparison: prints both operands, which must be printable by an ostream. They are copied: one may be
// part of a temporary.
#define SCALETRAIN_CHECK_OP(a, op, b)                                                                    \
  do {                                                                                                   \
    const auto check_a = (a);                                                                            \
    const auto check_b = (b);                                                                            \
    if (!(check_a op check_b)) [[unlikely]]                                                              \
      ::scaletrain::detail::throw_bug_operands(__FILE__, __LINE__, #a " " #op " " #b, check_a, check_b); \
  } while (false)
#define SCALETRAIN_CHECK_EQ(a, b) SCALETRAIN_CHECK_OP(a, ==, b)
#define SCALETRAIN_CHECK_LE(a, b) SCALETRAIN_CHECK_OP(a, <=, b)
#define SCALETRAIN_CHECK_LT(a, b) SCALETRAIN_CHECK_OP(a, <, b)
