// A communicator that reaches the memory of fenced backends, as NCCL reaches a GPU's, and counts what waits for its
// transfers on the host. One that reaches a device's memory alone takes none of the host's but pinned, and one for the
// host's none of a device's.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"
#include "parallel/mesh/groups.h"
#include "support/ranks/fenced_backend.h"
#include "support/ranks/host_waits.h"

namespace scaletrain {

enum class MemoryReach { all, device, host };
inline MemoryReach memory_reach_of(GroupKind kind, const GroupFacts& facts) {
  if (!facts.control) return MemoryReach::all;
  return is_control(kind) ? MemoryReach::host : MemoryReach::device;
}

class FencedCommunicator final : public Communicator {
 public:
  FencedCommunicator(std::unique_ptr<Communicator> inner, MemoryReach reach)
      : inner_(std::move(inner)), reach_(reach) {}

  const std::string& group_name() const override { return inner_->group_name(); }
  int size() const override { return inner_->size(); }
  int rank_in_group() const override { return inner_->rank_in_group(); }

  Ticket all_reduce(Stream& stream, View data, ReduceOp op) override {
    return counted(inner_->all_reduce(stream, values(data), op));
  }
  Ticket reduce_scatter(Stream& stream, ConstView input, std::span<const std::int64_t> counts, View output) override {
    return counted(inner_->reduce_scatter(stream, values(input), counts, values(output)));
  }
  Ticket all_gather(Stream& stream, ConstView input, std::span<const std::int64_t> counts, View output) override {
    return counted(inner_->all_gather(stream, values(input), counts, values(output)));
  }
  Ticket all_to_all(Stream& stream, ConstView input, std::span<const std::int64_t> send_counts, View output,
                    std::span<const std::int64_t> receive_counts) override {
    return counted(inner_->all_to_all(stream, values(input), send_counts, values(output), receive_counts));
  }
  Ticket exchange(Stream& stream, std::span<const Transfer> transfers) override {
    std::vector<Transfer> reached(transfers.begin(), transfers.end());
    for (Transfer& transfer : reached) transfer.data = values(transfer.data);
    return counted(inner_->exchange(stream, reached));
  }
  void abort() noexcept override { inner_->abort(); }

 private:
  class CountedTicket final : public Ticket::State {
   public:
    explicit CountedTicket(Ticket inner) : inner_(std::move(inner)) {}
    void before(Stream& stream) override { inner_.before(stream); }
    void wait() override {
      ++host_waits();
      inner_.wait();
    }

   private:
    Ticket inner_;
  };
  static Ticket counted(Ticket ticket) { return Ticket(std::make_unique<CountedTicket>(std::move(ticket))); }

  template <class AnyView>
  AnyView values(const AnyView& view) const {
    SCALETRAIN_CHECK(!(reach_ == MemoryReach::device && view.space() == Space::host) &&
                     "the host's memory by a device");
    SCALETRAIN_CHECK(!(reach_ == MemoryReach::host && view.space() == Space::device) &&
                     "a device's memory by the host");
    return FencedMemory::of_process().values(view);
  }

  std::unique_ptr<Communicator> inner_;
  MemoryReach reach_;
};

}  // namespace scaletrain
