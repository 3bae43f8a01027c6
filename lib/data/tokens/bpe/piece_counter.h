// How often each piece occurs in a text that a pattern cuts: what byte-pair encoding is trained on. Threads count parts
// of the text side by side; what comes out does not depend on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace scaletrain {

struct PieceCount {
  std::string piece;  // valid UTF-8
  std::uint64_t count = 0;
};

class PieceCounter {
 public:
  // pattern: of split_pattern.h; what lies between its matches is a piece too. Throws PatternError.
  PieceCounter(std::string_view pattern, int threads);
  ~PieceCounter();
  PieceCounter(const PieceCounter&) = delete;
  PieceCounter& operator=(const PieceCounter&) = delete;

  // The next bytes of the current document, by one thread. Malformed UTF-8 is counted as U+FFFD.
  void add(std::string_view text);
  void end_document();
  // In the order of the pieces' bytes. Nothing may be added after it.
  std::vector<PieceCount> finish();

 private:
  struct Pool;

  void hand_on();

  std::unique_ptr<Pool> pool_;
  std::string text_;               // of documents and the beginning of another one
  std::vector<std::size_t> ends_;  // of the documents in it
  std::size_t wanted_;
};

}  // namespace scaletrain
