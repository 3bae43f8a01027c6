#include "checkpoint/save/staging.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace scaletrain {

namespace {
constexpr std::size_t smallest_page = 4096;
// Of what is counted as one piece of work: milliseconds, even where every page is new.
constexpr std::size_t counted_bytes = std::size_t{4} << 20;
}  // namespace

// The pieces lie one behind the other in the order in which they are written.
StateStaging::StateStaging(const ParamStore& store, WorkCount* work) : store_(store), work_(work) {
  std::size_t bytes = 0;
  for (const SavePiece& piece : make_save_plan(table(), layout(), state_names(), dtype())) {
    const ConstView stored = stored_values(store, piece);
    bytes = align_up(bytes, size_of(stored.dtype()));
    const bool is_new = parts_.emplace(place_of(piece), Part{stored, bytes}).second;
    SCALETRAIN_CHECK(is_new);
    bytes += stored.num_bytes();
  }
  // With offload frozen parameters are in the device's memory, and all else in the host's.
  const bool is_of_device = std::any_of(
      parts_.begin(), parts_.end(), [](const auto& entry) { return !is_host_accessible(entry.second.stored.space()); });
  memory_ = is_of_device ? store.backend().allocate_pinned(bytes) : Buffer(bytes);
  if (is_of_device) stream_ = store.backend().make_stream();
}

StateStaging::~StateStaging() {
  try {
    if (stream_) stream_->synchronize();
  } catch (...) {  // NOLINT: a destructor reports nothing
  }
}

View StateStaging::copy_of(const Part& part) const {
  return memory_.view(part.offset, part.stored.dtype(), part.stored.shape());
}

void StateStaging::prefault() {
  if (stream_) return;  // pinned pages are there, and a copy may be on its way into them
  for (std::size_t offset = 0; offset < memory_.size(); offset += smallest_page) {
    volatile std::byte* const page = memory_.data() + offset;
    *page = std::byte{0};
    if (offset % counted_bytes == 0) count_work(work_);
  }
}

void StateStaging::begin(Stream& stream) {
  if (!stream_) return;
  stream_->after(stream.record());
  for (const auto& [place, part] : parts_) store_.backend().copy(*stream_, part.stored, copy_of(part));
  copied_ = stream_->record();
}

bool StateStaging::hold_back(Stream& stream) const {
  if (stream_) stream.after(copied_);
  return stream_ != nullptr;
}

void StateStaging::copy() {
  if (stream_) {
    copied_.wait();
    count_work(work_);
    return;
  }
  for (const auto& [place, part] : parts_) {
    const std::byte* const from = part.stored.bytes();
    const std::size_t all = part.stored.num_bytes();
    for (std::size_t done = 0; done < all; done += counted_bytes) {
      std::memcpy(memory_.data() + part.offset + done, from + done, std::min(counted_bytes, all - done));
      count_work(work_);
    }
  }
}

ConstView StateStaging::values(const SavePiece& piece) const {
  const auto found = parts_.find(place_of(piece));
  SCALETRAIN_CHECK(found != parts_.end());
  const ConstView& stored = found->second.stored;
  SCALETRAIN_CHECK_EQ(stored.num_elements(), piece.box.num_elements());
  return copy_of(found->second);
}

}  // namespace scaletrain
