// Internal to the parameter store: the way of masters and optimizer state that lie in the host's memory through the
// device, whose kernels read and write its own memory alone. They pass in pieces of bounded size: while one is updated
// the next is on its way in and the one before on its way back, so that both directions of the bus and the kernels work
// at once. The kernels are the same as without, element by element, and so are the bits.
//
// Streams order everything and the host waits for nothing. A pass begins when the given stream has come there, and what
// that stream is given behind a pass finds the host's memory as the pass has left it: whoever reads state behind that
// stream need not know that it was elsewhere.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "store/param_store.h"
#include "store/store_memory.h"

namespace scaletrain {

class OffloadStaging {
 public:
  // Both must outlive this, and so must the ranges' memory.
  OffloadStaging(Backend& backend, const StoreMemory& memory);
  // Waits for copies under way.
  ~OffloadStaging();
  OffloadStaging(const OffloadStaging&) = delete;
  OffloadStaging& operator=(const OffloadStaging&) = delete;

  // Issues to the stream what is to be done with a piece of a range, whose `param` and `states` are in the device's
  // memory; its other views are those of the range.
  using Use = std::function<void(const OptimizerRange& piece)>;
  // Passes the ranges' params and states through the device, and back to where they were.
  void update(Stream& stream, std::span<const OptimizerRange> ranges, const Use& use);
  // The same of params alone, which stay as they are.
  void read(Stream& stream, std::span<const OptimizerRange> ranges, const Use& use);

  std::uint64_t bytes() const;

 private:
  enum class Way { in, in_and_back };
  struct Place {
    Buffer memory;
    Event free;  // what used it last has left it
  };

  void pass(Stream& stream, std::span<const OptimizerRange> ranges, Way way, const Use& use);
  void pass_piece(Stream& stream, const OptimizerRange& piece, Way way, const Use& use);
  View staged(const Place& place, std::size_t index, const View& values) const;

  Backend& backend_;
  const StoreMemory& memory_;
  std::vector<Place> places_;
  std::size_t next_ = 0;  // place
  // One for each direction, as devices copy in both at once. Last: they use the rest.
  std::unique_ptr<Stream> in_;
  std::unique_ptr<Stream> back_;
};

}  // namespace scaletrain
