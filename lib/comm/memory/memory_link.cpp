#include "comm/memory/memory_link.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/error.h"
#include "comm/deadline.h"
#include "comm/memory/link_watch.h"
#include "comm/rendezvous/rendezvous_socket.h"

namespace scaletrain {

namespace {

// A message of this size is read by who posts its receive: that takes no longer than waking another thread.
constexpr std::size_t small_message = std::size_t{64} << 10;

// Shared between processes, so not one of the private kind.
void wake_all(std::atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::uint64_t packed(std::uint32_t entry, std::uint32_t use) {
  return std::uint64_t{use} << 32 | entry;
}

}  // namespace

class MemoryLink::Message : public Transport::Pending {
 public:
  explicit Message(std::shared_ptr<MemoryLink> link) : link_(std::move(link)) {}
  bool wait_until(MonotonicTime deadline) override { return link_->wait(*this, deadline); }
  // With the link's lock held.
  virtual bool is_done() const = 0;
  virtual bool is_being_read() const { return false; }

 protected:
  std::shared_ptr<MemoryLink> link_;
};

class MemoryLink::Send final : public MemoryLink::Message {
 public:
  Send(std::shared_ptr<MemoryLink> link, std::uint64_t tag, std::span<const std::byte> data)
      : Message(std::move(link)), tag_(tag), data_(data) {}
  ~Send() override { link_->end(*this); }
  bool is_done() const override { return stage_ == Stage::taken || is_taken(); }

 private:
  friend class MemoryLink;
  // offered: it has an entry of the shared memory; taken: and has given it back.
  enum class Stage { fresh, offered, taken };
  bool is_taken() const {
    return stage_ == Stage::offered && link_->own().sends[entry_].load() == send_state(use_, SendStage::taken);
  }

  std::uint64_t tag_;
  std::span<const std::byte> data_;
  Stage stage_ = Stage::fresh;
  std::uint32_t entry_ = 0;
  std::uint32_t use_ = 0;
};

class MemoryLink::Receive final : public MemoryLink::Message {
 public:
  Receive(std::shared_ptr<MemoryLink> link, std::uint64_t tag, std::span<std::byte> data)
      : Message(std::move(link)), tag_(tag), data_(data) {}
  ~Receive() override { link_->end(*this); }
  bool is_done() const override { return stage_ == Stage::complete; }
  bool is_being_read() const override { return stage_ == Stage::reading; }

 private:
  friend class MemoryLink;
  // fresh: not posted yet. reading: by some thread, without the lock.
  enum class Stage { fresh, open, matched, reading, complete };
  std::uint64_t tag_;
  std::span<std::byte> data_;
  Stage stage_ = Stage::fresh;
};

MemoryLink::MemoryLink(LinkPeer peer, Rank rank, FileDescriptor connection, LinkWatch& watch)
    : peer_(std::move(peer)),
      rank_(rank),
      connection_(std::move(connection)),
      watch_(watch),
      senders_(capacity()),
      uses_(capacity()) {
  free_sends_.reserve(capacity());
  for (std::uint32_t entry = capacity(); entry > 0; --entry) free_sends_.push_back(entry - 1);
  prepare_connection(connection_.get());
}

// ---- messages

std::unique_ptr<Transport::Pending> MemoryLink::send(std::uint64_t tag, std::span<const std::byte> data) {
  require_running();
  auto message = std::make_unique<Send>(shared_from_this(), tag, data);
  const std::lock_guard lock(mutex_);
  if (!backlog_.empty() || !offer(*message)) {
    backlog_.push_back(message.get());
    offer_backlog();
  }
  return message;
}

std::unique_ptr<Transport::Pending> MemoryLink::receive(std::uint64_t tag, std::span<std::byte> data) {
  require_running();
  auto message = std::make_unique<Receive>(shared_from_this(), tag, data);
  bool is_matched = false;
  bool is_alone = false;
  {
    const std::lock_guard lock(mutex_);
    const bool is_new = receives_.emplace(tag, message.get()).second;
    SCALETRAIN_CHECK(is_new);
    open(*message);
    read_offers();  // one that was made before it was open has rung for nobody
    is_matched = message->stage_ == Receive::Stage::matched;
    is_alone = matches_.size() == 1;
  }
  if (!is_matched) return message;
  if (data.size() <= small_message && is_alone) {
    progress();
  } else {
    watch_.nudge(*this);
  }
  return message;
}

void MemoryLink::end(Send& send) {
  const std::lock_guard lock(mutex_);
  if (send.stage_ == Send::Stage::fresh) {
    std::erase(backlog_, &send);
    own().backlog.store(static_cast<std::uint32_t>(backlog_.size()));
  } else if (send.stage_ == Send::Stage::offered) {
    std::uint64_t offered = send_state(send.use_, SendStage::offered);
    own().sends[send.entry_].compare_exchange_strong(offered, send_state(send.use_, SendStage::withdrawn));
    release(send.entry_);
    offer_backlog();
  }
}

void MemoryLink::end(Receive& receive) {
  std::unique_lock lock(mutex_);
  read_.wait(lock, [&] { return receive.stage_ != Receive::Stage::reading; });
  if (receive.stage_ == Receive::Stage::fresh) return;
  receives_.erase(receive.tag_);
  if (receive.stage_ == Receive::Stage::open) own().open_receives.fetch_sub(1);
  if (receive.stage_ == Receive::Stage::matched)
    std::erase_if(matches_, [&](const Match& match) { return match.receive == &receive; });
}

// ---- waiting

bool MemoryLink::wait(Message& message, MonotonicTime deadline) {
  const auto is_done = [&] {
    const std::lock_guard lock(mutex_);
    return message.is_done();
  };
  for (MonotonicTime begin = monotonic_now();;) {
    // Both before looking: what comes later rings, and what had come before the peer was lost counts.
    const std::uint32_t bell = own().bell.load();
    const bool was_lost = is_lost_;
    // Whatever this wait is for: who called a sleeper counts on it to look at everything.
    if (!stopped_) progress();
    if (is_done()) return true;
    require_running();
    if (was_lost) throw_loss();
    const MonotonicTime now = monotonic_now();
    if (now - begin > longest_turn) deadline += now - begin;
    begin = now;
    if (now >= deadline && !is_lost_) {
      // By another thread: it has come in time.
      std::unique_lock lock(mutex_);
      read_.wait(lock, [&] { return !message.is_being_read(); });
      return message.is_done();
    }
    const bool was_called = sleep(bell, std::min(deadline, now + health_interval));
    if (!was_called && is_closed()) lose(end_of_other(0));
  }
}

// False if nothing has rung.
bool MemoryLink::sleep(std::uint32_t bell, MonotonicTime until) noexcept {
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(until - monotonic_now()).count();
  if (left <= 0) return false;
  const timespec time{.tv_sec = static_cast<time_t>(left / 1'000'000'000),
                      .tv_nsec = static_cast<long>(left % 1'000'000'000)};
  own().sleepers.fetch_add(1);
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&own().bell), FUTEX_WAIT, bell, &time, nullptr, 0);
  own().sleepers.fetch_sub(1);
  return own().bell.load() != bell;
}

void MemoryLink::wake_own() noexcept {
  own().bell.fetch_add(1);
  if (own().sleepers.load() > 0) wake_all(own().bell);
}

void MemoryLink::call_other(Call whom) noexcept {
  other().bell.fetch_add(1);
  if (other().sleepers.load() > 0) {
    wake_all(other().bell);
  } else if (whom == Call::always || (whom == Call::receivers && other().open_receives.load() > 0)) {
    const char byte = 0;
    // Where it does not fit there are others that nobody has looked at yet.
    [[maybe_unused]] const auto sent = ::send(connection_.get(), &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

void MemoryLink::stop() noexcept {
  stopped_ = true;
  wake_own();
}

void MemoryLink::close() noexcept {
  stop();
  watch_.remove(*this);
  ::shutdown(connection_.get(), SHUT_RDWR);
}

void MemoryLink::require_running() const {
  if (stopped_) throw PeerError("transfers have been stopped on this side");
}

// ---- offers of this side

bool MemoryLink::offer(Send& send) {
  LinkSide& side = own();
  const std::uint64_t made = side.made.load();
  if (free_sends_.empty()) release_taken();
  if (free_sends_.empty() || made - side.seen.load() >= capacity()) return false;
  const std::uint32_t entry = free_sends_.back();
  free_sends_.pop_back();
  const std::uint32_t use = ++uses_[entry];
  senders_[entry] = &send;
  side.sends[entry].store(send_state(use, SendStage::offered));
  side.offers[made % capacity()] = {.tag = send.tag_,
                                    .address = reinterpret_cast<std::uint64_t>(send.data_.data()),
                                    .bytes = send.data_.size(),
                                    .send = packed(entry, use)};
  side.made.store(made + 1);
  send.stage_ = Send::Stage::offered;
  send.entry_ = entry;
  send.use_ = use;
  call_other(Call::receivers);
  return true;
}

void MemoryLink::release(std::uint32_t entry) {
  senders_[entry] = nullptr;
  free_sends_.push_back(entry);
}

void MemoryLink::release_taken() {
  for (Send* const send : senders_) {
    if (send == nullptr || !send->is_taken()) continue;
    send->stage_ = Send::Stage::taken;
    release(send->entry_);
  }
}

void MemoryLink::offer_backlog() {
  // Counted first: who makes room after this knows that it is wanted.
  own().backlog.store(static_cast<std::uint32_t>(backlog_.size()));
  while (!backlog_.empty() && offer(*backlog_.front())) {
    backlog_.pop_front();
    own().backlog.store(static_cast<std::uint32_t>(backlog_.size()));
  }
}

// ---- offers of the other side

void MemoryLink::read_offers() {
  LinkSide& side = other();
  std::uint64_t seen = side.seen.load();
  const std::uint64_t first = seen;
  for (const std::uint64_t made = side.made.load(); seen < made; side.seen.store(++seen)) {
    const LinkOffer offer = side.offers[seen % capacity()];
    const auto receive = receives_.find(offer.tag);
    if (receive != receives_.end() && receive->second->stage_ == Receive::Stage::open) {
      match(*receive->second, offer);
    } else {
      offers_.insert_or_assign(offer.tag, offer);  // an older one of this tag was withdrawn
    }
  }
  if (seen != first && side.backlog.load() > 0) call_other(Call::always);
}

void MemoryLink::match(Receive& receive, const LinkOffer& offer) {
  matches_.push_back({&receive, offer});
  receive.stage_ = Receive::Stage::matched;
  own().open_receives.fetch_sub(1);
}

void MemoryLink::open(Receive& receive) {
  receive.stage_ = Receive::Stage::open;
  own().open_receives.fetch_add(1);
  const auto offer = offers_.find(receive.tag_);
  if (offer == offers_.end()) return;
  match(receive, offer->second);
  offers_.erase(offer);
}

void MemoryLink::progress() {
  std::unique_lock lock(mutex_);
  read_offers();
  offer_backlog();
  while (!matches_.empty() && !is_lost_) {
    const Match match = matches_.front();
    matches_.pop_front();
    match.receive->stage_ = Receive::Stage::reading;
    lock.unlock();
    const Reading reading = read(match);
    lock.lock();
    settle(match, reading);
  }
}

bool MemoryLink::is_offered(const LinkOffer& offer) const {
  const auto entry = static_cast<std::uint32_t>(offer.send);
  const auto use = static_cast<std::uint32_t>(offer.send >> 32);
  return entry < capacity() && other().sends[entry].load() == send_state(use, SendStage::offered);
}

MemoryLink::Reading MemoryLink::read(const Match& match) {
  const LinkOffer& offer = match.offer;
  if (!is_offered(offer)) return Reading::withdrawn;
  const std::span<std::byte> data = match.receive->data_;
  if (offer.bytes != data.size()) {
    lose({.kind = Loss::Kind::other_size, .sent = offer.bytes, .awaited = data.size()});
    return Reading::failed;
  }
  const int error = read_memory_of(peer_.process, offer.address, data.data(), data.size());
  if (error != 0) {
    if (!is_offered(offer)) return Reading::withdrawn;
    lose(is_closed() ? end_of_other(0) : Loss{.kind = Loss::Kind::unreadable, .error = error});
    return Reading::failed;
  }
  // While its connection is open, no other process has its number.
  if (is_closed()) {
    lose(end_of_other(0));
    return Reading::failed;
  }
  const auto entry = static_cast<std::uint32_t>(offer.send);
  const auto use = static_cast<std::uint32_t>(offer.send >> 32);
  std::uint64_t offered = send_state(use, SendStage::offered);
  const bool is_taken = other().sends[entry].compare_exchange_strong(offered, send_state(use, SendStage::taken));
  if (is_taken) call_other(other().backlog.load() > 0 ? Call::always : Call::sleepers);
  return is_taken ? Reading::done : Reading::withdrawn;
}

void MemoryLink::settle(const Match& match, Reading reading) {
  read_.notify_all();  // of what follows, once the lock is given back
  if (reading == Reading::done) {
    match.receive->stage_ = Receive::Stage::complete;
    wake_own();
  } else {
    open(*match.receive);
    read_offers();  // one of its tag that was made meanwhile has rung for nobody
  }
}

// ---- the other side's end

void MemoryLink::attend() {
  std::array<char, 256> bytes;
  for (;;) {
    const ssize_t got = ::recv(connection_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0 || (got < 0 && errno == EINTR)) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    watch_.remove(*this);
    lose(end_of_other(got < 0 ? errno : 0));
    return;
  }
  progress();
}

// What its closed connection means; `error` is errno of that, or 0.
MemoryLink::Loss MemoryLink::end_of_other(int error) const noexcept {
  const int read_error = other().read_error.load();
  if (read_error != 0) return {.kind = Loss::Kind::unread, .error = read_error};
  return {.kind = Loss::Kind::closed, .error = error};
}

bool MemoryLink::is_closed() const noexcept {
  pollfd entry{.fd = connection_.get(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&entry, 1, 0) > 0;
}

void MemoryLink::lose(const Loss& loss) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!is_lost_) {
      loss_ = loss;
      if (loss.kind == Loss::Kind::unreadable) own().read_error.store(loss.error);
      // What this side does not read, the other one need not wait for, though this one may notice much later.
      if (loss.kind == Loss::Kind::unreadable || loss.kind == Loss::Kind::other_size)
        ::shutdown(connection_.get(), SHUT_RDWR);
    }
    is_lost_ = true;
  }
  wake_own();
}

void MemoryLink::throw_loss() {
  const Loss loss = [&] {
    const std::lock_guard lock(mutex_);
    return loss_;
  }();
  const std::string reason = [&]() -> std::string {
    switch (loss.kind) {
      case Loss::Kind::closed:
        return loss.error == 0 ? "closed by the other side" : std::strerror(loss.error);
      case Loss::Kind::unreadable:
        return fmt::format("its memory cannot be read: {}", std::strerror(loss.error));
      case Loss::Kind::unread:
        return fmt::format("it cannot read this process's memory: {}", std::strerror(loss.error));
      case Loss::Kind::other_size:
        return fmt::format("it sends {} bytes where {} are awaited", loss.sent, loss.awaited);
    }
    SCALETRAIN_CHECK(false && "a kind of loss");
  }();
  throw PeerError(fmt::format("the connection to rank {} is lost: {}", rank_.value(), reason));
}

}  // namespace scaletrain
