// A copy of what one rank saves, in host memory (pinned where it comes from a device's) that was allocated for it
// beforehand: a checkpoint is written from there while training changes the store.
//
// The copy is as large as the rank's pieces together (saved_bytes), which is a share of the replica's state and not
// all of it where there are several replicas.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "checkpoint/save/save.h"
#include "tensor/buffer.h"

namespace scaletrain {

class StateStaging final : public SavedState {
 public:
  // Sets the memory aside: std::bad_alloc. The store must outlive this. Pages become resident in prefault().
  // work: counts what is touched and copied, some MiB at a time; must outlive this.
  explicit StateStaging(const ParamStore& store, WorkCount* work = nullptr);
  // Waits for copies under way.
  ~StateStaging() override;
  StateStaging(const StateStaging&) = delete;
  StateStaging& operator=(const StateStaging&) = delete;

  // Touches every page, which takes as long as a copy: before the first copy, on any thread, so that no save waits for
  // the kernel to find memory.
  void prefault();
  // Where the state is in a device's memory: issues the copy of the store's masters and states as they are when
  // `stream` has run what it was given. Elsewhere nothing, as it is the host that copies. By the thread that uses the
  // backend.
  void begin(Stream& stream);
  // Where the state is in a device's memory: what `stream` is given from now on runs behind the copy begun last, and
  // may change the state; true. Elsewhere false: the caller waits for copy(). By the thread that called begin(); until
  // the stream has run that, this must live.
  bool hold_back(Stream& stream) const;
  // Returns when the copy is there; on a host it takes the state as it is. On any thread, after begin(); the caller
  // sees to it that until it returns nobody changes the state but behind hold_back() (forward and backward passes and
  // gathers do not; an optimizer's step and a load do), and that no save reads the copy before.
  void copy();

  const ParamTable& table() const override { return store_.table(); }
  const ShardLayout& layout() const override { return store_.layout(); }
  const std::vector<std::string>& state_names() const override { return store_.options().state_names; }
  DType dtype() const override { return store_.options().dtype; }
  ConstView values(const SavePiece& piece) const override;
  std::size_t bytes() const { return memory_.size(); }

 private:
  struct Part {
    ConstView stored;
    std::size_t offset = 0;  // in memory_
  };
  // State, part of it, parameter, first element of the range.
  using Place = std::tuple<int, StatePart, int, std::int64_t>;
  static Place place_of(const SavePiece& piece) {
    return {piece.state, piece.part, piece.parameter, piece.range.first};
  }

  View copy_of(const Part& part) const;

  const ParamStore& store_;
  WorkCount* work_;
  std::map<Place, Part> parts_;
  Buffer memory_;
  std::unique_ptr<Stream> stream_;  // of the copies, beside the work of training; null where the host makes them
  Event copied_;
};

}  // namespace scaletrain
