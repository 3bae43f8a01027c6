#include "backend/host_access.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

// One piece more than there are threads: it travels while another is filled. More threads wait for each other.
HostAccess::HostAccess(Backend& backend, int threads)
    : backend_(&backend), num_pieces_(std::min(narrow<std::size_t>(threads) + 1, host_access_pieces)) {
  if (!is_host_accessible(backend.space())) stream_ = backend.make_stream();
}

HostAccess::~HostAccess() {
  try {
    finish();
  } catch (...) {  // NOLINT: a destructor reports nothing
  }
}

// The memory is allocated with the first use, so that there is none where values are reached in place.
std::unique_ptr<HostAccess::Piece> HostAccess::take() {
  std::unique_lock lock(mutex_);
  SCALETRAIN_CHECK(stream_ != nullptr && "a device's memory is reached through its backend");
  if (num_made_ < num_pieces_) {
    auto piece = std::make_unique<Piece>();
    piece->memory = backend_->allocate_pinned(host_access_piece_bytes);
    ++num_made_;
    return piece;
  }
  given_back_.wait(lock, [this] { return !free_.empty(); });
  auto piece = std::move(free_.front());
  free_.erase(free_.begin());
  return piece;
}

void HostAccess::give_back(std::unique_ptr<Piece> piece) {
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(piece));
  }
  given_back_.notify_one();
}

// A piece in use, whose memory no copy under way needs; given back also by an exception.
class HostAccess::Taken {
 public:
  explicit Taken(HostAccess& access) : access_(access), piece_(access.take()) {
    try {
      piece_->copied.wait();
    } catch (...) {
      access_.give_back(std::move(piece_));
      throw;
    }
  }
  ~Taken() { access_.give_back(std::move(piece_)); }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;
  Piece* operator->() const { return piece_.get(); }

 private:
  HostAccess& access_;
  std::unique_ptr<Piece> piece_;
};

void HostAccess::write(const View& to, const std::function<void(const View& host)>& fill) {
  if (is_host_accessible(to.space())) return fill(to);
  SCALETRAIN_CHECK_LE(to.num_bytes(), host_access_piece_bytes);
  const Taken piece(*this);
  const View host = piece->memory.view(0, to.dtype(), to.shape());
  fill(host);
  const std::lock_guard lock(mutex_);
  backend_->copy(*stream_, host, to);
  piece->copied = stream_->record();
}

void HostAccess::read(const ConstView& from, const std::function<void(const ConstView& host)>& use) {
  if (is_host_accessible(from.space())) return use(from);
  const Taken piece(*this);
  const std::int64_t all = from.num_elements();
  const ConstView flat = from.reshape({all});
  const auto most = narrow<std::int64_t>(host_access_piece_bytes / size_of(from.dtype()));
  for (std::int64_t first = 0; first < all; first += most) {
    const std::int64_t count = std::min(most, all - first);
    const View host = piece->memory.view(0, from.dtype(), {count});
    {
      const std::lock_guard lock(mutex_);
      backend_->copy(*stream_, flat.rows(first, count), host);
    }
    stream_->synchronize();
    use(host);
  }
}

void HostAccess::finish() {
  if (stream_) stream_->synchronize();
}

}  // namespace scaletrain
