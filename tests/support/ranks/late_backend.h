// A backend whose streams run late: what is issued is kept, and run in bursts by a thread of the stream, some time
// after the caller has gone on. Everything that reads a buffer without being ordered behind the stream that fills it,
// or overwrites one that the stream has not read yet, shows: the results are those of the backend inside only where
// every edge is there.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "backend/backend.h"
#include "support/ranks/host_waits.h"

namespace scaletrain {

// When a late stream runs what it was given. in_bursts: when somebody waits for it, so many operations have gathered,
// or a moment has passed; whoever waits for an event gets what was issued before it, and as little more as possible.
// on_demand: no operation before somebody waits for it or a later one, so that no luck of timing hides what is too
// early.
enum class Lateness { in_bursts, on_demand };

class LateStream final : public Stream {
 public:
  LateStream(std::uint64_t seed, Lateness lateness)
      : lateness_(lateness), random_(seed * 2 + 1), thread_([this] { serve(); }) {}
  ~LateStream() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  LateStream(const LateStream&) = delete;
  LateStream& operator=(const LateStream&) = delete;

  void call(std::function<void()> function) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(function));
      ++issued_;
    }
    changed_.notify_all();
  }

  Event record() override {
    const std::lock_guard lock(mutex_);
    return Event(std::make_shared<Moment>(*this, issued_));
  }

  void synchronize() override {
    ++host_waits();
    std::unique_lock lock(mutex_);
    wait_for(lock, issued_);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  static constexpr std::uint64_t longest_burst = 16;
  static constexpr std::chrono::milliseconds patience{2};

  class Moment final : public Event::State {
   public:
    Moment(LateStream& stream, std::uint64_t place) : stream_(stream), place_(place) {}
    bool is_done() override {
      const std::lock_guard lock(stream_.mutex_);
      return stream_.done_ >= place_;
    }
    void wait() override {
      ++host_waits();
      std::unique_lock lock(stream_.mutex_);
      stream_.wait_for(lock, place_);
      // Nobody may take for done what the stream has left out.
      if (stream_.error_ && stream_.first_left_out_ < place_) std::rethrow_exception(stream_.error_);
    }

   private:
    LateStream& stream_;
    std::uint64_t place_;  // what was issued before
  };

  void wait_for(std::unique_lock<std::mutex>& lock, std::uint64_t place) {
    wanted_ = std::max(wanted_, place);
    changed_.notify_all();
    changed_.wait(lock, [&] { return done_ >= place; });
  }

  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      if (lateness_ == Lateness::on_demand) {
        changed_.wait(lock, [&] { return ends_ || wanted_ > done_; });
        run_first(lock);
        continue;
      }
      // More may come, which then runs in one burst with this.
      changed_.wait_for(lock, patience, [&] { return ends_ || wanted_ > done_ || waiting_.size() >= longest_burst; });
      random_ = random_ * 6364136223846793005ULL + 1442695040888963407ULL;
      const std::uint64_t burst = std::max(wanted_ > done_ ? wanted_ - done_ : 0, 1 + (random_ >> 33) % longest_burst);
      for (std::uint64_t count = 0; count < burst && !waiting_.empty(); ++count) run_first(lock);
    }
  }

  void run_first(std::unique_lock<std::mutex>& lock) {
    const std::function<void()> function = std::move(waiting_.front());
    waiting_.pop_front();
    const bool left_out = error_ != nullptr;
    lock.unlock();
    std::exception_ptr error;
    try {
      if (!left_out) function();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !error_) {
      error_ = error;
      first_left_out_ = done_;
    }
    ++done_;
    changed_.notify_all();
  }

  std::mutex mutex_;  // for what follows
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::uint64_t issued_ = 0;
  std::uint64_t done_ = 0;    // run or left out
  std::uint64_t wanted_ = 0;  // somebody waits for so many
  std::exception_ptr error_;
  std::uint64_t first_left_out_ = 0;
  bool ends_ = false;
  const Lateness lateness_;
  std::uint64_t random_;
  std::thread thread_;  // last: it uses the rest
};

class LateBackend final : public Backend {
 public:
  explicit LateBackend(std::unique_ptr<Backend> inner, Lateness lateness = Lateness::in_bursts)
      : inner_(std::move(inner)), now_(inner_->make_stream()), lateness_(lateness) {}

  DType compute_type() const override { return inner_->compute_type(); }
  std::string description() const override { return inner_->description() + ", late"; }
  int num_threads() const override { return inner_->num_threads(); }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<LateStream>(num_streams_++, lateness_); }
  Space space() const override { return inner_->space(); }
  Buffer allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  Buffer allocate_pinned(std::size_t bytes) override { return inner_->allocate_pinned(bytes); }
  std::size_t workspace_bytes() const override { return inner_->workspace_bytes(); }
  Backend& inner() { return *inner_; }
  // The packed form is a copy of the values, made in the stream's turn, and the products read that: what packs too
  // early, or not again after an update, shows on any processor.
  std::size_t packed_bytes(const Shape& weight) const override {
    return static_cast<std::size_t>(weight.num_elements()) * size_of(compute_type());
  }
  std::unique_ptr<PackedWeight> pack(Stream& stream, ConstView values, Region memory) override {
    SCALETRAIN_CHECK_LE(values.num_bytes(), memory.size);
    const View copy(memory.data, values.dtype(), values.shape(), memory.space);
    transfer(stream, values, copy);
    return std::make_unique<CopiedWeight>(copy);
  }

 private:
  class CopiedWeight final : public PackedWeight {
   public:
    explicit CopiedWeight(const View& values) : values_(values) {}
    std::size_t num_bytes() const override { return values_.num_bytes(); }
    const View& values() const { return values_; }

   private:
    View values_;
  };

  // The backend inside reads the copy, as values.
  static void read_packed(Operation& op) {
    const auto replace = [](Weight& weight) {
      if (weight.packed != nullptr) weight = {dynamic_cast<const CopiedWeight&>(*weight.packed).values(), nullptr};
    };
    if (auto* const forward = std::get_if<LinearForward>(&op)) replace(forward->weight);
    if (auto* const backward = std::get_if<LinearBackwardInput>(&op)) replace(backward->weight);
  }

  // A descriptor is plain values: a copy of it is all that the stream needs, beside the memory that it names.
  void launch(Stream& stream, const Operation& op) override {
    Operation read = op;
    read_packed(read);
    stream.call([this, read] { inner_->run(*now_, read); });
  }
  void transfer(Stream& stream, const ConstView& from, const View& to) override {
    stream.call([this, from, to] { inner_->copy(*now_, from, to); });
  }

  std::unique_ptr<Backend> inner_;
  std::unique_ptr<Stream> now_;
  const Lateness lateness_;
  std::uint64_t num_streams_ = 0;
};

}  // namespace scaletrain
