// A communicator that reaches the memory of fenced backends, as NCCL reaches a GPU's, and counts what waits for its
// transfers on the host.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "support/ranks/fenced_backend.h"
#include "support/ranks/host_waits.h"

namespace scaletrain {

class FencedCommunicator final : public Communicator {
 public:
  explicit FencedCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}

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
  static AnyView values(const AnyView& view) {
    return FencedMemory::of_process().values(view);
  }

  std::unique_ptr<Communicator> inner_;
};

}  // namespace scaletrain
