// The error that ended a communicator: the first one stays, and every later call fails with it.
#pragma once

#include <mutex>
#include <new>
#include <optional>
#include <string>

#include "base/error.h"

namespace scaletrain {

// Kept as text, so that several threads may throw it. Thread-safe.
class FirstError {
 public:
  // Inside a catch block: keeps the error being handled.
  void keep_current() {
    try {
      throw;
    } catch (const PeerError& error) {
      keep(Kind::peer, error.what());
    } catch (const std::bad_alloc&) {
      keep_shortage();
    } catch (const std::exception& error) {
      keep(Kind::bug, error.what());
    }
  }
  void keep_peer(const std::string& text) { keep(Kind::peer, text.c_str()); }

  void throw_if_any() const {
    const std::lock_guard lock(mutex_);
    if (is_short_of_memory_) throw std::bad_alloc();
    if (!text_) return;
    if (kind_ == Kind::bug) throw BugError(*text_);
    throw PeerError(*text_);
  }

 private:
  enum class Kind { peer, bug };

  // There may be no memory for the text either.
  void keep(Kind kind, const char* text) {
    try {
      const std::lock_guard lock(mutex_);
      if (text_ || is_short_of_memory_) return;
      text_.emplace(text);
      kind_ = kind;
    } catch (const std::bad_alloc&) {
      keep_shortage();
    }
  }
  void keep_shortage() {
    const std::lock_guard lock(mutex_);
    if (!text_) is_short_of_memory_ = true;
  }

  mutable std::mutex mutex_;
  Kind kind_ = Kind::peer;
  std::optional<std::string> text_;
  bool is_short_of_memory_ = false;
};

}  // namespace scaletrain
