#include "plan/memory_plan.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "backend/backend.h"
#include "checkpoint/save/save.h"
#include "infer/stage_memory.h"
#include "optim/optimizer.h"
#include "plan/save_size.h"
#include "plan_helpers.h"
#include "store/param_store.h"
#include "support/forwarding_backend.h"
#include "support/near.h"
#include "support/ranks/fenced_backend.h"

using namespace scaletrain;

namespace {

std::size_t bytes_of(const MemoryPlan& memory, const std::string& purpose) {
  for (const MemoryItem& item : memory.items)
    if (item.purpose == purpose) return item.bytes;
  FAIL("no item " << purpose);
  return 0;
}

// Counts what it copies from the host's memory to the device's, and back.
class CopiesBackend final : public ForwardingBackend {
 public:
  explicit CopiesBackend(std::unique_ptr<Backend> inner) : ForwardingBackend(std::move(inner)) {}
  std::size_t in = 0;
  std::size_t back = 0;

 private:
  void transfer(Stream& stream, const ConstView& from, const View& to) override {
    if (from.space() == Space::pinned && to.space() == Space::device) in += to.num_bytes();
    if (from.space() == Space::device && to.space() == Space::pinned) back += to.num_bytes();
    inner().copy(stream, from, to);
  }
};

}  // namespace

TEST_CASE("the memory plan is exactly what store and stage memory allocate") {
  for (const bool tied : {true, false})
    for (const auto& [optimizer, precision] : {std::pair{OptimizerKind::adamw, Precision::fp32},
                                               {OptimizerKind::sgd, Precision::fp32},
                                               {OptimizerKind::lion, Precision::fp32},
                                               {OptimizerKind::ademamix, Precision::fp32},
                                               {OptimizerKind::muon, Precision::fp32},
                                               {OptimizerKind::muon, Precision::bf16},
                                               {OptimizerKind::adafactor, Precision::fp32},
                                               {OptimizerKind::adamw, Precision::bf16}}) {
      Config config = planned_config();
      config.data.documents.attention = tied ? DocumentAttention::within : DocumentAttention::across;
      config.precision.compute = precision;
      config.model.tie_embeddings = tied;
      config.train.optimizer.type = optimizer;
      const RunPlan run = make_run_plan(config, 61, std::nullopt);
      const PhasePlan& phase = run.phases.front();
      const auto backend = make_cpu_backend({.threads = 1, .instruction_set = "auto", .compute = phase.compute});
      const ShardLayout layout = phase.layout(Rank(0));
      std::vector<std::string> states;
      if (optimizer == OptimizerKind::adamw) states = {"exp_avg", "exp_avg_sq"};
      if (optimizer == OptimizerKind::lion) states = {"exp_avg"};
      if (optimizer == OptimizerKind::muon) states = {"exp_avg", "exp_avg_sq"};
      if (optimizer == OptimizerKind::adafactor) states = {"variance"};
      if (optimizer == OptimizerKind::ademamix) states = {"exp_avg", "exp_avg_slow", "exp_avg_sq"};
      ParamStore store(
          *backend, phase.table, layout,
          {.state_names = states, .gradients = true, .dtype = DType::f32, .compute = backend->compute_type()});
      const StageMemory memory(*backend, phase.activations(Rank(0)));
      const auto stream = backend->make_stream();
      for (const int unit : layout.units()) store.acquire(*stream, unit);
      const std::size_t whole_matrices =
          make_optimizer(config.train.optimizer)->workspace_bytes(phase.table, layout, phase.store_options());
      const bool keeps_factors = optimizer == OptimizerKind::adafactor;
      CHECK((whole_matrices > 0) == (optimizer == OptimizerKind::muon || keeps_factors));
      // Of each row and column its sum and the inverse of its root, the host's total and its copy of the factor.
      std::size_t factors = 0;
      for (const Parameter& parameter : phase.table.parameters())
        if (keeps_factors && parameter.shape.num_dims() == 2 && !parameter.tied_to)
          factors += static_cast<std::size_t>(parameter.shape[0] + parameter.shape[1]);
      if (keeps_factors) CHECK(whole_matrices == (8 + 4) * factors);
      const std::size_t allocated =
          store.bytes() + memory.allocated_bytes() + backend->workspace_bytes() + whole_matrices + (8 + 4) * factors;
      // A save's copy: the masters and the optimizer's states without their padding, four bytes each. Muon's matrices
      // have one state, Adafactor's a number for each row and each column.
      std::int64_t saved = 0;
      for (const Parameter& parameter : phase.table.parameters()) {
        const bool is_matrix = parameter.shape.num_dims() == 2;
        const bool has_one = optimizer == OptimizerKind::muon && parameter.name.starts_with("blocks.") && is_matrix;
        std::size_t copies = 1 + (has_one ? 1 : states.size());
        if (keeps_factors && is_matrix) copies = 1;
        if (parameter.tied_to) continue;
        saved += static_cast<std::int64_t>(copies) * parameter.shape.num_elements();
        if (keeps_factors && is_matrix) saved += parameter.shape[0] + parameter.shape[1];
      }
      const std::size_t staging = 4 * static_cast<std::size_t>(saved);
      CHECK(phase.memory(Rank(0), backend->workspace_bytes()).total() == allocated + staging);
    }
}

TEST_CASE("moments in 8 bits take what the store allocates, a quarter and their scales, and saves as much") {
  for (const std::int64_t zero : {0, 1, 3}) {
    CAPTURE(zero);
    Config config = planned_config();
    config.model.hidden = 128;
    config.model.ffn_hidden = 512;
    config.parallel.data = 2;
    config.parallel.zero = zero;
    config.train.ema = EmaConfig{.decay = 0.9};
    const RunPlan in_fp32 = make_run_plan(config, 61, std::nullopt);
    config.train.optimizer.state = OptimizerStateType::int8;
    const RunPlan run = make_run_plan(config, 61, std::nullopt);
    const PhasePlan& phase = run.phases.front();
    const auto backend = make_cpu_backend({.threads = 1});
    const ShardLayout layout = phase.layout(Rank(0));
    const ParamStore store(*backend, phase.table, layout, phase.store_options());
    CHECK(store.bytes() == store_bytes(phase.table, layout, phase.store_options()).total());
    // Two moments of a byte and a scale of 4 for 16 to 128 elements, beside the average: of 12 bytes 4 + 2 and little.
    const auto was = static_cast<double>(bytes_of(in_fp32.phases.front().memory(Rank(0), 0), "optimizer state"));
    const auto is = static_cast<double>(bytes_of(phase.memory(Rank(0), 0), "optimizer state"));
    CHECK(is < 0.55 * was);
    CHECK(is > 0.5 * was);
    std::uint64_t saved = 0;
    for (std::int64_t rank = 0; rank < 2; ++rank)
      saved += saved_bytes(phase.table, phase.layout(Rank(rank)), phase.optimizer_states, phase.masters());
    CHECK(saved == checkpoint_bytes(phase.table, phase.optimizer_states, phase.masters()));
    CHECK(saved == save_size(phase).bytes);
  }
}

TEST_CASE("a tensor degree that would cut blocks of moments in 8 bits is refused by name") {
  Config config = planned_config();
  config.model.hidden = 128;
  config.model.heads = config.model.kv_heads = 16;
  config.model.ffn_hidden = 384;
  config.train.optimizer.state = OptimizerStateType::int8;
  for (const std::int64_t degree : {1, 2, 4, 8}) {
    config.parallel.tensor = degree;
    CHECK_NOTHROW(make_run_plan(config, 61, std::nullopt));
  }
  config.parallel.tensor = 16;
  CHECK(contains(message_of<UserError>([&] { make_run_plan(config, 61, std::nullopt); }),
                 "parallel.tensor: 16 ranks would cut blocks of train.optimizer.state: int8"));
  config.train.optimizer.state = OptimizerStateType::fp32;
  CHECK_NOTHROW(make_run_plan(config, 61, std::nullopt));
}

// Rows of 24 and of 40 elements.
TEST_CASE("moments in 8 bits are refused where no matrix has blocks to keep them in") {
  Config config = planned_config();
  config.train.optimizer.state = OptimizerStateType::int8;
  CHECK(
      contains(message_of<UserError>([&] { make_run_plan(config, 61, std::nullopt); }),
               "train.optimizer.state: int8 has no effect: no matrix that is trained has rows that divide into blocks "
               "of 16 to 256 elements on every layout; remove the key"));
  config.model.ffn_hidden = 48;
  CHECK(contains(message_of<UserError>([&] { make_run_plan(config, 61, std::nullopt); }), "int8 has no effect"));
  config.model.ffn_hidden = 128;  // an eighth of it, of what tensor ranks divide
  CHECK_NOTHROW(make_run_plan(config, 61, std::nullopt));
}

TEST_CASE("with offload the host and the device have what the plan says each has, to the byte") {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    for (const std::int64_t zero : {0, 1, 3}) {
      CAPTURE(to_text(precision));
      CAPTURE(zero);
      Config config = planned_config();
      config.run.device = DeviceKind::cuda;
      config.precision.compute = precision;
      config.parallel.data = 2;
      config.parallel.zero = zero;
      config.train.optimizer.offload = OffloadKind::host;
      const RunPlan run = make_run_plan(config, 61, std::nullopt);
      const PhasePlan& phase = run.phases.front();
      FencedBackend device(make_cpu_backend({.threads = 1, .compute = phase.compute}));
      const ShardLayout layout = phase.layout(Rank(0));
      const ParamStore store(device, phase.table, layout, phase.store_options());
      const MemoryPlan memory = phase.memory(Rank(0), 0);
      const std::size_t of_host =
          bytes_of(memory, "master weights, on the host") + bytes_of(memory, "optimizer state, on the host");
      CHECK(device.most_pinned() == of_host);
      std::size_t of_device = 0;
      for (const char* purpose : {"weights in compute precision", "gathered weights", "gradients", "gradient staging",
                                  "staging of offloaded state"})
        of_device += bytes_of(memory, purpose);
      CHECK(store.bytes() == of_host + of_device);
      for (const MemoryItem& item : memory.items) {
        CAPTURE(item.purpose);
        if (contains(item.purpose, "on the host")) CHECK(item.is_of_host);
        if (item.purpose == "staging of offloaded state") CHECK_FALSE(item.is_of_host);
      }
    }
  }
}

TEST_CASE("what passes at an offloaded update is to the byte what a backend copies") {
  for (const std::int64_t zero : {0, 1, 3}) {
    CAPTURE(zero);
    Config config = planned_config();
    config.run.device = DeviceKind::cuda;
    config.parallel.data = 2;
    config.parallel.zero = zero;
    config.train.optimizer.offload = OffloadKind::host;
    const RunPlan run = make_run_plan(config, 61, std::nullopt);
    const PhasePlan& phase = run.phases.front();
    CopiesBackend device(std::make_unique<FencedBackend>(make_cpu_backend({.threads = 1})));
    const ShardLayout layout = phase.layout(Rank(0));
    ParamStore::Options options = phase.store_options();
    options.longest_staged = 1024;  // of a few thousand parameters
    const UpdatePass planned = update_pass(phase.table, layout, options);
    ParamStore store(device, phase.table, layout, options);
    const auto stream = device.make_stream();
    std::size_t longest = 0;
    store.update_ranges(*stream, [&](const OptimizerRange& range) {
      longest = std::max(longest, range.param.num_bytes() * (1 + range.states.size()));
    });
    stream->synchronize();
    CHECK(device.in == planned.each_way);
    CHECK(device.back == planned.each_way);
    CHECK(longest == planned.piece);
    options.offload = false;
    CHECK(update_pass(phase.table, layout, options).each_way == 0);
  }
}

TEST_CASE("an offloaded parameter leaves 6 bytes on the device in bf16 and 8 in fp32, of 18 and 16") {
  Config config = preset_config("gpt2-124m");
  config.run.device = DeviceKind::cuda;
  config.train.optimizer.offload = OffloadKind::host;
  for (const auto& [precision, each] : {std::pair{Precision::bf16, 6.0}, {Precision::fp32, 8.0}}) {
    config.precision.compute = precision;
    const MemoryPlan memory = make_run_plan(config, 50257, std::nullopt).phases.front().memory(Rank(0), 0);
    const auto bytes =
        static_cast<double>(bytes_of(memory, "weights in compute precision") + bytes_of(memory, "gradients"));
    CHECK(bytes / 124'439'808 == Near(each).epsilon(1e-3));
    // Three pieces of three times 8 MiB.
    CHECK(bytes_of(memory, "staging of offloaded state") == 9 * (std::size_t{8} << 20));
  }
}

TEST_CASE(
    "what CUDA takes for a process is planned of a GPU's memory, and more where kernels are loaded ahead for NCCL") {
  Config config = planned_config();
  const auto planned = [&] {
    const MemoryPlan memory = make_run_plan(config, 61, std::nullopt).phases.front().memory(Rank(0), 0);
    std::size_t bytes = 0;
    for (const MemoryItem& item : memory.items)
      if (item.purpose == process_memory && !item.is_of_host) bytes += item.bytes;
    return bytes;
  };
  config.parallel.data = 2;
  CHECK(planned() == 0);
  config.run.device = DeviceKind::cuda;
  CHECK(planned() == std::size_t{960} << 20);
  config.launch.transport = RankTransport::host;
  CHECK(planned() == std::size_t{560} << 20);
  config.launch.transport = RankTransport::automatic;
  config.parallel.data = 1;
  CHECK(planned() == std::size_t{560} << 20);
}

TEST_CASE(
    "where ranks on GPUs may exchange by NCCL, what it takes for each connection is planned, and nothing elsewhere") {
  const auto mebi = [](std::size_t number) { return number << 20; };
  const auto planned = [](const Config& config, std::int64_t rank, const std::string& purpose) {
    return bytes_of(make_run_plan(config, 61, std::nullopt).phases.front().memory(Rank(rank), 0), purpose);
  };
  const std::string connections = "connections between GPUs";
  const std::string sums = "sums between GPUs";
  Config config = planned_config();
  config.run.device = DeviceKind::cuda;
  config.train.global_batch = 48;
  Config alone = config;
  config.parallel.data = 2;
  // A group of collectives on an H100 has 16 channels: of each 4 pieces of 2 MiB for tables, and by NVLink one for what
  // is sent and five for the 9.2 MiB of buffers for what is received; three pieces of the group's.
  CHECK(planned(config, 0, connections) == mebi(16 * (8 + 2 + 10) + 6));
  CHECK(planned(config, 0, sums) == mebi(16));
  // Of two hosts of 8, seven others are on the same; all others share 2 MiB each way.
  config.parallel.data = 16;
  CHECK(planned(config, 11, connections) == mebi(16 * (8 + 7 * (2 + 10) + 2 + 2) + 6));
  config.launch.ranks_per_node = 4;
  CHECK(planned(config, 11, connections) == mebi(16 * (8 + 3 * (2 + 10) + 2 + 2) + 6));
  // A pipeline has groups of 8 channels for what is sent and what is received, with each neighbour.
  const std::size_t link = mebi(8 * (8 + 2) + 6 + 8 * (8 + 10) + 6);
  Config stages = alone;
  stages.model.tie_embeddings = false;
  stages.parallel.pipeline = 3;
  for (const std::int64_t rank : {0, 1, 2}) {
    CAPTURE(rank);
    CHECK(planned(stages, rank, connections) == (rank == 1 ? 2 * link : link));
    CHECK(planned(stages, rank, sums) == 0);
  }
  stages.launch.ranks_per_node = 1;
  CHECK(planned(stages, 1, connections) == 4 * mebi(8 * (8 + 2) + 6));
  stages.launch.ranks_per_node.reset();
  stages.parallel.schedule = ScheduleKind::interleaved;
  stages.parallel.chunks = 2;
  for (const int rank : {0, 1, 2}) CHECK(planned(stages, rank, connections) == 2 * link);
  stages.parallel.pipeline = 2;
  CHECK(planned(stages, 0, connections) == 2 * link);  // the other stage is the one before and the one behind

  const auto has_none = [&](const Config& other, bool may_be_direct) {
    PhasePlan phase = make_run_plan(other, 61, std::nullopt).phases.front();
    phase.may_be_direct = phase.may_be_direct && may_be_direct;
    for (const MemoryItem& item : phase.memory(Rank(0), 0).items)
      if (item.purpose == connections || item.purpose == sums) return false;
    return true;
  };
  CHECK_FALSE(has_none(stages, true));
  CHECK(has_none(stages, false));  // as of ranks that share a GPU
  CHECK(has_none(alone, true));
  for (const RankTransport transport : {RankTransport::host, RankTransport::tcp}) {
    stages.launch.transport = transport;
    CHECK(has_none(stages, true));
  }
  stages.launch.transport = RankTransport::nccl;
  CHECK_FALSE(has_none(stages, true));
  stages.run.device = DeviceKind::cpu;
  CHECK(has_none(stages, true));
}

TEST_CASE("masters, gradients and optimizer state of a known model") {
  // 124,439,808 parameters (Radford et al. 2019 with a tied head), four bytes each; padding adds less than 64 KiB.
  const RunPlan run = make_run_plan(preset_config("gpt2-124m"), 50257, std::nullopt);
  const MemoryPlan memory = run.phases.front().memory(Rank(0), 12345);
  const std::size_t masters = bytes_of(memory, "master weights");
  CHECK(masters >= 4ull * 124'439'808);
  CHECK(masters < 4ull * 124'439'808 + 65536);
  CHECK(bytes_of(memory, "gradients") == masters);
  CHECK(bytes_of(memory, "optimizer state") == 2 * masters);
  CHECK(bytes_of(memory, "kernel workspace") == 12345);
}

TEST_CASE("each ZeRO stage divides one more part by the data degree") {
  Config config = preset_config("gpt2-124m");
  config.parallel.data = 4;
  config.train.micro_batch = 1;
  const auto at = [&](std::int64_t zero, const std::string& purpose) {
    config.parallel.zero = zero;
    return bytes_of(make_run_plan(config, 50257, std::nullopt).phases.front().memory(Rank(1), 0), purpose);
  };
  const std::size_t full = at(0, "master weights");
  const std::size_t shard = full / 4;
  for (std::int64_t zero = 0; zero <= 3; ++zero) {
    CHECK(at(zero, "optimizer state") == 2 * (zero >= 1 ? shard : full));
    CHECK(at(zero, "gradients") == (zero >= 2 ? shard : full));
    CHECK(at(zero, "master weights") == (zero >= 3 ? shard : full));
  }
}

TEST_CASE("half precision halves what is kept of activations and adds a copy of the weights") {
  Config config = preset_config("gpt2-124m");
  const auto memory = [&](Precision precision) {
    config.precision.compute = precision;
    return make_run_plan(config, 50257, std::nullopt).phases.front().memory(Rank(0), 0);
  };
  const MemoryPlan single = memory(Precision::fp32);
  const MemoryPlan half = memory(Precision::bf16);
  const double ratio = static_cast<double>(bytes_of(half, "saved activations")) /
                       static_cast<double>(bytes_of(single, "saved activations"));
  CHECK(ratio > 0.5);  // norm statistics and log-sum-exp stay f32
  CHECK(ratio < 0.52);
  CHECK(bytes_of(half, "weights in compute precision") == bytes_of(half, "master weights") / 2);
  CHECK(bytes_of(single, "weights in compute precision") == 0);
  CHECK(memory(Precision::tf32).total() == single.total());
}

TEST_CASE("a parameter in bf16 takes 18 bytes, and of ZeRO 1, 2 and 3 on N replicas 6 + 12/N, 2 + 16/N and 18/N") {
  Config config = preset_config("gpt2-124m");
  config.precision.compute = Precision::bf16;
  config.train.micro_batch = 1;
  for (const std::int64_t replicas : {1, 2, 8}) {
    config.parallel.data = replicas;
    const double n = static_cast<double>(replicas);
    const double expected[] = {18.0, 6 + 12 / n, 2 + 16 / n, 18 / n};
    for (std::int64_t zero = 0; zero <= 3; ++zero) {
      CAPTURE(replicas);
      CAPTURE(zero);
      config.parallel.zero = zero;
      const MemoryPlan memory = make_run_plan(config, 50257, std::nullopt).phases.front().memory(Rank(0), 0);
      std::size_t bytes = 0;
      for (const char* purpose : {"master weights", "weights in compute precision", "gradients", "optimizer state"})
        bytes += bytes_of(memory, purpose);
      CHECK(static_cast<double>(bytes) / 124'439'808 == Near(expected[zero]).epsilon(1e-3));
    }
  }
}

TEST_CASE("recomputation keeps the inputs of blocks, or products and attention, and one block's scratch for the rest") {
  Config config = preset_config("gpt2-124m");
  config.train.micro_batch = 2;
  const auto bytes = [&](RecomputeKind kind, const std::string& purpose) {
    config.train.recompute = kind;
    return bytes_of(make_run_plan(config, 50257, std::nullopt).phases.front().memory(Rank(0), 0), purpose);
  };
  const std::size_t token = 2 * 1024 * 4;  // bytes of one number per token
  const std::size_t width = 768;
  const std::size_t ffn = 3072;
  // Norms with mean and deviation.
  const std::size_t norm = width + 2;
  // Query, key and value, attention with a log-sum-exp per head, the residual stream in the middle, and what the
  // activation is of.
  const std::size_t products = 3 * width + width + 12 + width + ffn;
  const std::string saved = "saved activations";
  CHECK(bytes(RecomputeKind::none, saved) == token * (12 * (2 * norm + products + ffn) + norm));
  CHECK(bytes(RecomputeKind::selective, saved) == token * 12 * products);
  CHECK(bytes(RecomputeKind::full, saved) == 0);
  // Beside the gradient of what the activation is of.
  CHECK(bytes(RecomputeKind::selective, "scratch") == token * (2 * norm + ffn + ffn));
  CHECK(bytes(RecomputeKind::full, "scratch") == token * (2 * norm + products + ffn + ffn));
  CHECK(bytes(RecomputeKind::full, "activations between layers") ==
        bytes(RecomputeKind::none, "activations between layers"));
  CHECK(bytes(RecomputeKind::full, "deferred weight gradients") == 0);
}

TEST_CASE("the text lists every item and the sum") {
  const MemoryPlan memory{{{"apples", 1024}, {"pears", 3 * 1024 * 1024}}};
  CHECK(memory.total() == 1024 + 3 * 1024 * 1024);
  const std::string text = memory.text();
  CHECK(contains(text, "apples"));
  CHECK(contains(text, "pears"));
  CHECK(std::count(text.begin(), text.end(), '\n') == 3);
}

TEST_CASE("frozen parameters take what layers read of them and no more, with every division among replicas") {
  for (const auto& held : {std::pair{Precision::bf16, OffloadKind::none},
                           {Precision::fp32, OffloadKind::host},
                           {Precision::bf16, OffloadKind::host}}) {
    const Precision precision = held.first;
    const OffloadKind offload = held.second;
    for (const std::int64_t zero : {0, 1, 2, 3}) {
      CAPTURE(to_text(precision));
      CAPTURE(static_cast<int>(offload));
      CAPTURE(zero);
      Config config = planned_config();
      config.run.device = DeviceKind::cuda;
      config.precision.compute = precision;
      config.parallel.data = 2;
      config.parallel.zero = zero;
      config.train.optimizer.offload = offload;
      config.finetune.freeze = {"blocks.*"};
      const RunPlan run = make_run_plan(config, 61, std::nullopt);
      const PhasePlan& phase = run.phases.front();
      FencedBackend device(make_cpu_backend({.threads = 1, .compute = phase.compute}));
      const ShardLayout layout = phase.layout(Rank(0));
      const ParamStore store(device, phase.table, layout, phase.store_options());
      const MemoryPlan memory = phase.memory(Rank(0), 0);
      std::size_t planned = 0;
      for (const char* purpose : {"weights in compute precision", "gathered weights", "gradients", "gradient staging"})
        planned += bytes_of(memory, purpose);
      if (offload == OffloadKind::host) {
        const std::size_t of_host =
            bytes_of(memory, "master weights, on the host") + bytes_of(memory, "optimizer state, on the host");
        CHECK(device.most_pinned() == of_host);
        planned += of_host + bytes_of(memory, "staging of offloaded state");
      } else {
        planned += bytes_of(memory, "master weights") + bytes_of(memory, "optimizer state");
      }
      CHECK(store.bytes() == planned);
      // By hand: of the buffer of the blocks one copy, of a half where ZeRO 3 divides it.
      std::size_t of_frozen = 0;
      std::size_t of_trained = 0;
      for (const FlatBuffer& flat : layout.buffers()) {
        const std::size_t each = precision == Precision::bf16 ? 2 : 4;
        const auto elements = static_cast<std::size_t>(zero == 3 ? flat.shard_elements : flat.num_elements);
        (flat.role == ParamRole::frozen ? of_frozen : of_trained) += each * elements;
        if (flat.role == ParamRole::frozen) CHECK(flat.dtype == phase.compute);
      }
      CHECK(of_frozen > 0);
      CHECK(bytes_of(memory, "weights in compute precision") == of_frozen + of_trained);
    }
  }
}
