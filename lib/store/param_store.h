// The parameters of one rank: master weights, compute weights, gradients and optimizer states in flat buffers, and the
// handles layers see. The only place that knows what ZeRO divides, and what is gathered, reduced and freed when.
//
// Masters are what the optimizer updates and a checkpoint stores; compute weights are what layers read. Where both have
// one type they are one: a rank's own part of the compute weights is its masters. Where they differ, masters are the
// optimizer's alone and divided with its state; the update writes its part of the compute weights too, and gathers
// never touch masters.
//
// Frozen parameters are held once, in the type and the place that layers read them: no update needs more.
//
// Offload: masters and optimizer state lie in pinned memory of the host, whatever their type, and pass through a little
// memory of the device when they are updated (offload_staging.h). Everything else is as without.
//
// acquire(unit) and release(unit) bracket every use of weights, acquire_gradients(unit) and release_gradients(unit)
// every use of gradient accumulators, at every ZeRO stage. Layers never see flat buffers: they get a UnitWeights with
// one Weight per parameter of the unit, or one per fused group (a matrix over the group's parameters), in table order;
// a parameter that shares its tied owner's place is found under its own name. Packed forms are made once per update, of
// weights that the rank holds unsharded, in memory of their own. Not thread-safe: one executor uses it, and all ranks
// of a group make the same calls in the same order.
//
// What a policy means, with buckets as shard_layout.h has them:
//
// Parameters unsharded: a full buffer in the compute type; after an update of shards each bucket is all-gathered, under
// way until the unit is next acquired. Sharded: the shard only; acquire() waits for the bucket's gather into a staging
// buffer, which prefetch() begins ahead; after release() the place is free for another unit.
//
// Gradients unsharded: a full buffer; a unit's last release of the step begins its sum over the replicas, by all-reduce
// or, where the optimizer is sharded, by reduce-scatter. Sharded: layers accumulate into staging, and every release
// begins a reduce-scatter whose result is added to the shard; a tied tensor that two units of this rank share
// accumulates all step and is reduced once, when both have had their last release. In a type of their own (`reduce`)
// gradients travel in copies, of which there are two: who needs a third waits, on the stream, for the oldest to return.
//
// Optimizer: its state, and masters of another type than layers read, unsharded or the shard only.
//
// Sums over tensor ranks come before those over replicas: replicated parameters that each tensor rank saw only its
// sequence shard of (`sequence`), and grouped parameters over their replication group. The tied tensor's sum over first
// and last stage comes last.
//
// Reductions go by buckets: a unit's, or a tied tensor's. The bits do not depend on that, as every element is summed by
// itself in the order of the ranks (direct_communicator.h).
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "base/process/work_count.h"
#include "parallel/param_table.h"
#include "parallel/shard_layout.h"
#include "store/rank_groups.h"

namespace scaletrain {

// Handles of one acquired unit. Valid until release.
class UnitWeights {
 public:
  // The weight, or fused matrix, of this name: the parameter's name without the unit's prefix
  // ("attention.query.weight"), or the fused group's name ("attention.qkv.weight"). Absent parameters (no bias) give an
  // empty Weight.
  Weight find(std::string_view local_name) const;

 private:
  friend class StoreWeights;
  struct Entry {
    std::string name;
    Weight weight;
  };
  std::vector<Entry> entries_;
};

// Gradient accumulators of one unit, by the same names. Valid until release_gradients.
class UnitGradients {
 public:
  View find(std::string_view local_name) const;

 private:
  friend class StoreGradients;
  struct Entry {
    std::string name;
    View gradient;
  };
  std::vector<Entry> entries_;
};

// A stretch of a flat buffer with everything that lives over it, owned by this rank: what an optimizer updates. As
// update_ranges() shows it all of it is in the memory of the device.
struct OptimizerRange {
  int buffer = 0;
  std::int64_t first = 0;  // in the flat buffer
  View param;              // master weights
  View compute;            // the compute weights of the same elements, which the update writes too; empty: they are
                           // the masters
  View gradient;
  // In the order of the names given to the constructor; empty where they have none; u8 codes of those in blocks.
  std::vector<View> states;
  // Where states are in 8 bits (is_in_blocks): the elements that share a scale, and the scales of each state, none of
  // one that is not in blocks.
  std::int64_t state_block = 0;
  std::vector<View> scales;  // [elements / state_block]
};

// Where the factors of a parameter lie among those that a rank holds (Parameter::has_factors): of its rows from `first`
// on, then of its columns.
struct FactorPlace {
  int parameter = 0;
  std::int64_t first = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};
// Of each stored tensor that the rank has a place for, in the order of its buffers. Pure.
std::vector<FactorPlace> factor_places(const ParamTable& table, const ShardLayout& layout);

// Whether an optimizer's state of a parameter is in 8 bits, in blocks of Parameter::state_block (backend/
// moment_codes.h): all that it declares, and not the average of the weights that follows them.
bool is_in_blocks(std::int64_t state_block, std::string_view state_name);
// What that average is called among the states.
inline constexpr std::string_view average_state_name = "ema";

enum class StateKind { master, gradient, optimizer };

// Where the values of a range lie: from element `first` of all that a rank holds over a flat buffer.
struct HeldValues {
  View buffer;  // padding included
  std::int64_t first = 0;
};

class ParamStore {
 public:
  struct Options {
    std::vector<std::string>
        state_names{};  // per-element optimizer state, e.g. {"exp_avg", "exp_avg_sq"}; none for inference. What a
                        // parameter lacks of them (Parameter::absent_state) has no memory, and is not to be asked for
    bool gradients = true;
    DType dtype = DType::f32;  // of masters, gradients and states; f64 with the f64 reference
    // Of the weights that layers read, but for frozen ones that are stored in another type than f32. Nothing: dtype.
    std::optional<DType> compute{};
    // Of a weight's packed form (Backend::packed_bytes, which a store asks itself: this is for plans). Empty: none.
    std::function<std::size_t(const Shape& weight)> packed_bytes{};
    // That gradients travel in between replicas. Nothing: dtype. Another type is for them alone: they are rounded to
    // it, and their sum, which the communicator makes in f32, once more; accumulators and what the optimizer reads stay
    // dtype.
    std::optional<DType> reduce{};
    ZeroPolicy zero{};
    // There is memory for the gradients that the optimizer of this rank reads, a second time: for those of half a batch
    // (keep_gradients).
    bool second_gradients = false;
    bool sequence = false;  // activations between tensor-parallel parts are sequence shards
    // Masters and states of what is trained lie in pinned memory of the host.
    bool offload = false;
    // Elements of them that pass through the device at once, at most: copies of 8 MiB in f32, far longer than what it
    // takes to begin one. A multiple of 16, so that every piece begins where kernels are fastest.
    std::int64_t longest_staged = std::int64_t{2} << 20;
    // Must outlive the store. Null: a single rank, or one whose gradients nobody sums; what needs a transfer is a bug.
    const RankGroups* groups = nullptr;
    // Counts allocations, which for pinned memory take seconds. Null: nobody watches. Must outlive the constructor.
    WorkCount* work = nullptr;
  };

  // The table and layout must outlive the store. Allocates from the backend; zero-filled.
  ParamStore(Backend& backend, const ParamTable& table, const ShardLayout& layout, Options options);
  ~ParamStore();
  ParamStore(ParamStore&&) noexcept;
  ParamStore& operator=(ParamStore&&) noexcept;

  // Begins what acquire(unit) would wait for; nothing where the unit is there already, or where there is no place for
  // it yet. May be left out. With sharded parameters there is place for two units at once: acquiring a third is a bug.
  void prefetch(Stream& stream, int unit);
  // Nesting is counted; acquiring while acquired is free.
  const UnitWeights& acquire(Stream& stream, int unit);
  void release(int unit);
  // Accumulators to add to; nesting is counted. A bug after the unit's last release, until the next zero_gradients.
  const UnitGradients& acquire_gradients(Stream& stream, int unit);
  // last: no more is added to this unit's accumulators in this step.
  void release_gradients(Stream& stream, int unit, bool last);
  // Orders the stream behind every reduction that was begun for these units, that of reduce_tied included. A unit of
  // this rank whose last release never came (no micro-batch passed it) is reduced now, so that its peers do not wait.
  void finish_gradients(Stream& stream, std::span<const int> units);
  // Begins the sum of the tied tensor's gradient over the stages that hold it, as soon as its own reductions are done;
  // nothing on other ranks. After the last releases, before finish_gradients, which waits for it.
  void reduce_tied(Stream& stream);

  // Before the first micro-batch of a step. updates: of the model so far; parameters that join later
  // (Parameter::joins_after) have no accumulators to be found in this step, and their gradient stays zero.
  void zero_gradients(Stream& stream, std::int64_t updates = std::numeric_limits<std::int64_t>::max());
  // As it was told last; 0 before.
  std::int64_t updates() const;
  // With second_gradients, for a step whose gradients are reduced in two parts. When those of the first part are
  // complete, as for update_ranges: keeps what the optimizer of this rank reads of them; zero_gradients follows. When
  // those of the second are: adds the first to them, and the optimizer reads the sum.
  void keep_gradients(Stream& stream);
  void add_kept_gradients(Stream& stream);
  // Shows `update` everything the optimizer of this rank updates, range by range, for it to issue their updates to the
  // stream; with offload in pieces that are in the device's memory for that long. Gradients are complete after
  // reduce_tied and finish_gradients of all. What the stream is given afterwards finds masters and states updated.
  // is_last: false where another pass over the same step is what changes the weights.
  void update_ranges(Stream& stream, const std::function<void(const OptimizerRange&)>& update, bool is_last = true);
  // Shown each range right behind `update` of the last pass, while it is in the device's memory, for what follows from
  // the new weights (an average of them). Nothing: nobody is.
  void follow_updates(std::function<void(const OptimizerRange&)> follow);
  // After the optimizer has updated its ranges, compute weights included: begins the gathers that the policy needs;
  // packed forms are stale.
  void updated(Stream& stream);
  // After a load or initialisation of all masters that this rank holds (settle() before it, if anything was under way):
  // cached compute forms and gathered weights are stale. Compute weights of another type are made anew, and gathered
  // where ranks hold them whole but only their shards of the masters; nothing else is gathered.
  void values_changed(Stream& stream);
  // Blocks the host until nothing that was begun is under way: before a checkpoint, an inspection, the end.
  void settle(Stream& stream);

  // The ranges of parameters whose values this rank holds, of this kind: unsharded parameters, or its shard's parts.
  std::span<const ParamRange> held(StateKind kind) const;
  // The values of a held range, or of any part of one. `state`, which the parameter must have, counts for
  // StateKind::optimizer. With offload masters and states are in pinned memory of the host, which reads them when the
  // stream has run what it was given. Of a state in blocks its codes.
  View values(StateKind kind, const ParamRange& range, std::size_t state = 0) const;
  // The scales of a state in blocks, of whole ones.
  View scales(const ParamRange& range, std::size_t state) const;
  // Of an optimizer that keeps some: all of them, [the end of the last place], in the type of the masters, zero at the
  // start, and where each parameter's lie. Empty where there are none.
  View factors() const;
  std::span<const FactorPlace> factor_places() const;
  // Of one parameter, which must have some: where they lie, and they, rows and then columns.
  const FactorPlace& factor_place(int parameter) const;
  View factors(int parameter) const;
  // The same as values() in its buffer, for what works on many ranges at once.
  HeldValues find(StateKind kind, const ParamRange& range, std::size_t state = 0) const;
  // A held parameter's local box; empty where the parameter is not held unsharded. For tests and single ranks.
  View master(std::string_view name) const;
  View gradient(std::string_view name) const;
  View state(std::string_view name, std::size_t state) const;

  const ParamTable& table() const;
  const ShardLayout& layout() const;
  const Options& options() const;
  Backend& backend() const;     // whose memory the values lie in
  std::uint64_t bytes() const;  // of all that it has allocated

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Bytes a store takes, by purpose: pure, for the memory plan. Equal to what ParamStore allocates.
struct StoreBytes {
  std::size_t masters = 0;
  std::size_t computed = 0;  // compute weights, where they are not the masters; frozen ones that are all there is
  std::size_t gradients = 0;
  std::size_t second_gradients = 0;
  std::size_t states = 0;
  std::size_t packed = 0;         // packed forms of compute weights
  std::size_t gathered = 0;       // staging of gathered weights
  std::size_t state_staging = 0;  // of masters and states that the host's memory has, on their way through the device
  // Accumulators of sharded gradients, copies for sums over tensor ranks, and those that travel in a type of their own.
  std::size_t gradient_staging = 0;
  std::size_t total() const {
    return masters + computed + gradients + second_gradients + states + packed + gathered + state_staging +
           gradient_staging;
  }
};
StoreBytes store_bytes(const ParamTable& table, const ShardLayout& layout, const ParamStore::Options& options);

// Bytes of masters and states that pass through the device at an update, with offload: pure, for the plan of its time.
struct UpdatePass {
  std::size_t each_way = 0;  // from the host's memory to the device's, and as many back
  std::size_t piece = 0;     // of them the longest that passes as one: when all have come, it has yet to go back
};
UpdatePass update_pass(const ParamTable& table, const ShardLayout& layout, const ParamStore::Options& options);

}  // namespace scaletrain
