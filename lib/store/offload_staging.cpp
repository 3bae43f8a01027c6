#include "store/offload_staging.h"

#include <algorithm>

namespace scaletrain {

namespace {

OptimizerRange piece_of(const OptimizerRange& range, std::int64_t first, std::int64_t count) {
  OptimizerRange piece = range;
  piece.first += first;
  piece.param = range.param.rows(first, count);
  if (range.compute) piece.compute = range.compute.rows(first, count);
  if (range.gradient) piece.gradient = range.gradient.rows(first, count);
  for (View& state : piece.states) state = state.rows(first, count);
  return piece;
}

}  // namespace

OffloadStaging::OffloadStaging(Backend& backend, const StoreMemory& memory)
    : backend_(backend),
      memory_(memory),
      places_(static_cast<std::size_t>(memory.num_state_staging)),
      in_(backend.make_stream()),
      back_(backend.make_stream()) {
  for (Place& place : places_) place.memory = backend.allocate(memory.state_staging);
}

OffloadStaging::~OffloadStaging() {
  for (const auto* stream : {&in_, &back_}) {
    try {
      (*stream)->synchronize();
    } catch (...) {  // NOLINT: a destructor reports nothing
    }
  }
}

// Params first, then each state, all of the largest size.
View OffloadStaging::staged(const Place& place, std::size_t index, const View& values) const {
  const std::size_t each = memory_.state_staging / (1 + memory_.num_states);
  return place.memory.view(index * each, values.dtype(), values.shape());
}

void OffloadStaging::pass_piece(Stream& stream, const OptimizerRange& piece, Way way, const Use& use) {
  Place& place = places_[next_];
  next_ = (next_ + 1) % places_.size();
  OptimizerRange there = piece;
  there.param = staged(place, 0, piece.param);
  for (std::size_t state = 0; state < piece.states.size(); ++state)
    there.states[state] = staged(place, 1 + state, piece.states[state]);

  in_->after(place.free);
  backend_.copy(*in_, piece.param, there.param);
  for (std::size_t state = 0; state < piece.states.size(); ++state)
    backend_.copy(*in_, piece.states[state], there.states[state]);
  stream.after(in_->record());
  use(there);
  if (way == Way::in) {
    place.free = stream.record();
    return;
  }
  back_->after(stream.record());
  backend_.copy(*back_, there.param, piece.param);
  for (std::size_t state = 0; state < piece.states.size(); ++state)
    backend_.copy(*back_, there.states[state], piece.states[state]);
  place.free = back_->record();
}

void OffloadStaging::pass(Stream& stream, std::span<const OptimizerRange> ranges, Way way, const Use& use) {
  in_->after(stream.record());
  // The stream is behind all that used them before.
  for (Place& place : places_) place.free = Event();
  for (const OptimizerRange& range : ranges) {
    const std::int64_t all = range.param.num_elements();
    for (std::int64_t first = 0; first < all; first += memory_.staged_elements)
      pass_piece(stream, piece_of(range, first, std::min(memory_.staged_elements, all - first)), way, use);
  }
  if (way == Way::in_and_back) stream.after(back_->record());
}

void OffloadStaging::update(Stream& stream, std::span<const OptimizerRange> ranges, const Use& use) {
  pass(stream, ranges, Way::in_and_back, use);
}

void OffloadStaging::read(Stream& stream, std::span<const OptimizerRange> ranges, const Use& use) {
  pass(stream, ranges, Way::in, use);
}

std::uint64_t OffloadStaging::bytes() const {
  std::uint64_t total = 0;
  for (const Place& place : places_) total += place.memory.size();
  return total;
}

}  // namespace scaletrain
