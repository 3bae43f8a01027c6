// Packs documents into rows of a fixed number of tokens, none of them cut: best fit over a bounded number of open rows.
//
// A document goes into the open row that it fills best; where it fits into none it begins one. When more rows are open
// than are kept, the fullest is done; so is one that is full. A pure function of the documents' lengths in their order:
// the same rows on every machine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace scaletrain {

struct PackedDocument {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> learned;  // of each token: 1 or 0
};

class RowPacker {
 public:
  using Row = std::vector<PackedDocument>;

  // row: hears of each row once it is done, in the order that they are to be read in.
  RowPacker(std::int64_t context, std::function<void(Row)> row);

  // At least one token, at most the context.
  void add(PackedDocument document);
  // All rows that are still open, the oldest first.
  void finish();

  // How many rows are kept open.
  static std::int64_t most_open(std::int64_t context);

 private:
  struct OpenRow {
    Row documents;
    std::int64_t room = 0;
  };
  void close(std::int64_t number);

  std::int64_t context_;
  std::function<void(Row)> row_;
  std::int64_t next_ = 0;
  std::map<std::int64_t, OpenRow> open_;                     // by number: the oldest first
  std::set<std::pair<std::int64_t, std::int64_t>> by_room_;  // room, number
};

}  // namespace scaletrain
