#include "data/instructions/row_packer.h"

#include <algorithm>

#include "base/error.h"

namespace scaletrain {

RowPacker::RowPacker(std::int64_t context, std::function<void(Row)> row) : context_(context), row_(std::move(row)) {
  SCALETRAIN_CHECK(context > 0);
}

std::int64_t RowPacker::most_open(std::int64_t context) {
  // The more are open, the less is padded; beyond some hundreds it no longer matters. Together a few million tokens.
  constexpr std::int64_t most = 512;
  constexpr std::int64_t tokens = std::int64_t{4} << 20;
  return std::clamp<std::int64_t>(tokens / context, 1, most);
}

void RowPacker::add(PackedDocument document) {
  const auto size = static_cast<std::int64_t>(document.tokens.size());
  SCALETRAIN_CHECK(size > 0 && size <= context_);
  const auto fit = by_room_.lower_bound({size, 0});
  std::int64_t number = next_;
  std::int64_t room = context_;
  if (fit != by_room_.end()) {
    room = fit->first;
    number = fit->second;
    by_room_.erase(fit);
  } else {
    ++next_;
  }
  OpenRow& row = open_[number];
  row.room = room - size;
  row.documents.push_back(std::move(document));
  by_room_.insert({row.room, number});
  if (row.room == 0) close(number);
  if (std::ssize(open_) > most_open(context_)) close(by_room_.begin()->second);
}

void RowPacker::close(std::int64_t number) {
  const auto row = open_.find(number);
  by_room_.erase({row->second.room, number});
  row_(std::move(row->second.documents));
  open_.erase(row);
}

void RowPacker::finish() {
  while (!open_.empty()) close(open_.begin()->first);
}

}  // namespace scaletrain
