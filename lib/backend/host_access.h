// The host's way to values in a device's memory, a piece at a time: through pinned memory, and where the device's
// memory is the host's, in place. For what happens now and then: initial weights, loading, saving.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/backend.h"

namespace scaletrain {

// Pieces that a stretch of values is moved in, and how many there are at most: what one access holds of pinned memory,
// or as much in more and shorter pieces.
inline constexpr std::size_t host_access_piece_bytes = std::size_t{4} << 20;
inline constexpr std::size_t host_access_pieces = 4;

// Has a stream of its own: nothing that was issued to other streams may be under way with the same values.
class HostAccess {
 public:
  // For memory of the host alone.
  HostAccess() = default;
  struct Options {
    int threads = 1;                                      // that may call write() at once
    std::size_t longest_write = host_access_piece_bytes;  // at most so much; the shorter, the more threads find a piece
  };
  // The backend must outlive it; nobody else uses it meanwhile.
  explicit HostAccess(Backend& backend);
  HostAccess(Backend& backend, const Options& options);
  // What write() has begun has arrived, or it has failed.
  ~HostAccess();
  HostAccess(const HostAccess&) = delete;
  HostAccess& operator=(const HostAccess&) = delete;

  // Has `fill` write the values that are to be in `to`, which has at most the bytes of the longest write. They are
  // there when finish() has returned.
  void write(const View& to, const std::function<void(const View& host)>& fill);
  // Shows `use` the values of `from`, of any size, piece by piece.
  void read(const ConstView& from, const std::function<void(const ConstView& host)>& use);
  // Returns when all that was written has arrived.
  void finish();

 private:
  struct Piece {
    Buffer memory;
    Event copied;
  };
  class Taken;
  std::unique_ptr<Piece> take();
  void give_back(std::unique_ptr<Piece> piece);

  Backend* backend_ = nullptr;
  std::size_t piece_bytes_ = 0;
  std::size_t num_pieces_ = 0;
  std::mutex mutex_;  // for the backend and for what follows
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<Piece>> free_;  // given back last: at the end
  std::size_t num_made_ = 0;
  std::condition_variable given_back_;
};

}  // namespace scaletrain
