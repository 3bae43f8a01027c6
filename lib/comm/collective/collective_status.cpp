#include "comm/collective/collective_status.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace scaletrain {

CollectiveStatus::Scope::Scope(CollectiveStatus& status, const Group& group, const Call& call) : status_(status) {
  const std::lock_guard lock(status_.mutex_);
  outer_group_ = std::exchange(status_.group_, &group);
  outer_call_ = std::exchange(status_.call_, &call);
  if (outer_call_ == nullptr) status_.since_ = monotonic_now();
}

CollectiveStatus::Scope::~Scope() {
  const std::lock_guard lock(status_.mutex_);
  status_.group_ = outer_group_;
  status_.call_ = outer_call_;
  if (outer_call_ == nullptr) status_.waited_seconds_ += seconds_since(status_.since_);
}

namespace {

std::string text_of(const CollectiveStatus::Group& group, const CollectiveStatus::Call& call) {
  std::vector<std::int64_t> ranks;
  for (const Rank rank : group.ranks) ranks.push_back(rank.value());
  // Of a large group the ends are enough.
  const std::string members = ranks.size() <= 16
                                  ? fmt::format("{}", fmt::join(ranks, ", "))
                                  : fmt::format("{} ... {}, {} in all", ranks.front(), ranks.back(), ranks.size());
  const std::string with =
      call.with.empty() ? ""
                        : fmt::format(" with rank{} {}", call.with.size() == 1 ? "" : "s", fmt::join(call.with, ", "));
  return fmt::format("group {} (ranks {}): {} #{}{}", group.name, members, call.collective, call.sequence, with);
}

}  // namespace

std::optional<CollectiveStatus::Wait> CollectiveStatus::wait() const {
  const std::lock_guard lock(mutex_);
  if (call_ != nullptr) return Wait{.text = text_of(*group_, *call_), .seconds = seconds_since(since_)};
  if (device_wait_) return Wait{.text = device_wait_->first, .seconds = seconds_since(device_wait_->second)};
  return std::nullopt;
}

void CollectiveStatus::device_waits(const Group& group, const Call& call, MonotonicTime since) {
  std::string text = text_of(group, call);
  const std::lock_guard lock(mutex_);
  device_wait_.emplace(std::move(text), since);
}

void CollectiveStatus::device_goes_on() {
  const std::lock_guard lock(mutex_);
  device_wait_.reset();
}

double CollectiveStatus::waited_seconds() const {
  const std::lock_guard lock(mutex_);
  return waited_seconds_;
}

namespace {

// What the tickets of a communicator, which may outlive it, need of it.
struct Reporter {
  CollectiveStatus& status;
  CollectiveStatus::Group group;
};

class ReportingTicket final : public Ticket::State {
 public:
  ReportingTicket(Ticket inner, Event issued, std::shared_ptr<const Reporter> reporter, CollectiveStatus::Call call)
      : inner_(std::move(inner)), issued_(std::move(issued)), reporter_(std::move(reporter)), call_(std::move(call)) {}

  void before(Stream& stream) override {
    issued_.wait();
    const CollectiveStatus::Scope scope(reporter_->status, reporter_->group, call_);
    inner_.before(stream);
  }
  void wait() override {
    issued_.wait();
    const CollectiveStatus::Scope scope(reporter_->status, reporter_->group, call_);
    inner_.wait();
  }

 private:
  Ticket inner_;
  // While what a rank's own device computes before the call is under way, it waits for nobody. The host waits for that
  // in the ticket anyway, by design: communicators whose calls are told of here go through the host's memory. Those
  // from device to device tell the status themselves (device_waits), without a wait.
  Event issued_;
  std::shared_ptr<const Reporter> reporter_;
  CollectiveStatus::Call call_;
};

class ReportingCommunicator final : public Communicator {
 public:
  ReportingCommunicator(std::unique_ptr<Communicator> inner, std::vector<Rank> ranks, CollectiveStatus& status)
      : inner_(std::move(inner)),
        reporter_(std::make_shared<const Reporter>(
            Reporter{.status = status, .group = {.name = inner_->group_name(), .ranks = std::move(ranks)}})) {}

  const std::string& group_name() const override { return inner_->group_name(); }
  int size() const override { return inner_->size(); }
  int rank_in_group() const override { return inner_->rank_in_group(); }

  Ticket all_reduce(Stream& stream, View data, ReduceOp op) override {
    return reported(stream, "all_reduce", [&] { return inner_->all_reduce(stream, data, op); });
  }
  Ticket reduce_scatter(Stream& stream, ConstView input, std::span<const std::int64_t> counts, View output) override {
    return reported(stream, "reduce_scatter", [&] { return inner_->reduce_scatter(stream, input, counts, output); });
  }
  Ticket all_gather(Stream& stream, ConstView input, std::span<const std::int64_t> counts, View output) override {
    return reported(stream, "all_gather", [&] { return inner_->all_gather(stream, input, counts, output); });
  }
  Ticket all_to_all(Stream& stream, ConstView input, std::span<const std::int64_t> send_counts, View output,
                    std::span<const std::int64_t> receive_counts) override {
    return reported(stream, "all_to_all",
                    [&] { return inner_->all_to_all(stream, input, send_counts, output, receive_counts); });
  }
  Ticket exchange(Stream& stream, std::span<const Transfer> transfers) override {
    CollectiveStatus::Call call{.collective = "exchange", .sequence = num_exchanges_++, .with = {}};
    for (const Transfer& transfer : transfers) {
      const std::int64_t peer = reporter_->group.ranks.at(static_cast<std::size_t>(transfer.peer)).value();
      if (std::find(call.with.begin(), call.with.end(), peer) == call.with.end()) call.with.push_back(peer);
    }
    return reported(stream, std::move(call), [&] { return inner_->exchange(stream, transfers); });
  }
  void abort() noexcept override { inner_->abort(); }

 private:
  template <class Issue>
  Ticket reported(Stream& stream, const char* collective, Issue issue) {
    return reported(
        stream, CollectiveStatus::Call{.collective = collective, .sequence = num_collectives_++, .with = {}}, issue);
  }
  template <class Issue>
  Ticket reported(Stream& stream, CollectiveStatus::Call call, Issue issue) {
    Event issued = stream.record();
    Ticket ticket;
    {
      const CollectiveStatus::Scope scope(reporter_->status, reporter_->group, call);
      ticket = issue();
    }
    return Ticket(std::make_unique<ReportingTicket>(std::move(ticket), std::move(issued), reporter_, std::move(call)));
  }

  std::unique_ptr<Communicator> inner_;
  std::shared_ptr<const Reporter> reporter_;
  std::uint64_t num_collectives_ = 0;
  std::uint64_t num_exchanges_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_reporting_communicator(std::unique_ptr<Communicator> inner, std::vector<Rank> ranks,
                                                          CollectiveStatus& status) {
  return std::make_unique<ReportingCommunicator>(std::move(inner), std::move(ranks), status);
}

}  // namespace scaletrain
