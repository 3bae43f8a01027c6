// A transport that has nothing but ordered queues, as some networks' libraries do: one for each peer, direction and
// channel of exchange(). What is posted to a queue begins when everything posted to it before is done, and a send is
// done when its receive has copied it. A schedule that needs more than that stands still here, and is named at the
// deadline.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "comm/transport.h"

namespace scaletrain {

class QueueTransport final : public Transport {
 public:
  explicit QueueTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  ~QueueTransport() override { queues_.clear(); }

  int size() const override { return inner_->size(); }
  int rank() const override { return inner_->rank(); }
  std::unique_ptr<Pending> send(int peer, std::uint64_t tag, std::span<const std::byte> data) override {
    if (!is_exchange(tag)) return inner_->send(peer, tag, data);
    return post({peer, true, tag >> 56}, [=, this] { return inner_->send(peer, tag, data); });
  }
  std::unique_ptr<Pending> receive(int peer, std::uint64_t tag, std::span<std::byte> data) override {
    if (!is_exchange(tag)) return inner_->receive(peer, tag, data);
    return post({peer, false, tag >> 56}, [=, this] { return inner_->receive(peer, tag, data); });
  }
  void stop() noexcept override { inner_->stop(); }

 private:
  // direct_communicator.cpp: the highest bit says that it is one, the seven below which channel.
  static bool is_exchange(std::uint64_t tag) { return tag >> 63 != 0; }

  struct Message {
    std::function<std::unique_ptr<Pending>()> begin;
    std::mutex mutex;  // for what follows; held while the message moves, so that who gives up waits for that
    std::condition_variable changed;
    bool is_given_up = false;
    bool is_done = false;
    std::exception_ptr error;
  };

  class QueuedPending final : public Pending {
   public:
    explicit QueuedPending(std::shared_ptr<Message> message) : message_(std::move(message)) {}
    ~QueuedPending() override {
      const std::lock_guard lock(message_->mutex);
      message_->is_given_up = true;
    }
    bool wait_until(MonotonicTime deadline) override {
      std::unique_lock lock(message_->mutex);
      message_->changed.wait_until(lock, deadline, [&] { return message_->is_done; });
      if (message_->error) std::rethrow_exception(message_->error);
      return message_->is_done;
    }

   private:
    std::shared_ptr<Message> message_;
  };

  // A thread that carries one message after the other.
  class Queue {
   public:
    Queue() : thread_([this] { serve(); }) {}
    ~Queue() {
      {
        const std::lock_guard lock(mutex_);
        ends_ = true;
      }
      changed_.notify_all();
      thread_.join();
    }
    Queue(const Queue&) = delete;
    Queue& operator=(const Queue&) = delete;

    void add(std::shared_ptr<Message> message) {
      {
        const std::lock_guard lock(mutex_);
        waiting_.push_back(std::move(message));
      }
      changed_.notify_all();
    }

   private:
    bool ends() {
      const std::lock_guard lock(mutex_);
      return ends_;
    }

    void serve() {
      while (true) {
        std::shared_ptr<Message> message;
        {
          std::unique_lock lock(mutex_);
          changed_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
          if (ends_) return;
          message = std::move(waiting_.front());
          waiting_.pop_front();
        }
        carry(*message);
      }
    }

    void carry(Message& message) {
      std::unique_ptr<Pending> pending;
      while (!ends()) {
        const std::lock_guard lock(message.mutex);
        if (message.is_given_up) return;
        try {
          if (!pending) pending = message.begin();
          if (!pending->wait_until(monotonic_now() + std::chrono::milliseconds(1))) continue;
        } catch (...) {
          message.error = std::current_exception();
        }
        message.is_done = true;
        message.changed.notify_all();
        return;
      }
    }

    std::mutex mutex_;  // for what follows
    std::condition_variable changed_;
    std::deque<std::shared_ptr<Message>> waiting_;
    bool ends_ = false;
    std::thread thread_;  // last: it uses the rest
  };

  struct Name {
    int peer = 0;
    bool sends = false;
    std::uint64_t channel = 0;
    auto operator<=>(const Name&) const = default;
  };

  std::unique_ptr<Pending> post(const Name& name, std::function<std::unique_ptr<Pending>()> begin) {
    auto message = std::make_shared<Message>();
    message->begin = std::move(begin);
    auto pending = std::make_unique<QueuedPending>(message);
    const std::lock_guard lock(mutex_);
    auto& queue = queues_[name];
    if (!queue) queue = std::make_unique<Queue>();
    queue->add(std::move(message));
    return pending;
  }

  std::unique_ptr<Transport> inner_;
  std::mutex mutex_;  // for what follows
  std::map<Name, std::unique_ptr<Queue>> queues_;
};

}  // namespace scaletrain
