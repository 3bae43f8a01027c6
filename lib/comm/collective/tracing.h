// A decorator that records what a rank asks of its communicators, and checks that agree on records: for tests, and for
// the volumes that a plan foretells.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace scaletrain {

enum class CollectiveKind { all_reduce, reduce_scatter, all_gather, all_to_all, exchange };
std::string_view to_text(CollectiveKind kind);

struct TraceRecord {
  std::string group;  // the communicator's name
  CollectiveKind kind = CollectiveKind::all_reduce;
  DType dtype = DType::f32;
  std::int64_t elements = 0;       // of the whole operand (all pieces); all_to_all: of this rank's input
  std::int64_t sent_elements = 0;  // that this rank sends under direct exchange
  ReduceOp op = ReduceOp::sum;     // of the reductions
  // exchange: its transfers in order.
  struct Message {
    Transfer::Direction direction = Transfer::Direction::send;
    int peer = 0;
    DType dtype = DType::f32;
    std::int64_t elements = 0;
    Transfer::Channel channel = Transfer::Channel::activations;
    bool operator==(const Message&) const = default;
  };
  std::vector<Message> messages;
  bool operator==(const TraceRecord&) const = default;

  // exchange: peers and directions in order, for example ">1 <0".
  std::string peers() const;
};

// The calls of one rank, over all of its groups, in the order of issue. Filled by the rank's thread.
struct Trace {
  std::vector<TraceRecord> records;
};

// The trace must outlive the communicator.
std::unique_ptr<Communicator> make_tracing_communicator(std::unique_ptr<Communicator> inner, Trace& trace);

// One rank's trace with its places: for every group name the index of the group (so that "data" of two replicas' tensor
// ranks are told apart).
struct RankTrace {
  const Trace* trace = nullptr;
  // group name -> a name that is unique in the world, equal for all members
  std::vector<std::pair<std::string, std::string>> groups;
};

// Empty if all members of every group issued the same collectives in the same order, every exchanged message has its
// counterpart in the same order, and one total order exists in which every rank issues its collectives; else the first
// difference, with ranks and positions. ranks[r] is rank r's; the order of every group is that of the ranks.
std::string compare_traces(const std::vector<RankTrace>& ranks);

}  // namespace scaletrain
