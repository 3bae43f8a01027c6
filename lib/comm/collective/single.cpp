// The communicator of a group of one rank: every result is a copy of the rank's own input.
#include <cstring>
#include <vector>

#include "base/error.h"
#include "comm/collective/event_ticket.h"
#include "comm/communicator.h"

namespace scaletrain {

namespace {

struct Copied {
  ConstView from;
  View to;
};

// In the stream's turn, so that nothing is left to wait for: another stream would have to wait for this one.
Ticket copied(Stream& stream, std::vector<Copied> copies) {
  for (const Copied& copy : copies) {
    SCALETRAIN_CHECK(copy.from.dtype() == copy.to.dtype());
    SCALETRAIN_CHECK_EQ(copy.from.num_elements(), copy.to.num_elements());
    SCALETRAIN_CHECK(is_host_accessible(copy.from.space()) && is_host_accessible(copy.to.space()));
  }
  stream.call([copies = std::move(copies)] {
    for (const Copied& copy : copies) {
      if (copy.from.num_bytes() != 0 && copy.from.data() != copy.to.data())
        std::memmove(copy.to.bytes(), copy.from.bytes(), copy.from.num_bytes());
    }
  });
  return ticket_of(stream.record());
}

void check_counts(std::span<const std::int64_t> counts, std::int64_t num_elements) {
  SCALETRAIN_CHECK_EQ(counts.size(), std::size_t{1});
  SCALETRAIN_CHECK_EQ(counts[0], num_elements);
}

class SingleCommunicator final : public Communicator {
 public:
  explicit SingleCommunicator(std::string group_name) : group_name_(std::move(group_name)) {}

  const std::string& group_name() const override { return group_name_; }
  int size() const override { return 1; }
  int rank_in_group() const override { return 0; }

  Ticket all_reduce(Stream&, View data, ReduceOp) override {
    const DType type = data.dtype();
    SCALETRAIN_CHECK(is_floating(type) || type == DType::i64);
    return {};
  }
  Ticket reduce_scatter(Stream& stream, ConstView input, std::span<const std::int64_t> counts, View output) override {
    check_counts(counts, input.num_elements());
    return copied(stream, {{input, output}});
  }
  Ticket all_gather(Stream& stream, ConstView input, std::span<const std::int64_t> counts, View output) override {
    check_counts(counts, input.num_elements());
    return copied(stream, {{input, output}});
  }
  Ticket all_to_all(Stream& stream, ConstView input, std::span<const std::int64_t> send_counts, View output,
                    std::span<const std::int64_t> receive_counts) override {
    check_counts(send_counts, input.num_elements());
    check_counts(receive_counts, output.num_elements());
    return copied(stream, {{input, output}});
  }
  // The n-th send meets the n-th receive.
  Ticket exchange(Stream& stream, std::span<const Transfer> transfers) override {
    std::vector<const Transfer*> sends;
    std::vector<const Transfer*> receives;
    for (const Transfer& transfer : transfers) {
      SCALETRAIN_CHECK_EQ(transfer.peer, 0);
      (transfer.direction == Transfer::Direction::send ? sends : receives).push_back(&transfer);
    }
    SCALETRAIN_CHECK_EQ(sends.size(), receives.size());
    std::vector<Copied> copies;
    for (std::size_t n = 0; n < sends.size(); ++n) copies.push_back({sends[n]->data, receives[n]->data});
    return copied(stream, std::move(copies));
  }
  void abort() noexcept override {}  // nothing is ever waited for

 private:
  std::string group_name_;
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator(std::string group_name) {
  return std::make_unique<SingleCommunicator>(std::move(group_name));
}

}  // namespace scaletrain
