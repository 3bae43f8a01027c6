#include "backend/host_access.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

HostAccess::HostAccess(Backend& backend) : HostAccess(backend, Options()) {}

// Two pieces for each thread: one travels while another is filled. Where there are fewer, threads wait for each other.
HostAccess::HostAccess(Backend& backend, const Options& options)
    : backend_(&backend),
      piece_bytes_(options.longest_write),
      num_pieces_(std::min(2 * narrow<std::size_t>(options.threads),
                           host_access_pieces * host_access_piece_bytes / options.longest_write)) {
  SCALETRAIN_CHECK(options.threads >= 1);
  SCALETRAIN_CHECK_LE(options.longest_write, host_access_piece_bytes);
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
    piece->memory = backend_->allocate_pinned(piece_bytes_);
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
  SCALETRAIN_CHECK_LE(to.num_bytes(), piece_bytes_);
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
  const auto most = narrow<std::int64_t>(piece_bytes_ / size_of(from.dtype()));
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
