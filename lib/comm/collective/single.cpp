// The communicator of a group of one rank: every result is a copy of the rank's own input, complete on return.
#include <cstring>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"

namespace scaletrain {

namespace {

void copy_all(const ConstView& from, const View& to) {
  SCALETRAIN_CHECK(from.dtype() == to.dtype());
  SCALETRAIN_CHECK_EQ(from.num_elements(), to.num_elements());
  if (from.num_bytes() != 0 && from.data() != to.data()) std::memmove(to.data(), from.data(), from.num_bytes());
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

  Ticket all_reduce(View data, ReduceOp) override {
    const DType type = data.dtype();
    SCALETRAIN_CHECK(type == DType::f32 || type == DType::f64 || type == DType::i64);
    return {};
  }
  Ticket reduce_scatter(ConstView input, std::span<const std::int64_t> counts, View output) override {
    check_counts(counts, input.num_elements());
    copy_all(input, output);
    return {};
  }
  Ticket all_gather(ConstView input, std::span<const std::int64_t> counts, View output) override {
    check_counts(counts, input.num_elements());
    copy_all(input, output);
    return {};
  }
  Ticket all_to_all(ConstView input, std::span<const std::int64_t> send_counts, View output,
                    std::span<const std::int64_t> receive_counts) override {
    check_counts(send_counts, input.num_elements());
    check_counts(receive_counts, output.num_elements());
    copy_all(input, output);
    return {};
  }
  // The n-th send meets the n-th receive.
  Ticket exchange(std::span<const Transfer> transfers) override {
    std::vector<const Transfer*> sends;
    std::vector<const Transfer*> receives;
    for (const Transfer& transfer : transfers) {
      SCALETRAIN_CHECK_EQ(transfer.peer, 0);
      (transfer.direction == Transfer::Direction::send ? sends : receives).push_back(&transfer);
    }
    SCALETRAIN_CHECK_EQ(sends.size(), receives.size());
    for (std::size_t n = 0; n < sends.size(); ++n) copy_all(sends[n]->data, receives[n]->data);
    return {};
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
