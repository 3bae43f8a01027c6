#include "comm/in_process/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "comm/rendezvous/memory_store.h"

namespace scaletrain {

namespace {

// One message: whoever comes second copies it.
struct Message {
  std::optional<std::span<const std::byte>> source;
  std::optional<std::span<std::byte>> destination;
  bool done = false;
  std::string mismatch;  // the two sides differ in size
};

// The messages of one ordered pair of ranks. One lock per pair, held while copying too: a side that gives up must not
// return before its memory is left alone.
struct Channel {
  std::mutex mutex;
  std::condition_variable changed;
  std::unordered_map<std::uint64_t, std::shared_ptr<Message>> open;  // by tag; posted by one side or by both
  std::optional<std::string> failure;

  void fail(const std::string& reason) {
    {
      const std::lock_guard lock(mutex);
      if (!failure) failure = reason;
    }
    changed.notify_all();
  }

  // Under the lock.
  Message& open_message(std::uint64_t tag) {
    auto& message = open[tag];
    if (!message) message = std::make_shared<Message>();
    return *message;
  }
  void copy_if_both(std::uint64_t tag) {
    const auto found = open.find(tag);
    Message& message = *found->second;
    if (!message.source || !message.destination) return;
    if (message.source->size() == message.destination->size()) {
      if (!message.source->empty()) {
        std::memcpy(message.destination->data(), message.source->data(), message.source->size());
      }
    } else {
      message.mismatch = fmt::format("a message of {} bytes is received as {} bytes", message.source->size(),
                                     message.destination->size());
    }
    message.done = true;
    open.erase(found);
    changed.notify_all();
  }
};

enum class Side { sender, receiver };

class InProcessPending final : public Transport::Pending {
 public:
  InProcessPending(std::shared_ptr<Channel> channel, std::shared_ptr<Message> message, std::uint64_t tag, Side side)
      : channel_(std::move(channel)), message_(std::move(message)), tag_(tag), side_(side) {}

  ~InProcessPending() override {
    const std::lock_guard lock(channel_->mutex);
    if (message_->done) return;
    (side_ == Side::sender) ? message_->source.reset() : message_->destination.reset();
    if (!message_->source && !message_->destination) channel_->open.erase(tag_);
  }

  bool wait_until(MonotonicTime deadline) override {
    std::unique_lock lock(channel_->mutex);
    const bool over =
        channel_->changed.wait_until(lock, deadline, [&] { return message_->done || channel_->failure.has_value(); });
    if (message_->done) {
      if (!message_->mismatch.empty()) throw BugError(message_->mismatch);
      return true;
    }
    if (over) throw PeerError(*channel_->failure);
    return false;
  }

 private:
  std::shared_ptr<Channel> channel_;
  std::shared_ptr<Message> message_;
  std::uint64_t tag_;
  Side side_;
};

// The channels of one group, [sender, receiver].
struct Group {
  explicit Group(std::vector<Rank> its_members) : members(std::move(its_members)) {
    channels.resize(members.size() * members.size());
    for (auto& channel : channels) channel = std::make_shared<Channel>();
  }

  const std::shared_ptr<Channel>& channel(int sender, int receiver) const {
    return channels[static_cast<std::size_t>(sender) * members.size() + static_cast<std::size_t>(receiver)];
  }
  // Whoever waits for the member at `index`, and that member itself.
  void fail(int index, const std::string& reason) const {
    for (int other = 0; other < static_cast<int>(members.size()); ++other) {
      channel(index, other)->fail(reason);
      if (other != index) channel(other, index)->fail(reason);
    }
  }

  std::vector<Rank> members;
  std::vector<std::shared_ptr<Channel>> channels;
};

class InProcessTransport final : public Transport {
 public:
  InProcessTransport(std::shared_ptr<const Group> group, int rank) : group_(std::move(group)), rank_(rank) {}
  ~InProcessTransport() override = default;

  int size() const override { return static_cast<int>(group_->members.size()); }
  int rank() const override { return rank_; }

  std::unique_ptr<Pending> send(int peer, std::uint64_t tag, std::span<const std::byte> data) override {
    check_peer(peer);
    const auto& channel = group_->channel(rank_, peer);
    const std::lock_guard lock(channel->mutex);
    Message& message = channel->open_message(tag);
    SCALETRAIN_CHECK(!message.source);
    message.source = data;
    return post(channel, tag, Side::sender);
  }
  std::unique_ptr<Pending> receive(int peer, std::uint64_t tag, std::span<std::byte> data) override {
    check_peer(peer);
    const auto& channel = group_->channel(peer, rank_);
    const std::lock_guard lock(channel->mutex);
    Message& message = channel->open_message(tag);
    SCALETRAIN_CHECK(!message.destination);
    message.destination = data;
    return post(channel, tag, Side::receiver);
  }

  // What this rank waits for can no longer come, and the others would wait for this rank in vain.
  void stop() noexcept override {
    group_->fail(rank_, fmt::format("rank {} (of the world) has left the group",
                                    group_->members[static_cast<std::size_t>(rank_)].value()));
  }

 private:
  void check_peer(int peer) const { SCALETRAIN_CHECK(peer >= 0 && peer < size() && peer != rank_); }

  static std::unique_ptr<Pending> post(const std::shared_ptr<Channel>& channel, std::uint64_t tag, Side side) {
    auto pending = std::make_unique<InProcessPending>(channel, channel->open.at(tag), tag, side);
    channel->copy_if_both(tag);
    return pending;
  }

  std::shared_ptr<const Group> group_;
  int rank_;
};

class InProcessStore final : public KeyValueStore {
 public:
  explicit InProcessStore(std::shared_ptr<MemoryStore> values) : values_(std::move(values)) {}

  void set(const std::string& key, const std::string& value) override { values_->set(key, value); }
  std::optional<std::string> find(const std::string& key) override { return values_->find(key); }
  std::optional<std::string> find_within(const std::string& key, double seconds) override {
    return values_->find_within(key, seconds);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override { return values_->add(key, amount); }
  void remove(const std::string& key) override { values_->remove(key); }

 private:
  std::shared_ptr<MemoryStore> values_;
};

}  // namespace

struct InProcessWorld::State {
  explicit State(int size) : num_ranks(size) {}

  int num_ranks;
  std::shared_ptr<MemoryStore> values = std::make_shared<MemoryStore>();
  std::mutex mutex;  // for what follows
  std::map<std::string, std::shared_ptr<const Group>> groups;
  std::map<Rank, std::string> failures;
};

InProcessWorld::InProcessWorld(int num_ranks) : state_(std::make_shared<State>(num_ranks)) {
  SCALETRAIN_CHECK_LE(1, num_ranks);
}

InProcessWorld::~InProcessWorld() = default;

int InProcessWorld::size() const {
  return state_->num_ranks;
}

std::unique_ptr<Transport> InProcessWorld::make_transport(const std::string& name, const std::vector<Rank>& members,
                                                          Rank self) {
  const auto own = std::find(members.begin(), members.end(), self);
  SCALETRAIN_CHECK(own != members.end());
  const std::lock_guard lock(state_->mutex);
  auto& group = state_->groups[name];
  if (!group) {
    group = std::make_shared<const Group>(members);
    for (std::size_t index = 0; index < members.size(); ++index) {
      const auto failed = state_->failures.find(members[index]);
      if (failed != state_->failures.end()) group->fail(static_cast<int>(index), failed->second);
    }
  }
  SCALETRAIN_CHECK(group->members == members);
  return std::make_unique<InProcessTransport>(group, static_cast<int>(own - members.begin()));
}

std::unique_ptr<KeyValueStore> InProcessWorld::make_store() {
  return std::make_unique<InProcessStore>(state_->values);
}

void InProcessWorld::fail(Rank rank, const std::string& reason) {
  const std::string text = fmt::format("rank {} (of the world) failed: {}", rank.value(), reason);
  const std::lock_guard lock(state_->mutex);
  if (!state_->failures.emplace(rank, text).second) return;
  for (const auto& [name, group] : state_->groups) {
    const auto found = std::find(group->members.begin(), group->members.end(), rank);
    if (found != group->members.end()) group->fail(static_cast<int>(found - group->members.begin()), text);
  }
  state_->values->close(text);
}

}  // namespace scaletrain
