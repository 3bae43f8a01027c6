#include "comm/collective/tracing.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "comm/collective/direct_communicator.h"

namespace scaletrain {

namespace {

class TracingCommunicator final : public Communicator {
 public:
  TracingCommunicator(std::unique_ptr<Communicator> inner, Trace& trace) : inner_(std::move(inner)), trace_(trace) {}

  const std::string& group_name() const override { return inner_->group_name(); }
  int size() const override { return inner_->size(); }
  int rank_in_group() const override { return inner_->rank_in_group(); }

  Ticket all_reduce(Stream& stream, View data, ReduceOp op) override {
    TraceRecord& record = add(CollectiveKind::all_reduce, data);
    record.op = op;
    record.sent_elements = direct_all_reduce_sent(data.dtype(), data.num_elements(), size(), rank_in_group());
    return inner_->all_reduce(stream, data, op);
  }
  Ticket reduce_scatter(Stream& stream, ConstView input, std::span<const std::int64_t> counts, View output) override {
    add(CollectiveKind::reduce_scatter, input).sent_elements = to_others(counts);
    return inner_->reduce_scatter(stream, input, counts, output);
  }
  Ticket all_gather(Stream& stream, ConstView input, std::span<const std::int64_t> counts, View output) override {
    add(CollectiveKind::all_gather, output).sent_elements = input.num_elements() * (size() - 1);
    return inner_->all_gather(stream, input, counts, output);
  }
  Ticket all_to_all(Stream& stream, ConstView input, std::span<const std::int64_t> send_counts, View output,
                    std::span<const std::int64_t> receive_counts) override {
    add(CollectiveKind::all_to_all, input).sent_elements = to_others(send_counts);
    return inner_->all_to_all(stream, input, send_counts, output, receive_counts);
  }
  Ticket exchange(Stream& stream, std::span<const Transfer> transfers) override {
    TraceRecord& record = add(CollectiveKind::exchange, transfers.empty() ? View() : transfers.front().data);
    record.elements = 0;
    for (const Transfer& transfer : transfers) {
      const std::int64_t elements = transfer.data.num_elements();
      record.messages.push_back({transfer.direction, transfer.peer, transfer.data.dtype(), elements, transfer.channel});
      record.elements += elements;
      const bool sends = transfer.direction == Transfer::Direction::send && transfer.peer != rank_in_group();
      if (sends) record.sent_elements += elements;
    }
    return inner_->exchange(stream, transfers);
  }
  void abort() noexcept override { inner_->abort(); }

 private:
  TraceRecord& add(CollectiveKind kind, const ConstView& operand) {
    TraceRecord& record = trace_.records.emplace_back();
    record.group = inner_->group_name();
    record.kind = kind;
    record.dtype = operand.dtype();
    record.elements = operand.num_elements();
    return record;
  }
  std::int64_t to_others(std::span<const std::int64_t> counts) const {
    SCALETRAIN_CHECK_EQ(counts.size(), static_cast<std::size_t>(size()));
    const auto total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    return total - counts[static_cast<std::size_t>(rank_in_group())];
  }

  std::unique_ptr<Communicator> inner_;
  Trace& trace_;
};

// A call of one rank: which rank, and the how-manieth of its calls.
struct Place {
  std::size_t rank = 0;
  std::size_t call = 0;
};

struct Member {
  std::size_t rank = 0;
  std::vector<std::size_t> collectives;  // positions in the rank's trace, in order
  std::vector<std::size_t> exchanges;
};

using Groups = std::map<std::string, std::vector<Member>>;  // by unique name; members in the order of the ranks

// A collective of a group: one node for all members.
struct Node {
  std::string group;
  std::size_t index = 0;
  auto operator<=>(const Node&) const = default;
};

const TraceRecord& record_at(const std::vector<RankTrace>& ranks, const Place& place) {
  return ranks[place.rank].trace->records[place.call];
}

std::string unique_name(const RankTrace& rank, const std::string& group) {
  const auto found =
      std::find_if(rank.groups.begin(), rank.groups.end(), [&](const auto& names) { return names.first == group; });
  SCALETRAIN_CHECK(found != rank.groups.end());
  return found->second;
}

Groups collect_groups(const std::vector<RankTrace>& ranks) {
  Groups groups;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    // A member that issued nothing is a member all the same.
    for (const auto& [name, unique] : ranks[rank].groups) groups[unique].push_back({rank, {}, {}});
    const auto& records = ranks[rank].trace->records;
    for (std::size_t call = 0; call < records.size(); ++call) {
      Member& member = groups[unique_name(ranks[rank], records[call].group)].back();
      (records[call].kind == CollectiveKind::exchange ? member.exchanges : member.collectives).push_back(call);
    }
  }
  return groups;
}

std::string text_of(const TraceRecord& record) {
  std::string text = fmt::format("{} of {} {}", to_text(record.kind), record.elements, to_text(record.dtype));
  if (record.op == ReduceOp::max) text += " (max)";
  return text;
}

bool same_collective(const TraceRecord& a, const TraceRecord& b) {
  // Every rank of an all-to-all has its own amount.
  const bool same_size = a.kind == CollectiveKind::all_to_all || a.elements == b.elements;
  return a.kind == b.kind && a.dtype == b.dtype && same_size && a.op == b.op;
}

std::string compare_collectives(const std::vector<RankTrace>& ranks, const std::string& name, const Member& first,
                                const Member& other) {
  const std::size_t both = std::min(first.collectives.size(), other.collectives.size());
  for (std::size_t index = 0; index < both; ++index) {
    const Place a{first.rank, first.collectives[index]};
    const Place b{other.rank, other.collectives[index]};
    if (same_collective(record_at(ranks, a), record_at(ranks, b))) continue;
    return fmt::format("group {}: collective #{} is {} on rank {} (call {}), {} on rank {} (call {})", name, index,
                       text_of(record_at(ranks, a)), a.rank, a.call, text_of(record_at(ranks, b)), b.rank, b.call);
  }
  if (first.collectives.size() == other.collectives.size()) return {};
  const Member& longer = first.collectives.size() > both ? first : other;
  const Member& shorter = first.collectives.size() > both ? other : first;
  const Place extra{longer.rank, longer.collectives[both]};
  return fmt::format("group {}: collective #{} is {} on rank {} (call {}), missing on rank {}", name, both,
                     text_of(record_at(ranks, extra)), extra.rank, extra.call, shorter.rank);
}

struct PlacedMessage {
  TraceRecord::Message message;
  std::size_t call = 0;
};

std::vector<PlacedMessage> messages_of(const std::vector<RankTrace>& ranks, const Member& member,
                                       Transfer::Direction direction, std::size_t peer, int channel) {
  std::vector<PlacedMessage> found;
  for (const std::size_t call : member.exchanges) {
    for (const auto& message : record_at(ranks, {member.rank, call}).messages) {
      if (message.direction == direction && message.peer == static_cast<int>(peer) &&
          message.channel == static_cast<Transfer::Channel>(channel))
        found.push_back({message, call});
    }
  }
  return found;
}

// The messages from one member to another in one channel, against what that one receives from it there.
std::string compare_messages(const std::vector<RankTrace>& ranks, const std::string& name,
                             const std::vector<Member>& members, std::size_t from, std::size_t to, int channel) {
  const auto sent = messages_of(ranks, members[from], Transfer::Direction::send, to, channel);
  const auto received = messages_of(ranks, members[to], Transfer::Direction::receive, from, channel);
  const auto side = [&](const std::vector<PlacedMessage>& messages, std::size_t index) {
    if (index >= messages.size()) return std::string("missing");
    const PlacedMessage& placed = messages[index];
    return fmt::format("{} {} (call {})", placed.message.elements, to_text(placed.message.dtype), placed.call);
  };
  for (std::size_t index = 0; index < std::max(sent.size(), received.size()); ++index) {
    const bool same = index < sent.size() && index < received.size() &&
                      sent[index].message.elements == received[index].message.elements &&
                      sent[index].message.dtype == received[index].message.dtype;
    if (same) continue;
    return fmt::format("group {}: message #{} of channel {} from rank {} to rank {} is sent as {}, received as {}",
                       name, index, channel, members[from].rank, members[to].rank, side(sent, index),
                       side(received, index));
  }
  return {};
}

std::string compare_group(const std::vector<RankTrace>& ranks, const std::string& name,
                          const std::vector<Member>& members) {
  for (std::size_t index = 1; index < members.size(); ++index) {
    std::string difference = compare_collectives(ranks, name, members.front(), members[index]);
    if (!difference.empty()) return difference;
  }
  for (std::size_t from = 0; from < members.size(); ++from) {
    for (std::size_t to = 0; to < members.size(); ++to) {
      for (int channel = 0; channel < Transfer::num_channels; ++channel) {
        std::string difference = compare_messages(ranks, name, members, from, to, channel);
        if (!difference.empty()) return difference;
      }
    }
  }
  return {};
}

// Every rank issues its collectives in its own order; a total order exists if these orders together have no cycle.
class OrderGraph {
 public:
  explicit OrderGraph(const std::vector<RankTrace>& ranks) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      std::map<std::string, std::size_t> counts;
      std::optional<Node> before;
      for (const TraceRecord& record : ranks[rank].trace->records) {
        if (record.kind == CollectiveKind::exchange) continue;  // posted at once: waits for nothing, holds up nothing
        const std::string name = unique_name(ranks[rank], record.group);
        const Node node{name, counts[name]++};
        successors_[node];
        if (before) successors_[*before].push_back({node, rank});
        before = node;
      }
    }
  }

  // Empty if there is none.
  std::string cycle() const {
    const auto stuck = nodes_on_cycles();
    if (stuck.empty()) return {};
    // What is left after taking away sources and sinks lies on or between cycles: walking on must come back.
    std::vector<Edge> path;
    std::map<Node, std::size_t> seen;
    Node at = stuck.begin()->first;
    while (!seen.contains(at)) {
      seen.emplace(at, path.size());
      const auto& edges = successors_.at(at);
      const auto next = std::find_if(edges.begin(), edges.end(), [&](const Edge& e) { return stuck.contains(e.to); });
      SCALETRAIN_CHECK(next != edges.end());
      path.push_back(*next);
      at = next->to;
    }
    std::string text = fmt::format("no total order of the collectives: {} #{}", at.group, at.index);
    for (std::size_t index = seen.at(at); index < path.size(); ++index) {
      text += fmt::format(" comes before {} #{} on rank {}{}", path[index].to.group, path[index].to.index,
                          path[index].rank, index + 1 < path.size() ? ", which" : "");
    }
    return text;
  }

 private:
  struct Edge {
    Node to;
    std::size_t rank = 0;  // the rank whose order this is
  };

  // Takes away what has no successor, then again, until every node that is left leads to a cycle.
  std::map<Node, std::size_t> nodes_on_cycles() const {
    std::map<Node, std::size_t> remaining;  // number of edges to remaining nodes
    std::map<Node, std::vector<Node>> predecessors;
    std::vector<Node> free;
    for (const auto& [node, edges] : successors_) {
      remaining.emplace(node, edges.size());
      if (edges.empty()) free.push_back(node);
      for (const Edge& edge : edges) predecessors[edge.to].push_back(node);
    }
    while (!free.empty()) {
      const Node node = free.back();
      free.pop_back();
      remaining.erase(node);
      for (const Node& before : predecessors[node]) {
        if (--remaining.at(before) == 0) free.push_back(before);
      }
    }
    return remaining;
  }

  std::map<Node, std::vector<Edge>> successors_;
};

}  // namespace

std::string_view to_text(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce:
      return "all_reduce";
    case CollectiveKind::reduce_scatter:
      return "reduce_scatter";
    case CollectiveKind::all_gather:
      return "all_gather";
    case CollectiveKind::all_to_all:
      return "all_to_all";
    case CollectiveKind::exchange:
      return "exchange";
  }
  SCALETRAIN_CHECK(false);
}

std::string TraceRecord::peers() const {
  std::string text;
  for (const Message& message : messages) {
    if (!text.empty()) text += ' ';
    text += (message.direction == Transfer::Direction::send ? '>' : '<') + std::to_string(message.peer);
  }
  return text;
}

std::unique_ptr<Communicator> make_tracing_communicator(std::unique_ptr<Communicator> inner, Trace& trace) {
  return std::make_unique<TracingCommunicator>(std::move(inner), trace);
}

std::string compare_traces(const std::vector<RankTrace>& ranks) {
  const Groups groups = collect_groups(ranks);
  for (const auto& [name, members] : groups) {
    std::string difference = compare_group(ranks, name, members);
    if (!difference.empty()) return difference;
  }
  return OrderGraph(ranks).cycle();
}

}  // namespace scaletrain
