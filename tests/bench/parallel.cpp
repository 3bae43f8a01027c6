// Measures what parallelism costs on this machine, with ranks as processes over Gloo, each pinned to one processor:
//   data      two data-parallel ranks of one thread against one rank of one thread (GPT-2 124M, micro-batch 4)
//   bubble    the pipeline bubble of two stages against its formula, for 2, 4 and 8 micro-batches
//   memory    what each rank's peak memory grows by under ZeRO 0 to 3 and with recomputation, against the plan
// A tool, not a test: it asserts nothing. Layouts that are compared are alive at the same time and step by turns.
//
// Usage: bench_parallel [data|bubble|memory]... [--rounds N]; without a name: all three.
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/text.h"
#include "bench_tools.h"
#include "comm/collective/direct_communicator.h"
#include "comm/gloo/gloo_transport.h"
#include "comm/rendezvous/rendezvous.h"
#include "config/keys/keys.h"
#include "nn/init.h"
#include "optim/optimizer.h"
#include "plan/run_plan.h"
#include "train/step/step_runner.h"

extern char** environ;

namespace scaletrain {
namespace {

constexpr const char* secret_variable = "SCALETRAIN_SECRET";  // a command line could be read by others

// What the ranks of one layout run; travels to them as text.
struct Layout {
  std::string model = "gpt2-124m";  // or "balanced": two stages of equal cost
  std::int64_t data = 1;
  std::int64_t pipeline = 1;
  std::int64_t zero = 0;
  std::int64_t micro_batch = 4;
  std::int64_t num_micro_batches = 1;
  std::int64_t context = 1024;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  RecomputeKind recompute = RecomputeKind::none;
  std::int64_t world() const { return data * pipeline; }
  std::string text() const {
    return fmt::format("{},{},{},{},{},{},{},{},{}", model, data, pipeline, zero, micro_batch, num_micro_batches,
                       context, static_cast<int>(schedule), static_cast<int>(recompute));
  }
};

Layout parse_layout(const std::string& text) {
  const std::vector<std::string> parts = split_text(text, ',');
  if (parts.size() != 9) throw std::runtime_error("bad layout");
  const auto number = [&parts](std::size_t index) { return std::int64_t{std::stoll(parts[index])}; };
  return {parts[0],
          number(1),
          number(2),
          number(3),
          number(4),
          number(5),
          number(6),
          static_cast<ScheduleKind>(number(7)),
          static_cast<RecomputeKind>(number(8))};
}

Config config_of(const Layout& layout) {
  Config config;
  if (layout.model == "balanced") {
    // A vocabulary that is small against the blocks: both stages cost nearly the same.
    config.model.layers = 8;
    config.model.hidden = 512;
    config.model.heads = 8;
    config.model.kv_heads = 8;
    config.model.ffn_hidden = 2048;
    config.model.vocab = 64;
  } else {
    config.model = *find_model_preset(layout.model);
  }
  config.model.context = layout.context;
  config.train.steps = 1000;
  config.train.micro_batch = layout.micro_batch;
  config.train.global_batch = layout.micro_batch * layout.num_micro_batches * layout.data;
  config.train.lr_schedule.warmup = 10;
  config.checkpoint.background = false;  // nothing is saved
  config.parallel.data = layout.data;
  config.parallel.pipeline = layout.pipeline;
  config.parallel.zero = layout.zero;
  config.parallel.schedule = layout.schedule;
  config.train.recompute = layout.recompute;
  if (layout.model == "balanced" && layout.pipeline == 2)
    config.parallel.stage_layers = std::vector<std::int64_t>{4, 4};
  return config;
}

void pin_to(std::int64_t processor) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(static_cast<std::size_t>(processor) % std::max(1u, std::thread::hardware_concurrency()), &mask);
  ::sched_setaffinity(0, sizeof mask, &mask);
}

// One rank: reads "step" from standard input and answers with the seconds it took, until the input ends; then with the
// growth of its memory and the plan's.
int run_rank(const std::string& layout_text, std::int64_t rank_number, std::uint16_t port) {
  const char* const secret = std::getenv(secret_variable);
  if (secret == nullptr) throw std::runtime_error("a rank is started by bench_parallel alone");
  const Layout layout = parse_layout(layout_text);
  const Rank rank(rank_number);
  pin_to(rank_number);
  const Config config = config_of(layout);
  const RunPlan plan = make_run_plan(config, *config.model.vocab, std::nullopt);
  const PhasePlan& phase = plan.phases.front();
  const auto backend = make_cpu_backend({.threads = 1});
  const auto stream = backend->make_stream();
  calibrate_matmul(*backend, *stream, 0.2);

  const auto store_of_names = connect_store({"127.0.0.1", port}, secret, 60.0);
  GlooDevice device("127.0.0.1", secret);
  const auto make = [&](const GroupSpec& spec) {
    return make_direct_communicator(device.connect(*store_of_names, spec.name, spec.members, rank, 60.0),
                                    {.group_name = std::string(to_text(spec.kind)),
                                     .ranks = spec.members,
                                     .deadline = 600.0,
                                     .mode = DirectOptions::Mode::queue});
  };
  const RankGroups groups = make_groups(phase.mesh, rank, phase.group_facts(), make);
  const std::uint64_t before = peak_memory();

  const auto optimizer = make_optimizer(config.train.optimizer);
  const ShardLayout shards = phase.layout(rank);
  ParamStore::Options options = phase.store_options(DType::f32);
  options.groups = &groups;
  ParamStore store(*backend, phase.table, shards, options);
  initialise_parameters(store, *stream, 1, 1);
  const Transformer model = phase.transformer(rank);
  StageMemory memory(*backend, phase.activations(rank));
  StepRunner runner({.plan = phase,
                     .rank = rank,
                     .backend = *backend,
                     .stream = *stream,
                     .model = model,
                     .store = store,
                     .optimizer = *optimizer,
                     .memory = memory,
                     .groups = groups});
  RandomTokens source(phase.model.vocab, layout.context);
  StepSettings settings;
  settings.learning_rate = 1e-4;
  std::array<char, 16> line{};
  while (std::fgets(line.data(), line.size(), stdin) != nullptr) {
    const MonotonicTime start = monotonic_now();
    runner.step(source, settings);
    ++settings.update;
    fmt::print("{}\n", seconds_since(start));
    std::fflush(stdout);
  }
  const std::size_t planned = phase.memory(rank, backend->workspace_bytes()).total();
  fmt::print("{} {}\n", peak_memory() - before, planned);
  return 0;
}

class File {
 public:
  explicit File(std::FILE* file = nullptr) : file_(file) {}
  File(File&& other) noexcept : file_(std::exchange(other.file_, nullptr)) {}
  File& operator=(File&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { close(); }
  void close() {
    if (file_ != nullptr) std::fclose(std::exchange(file_, nullptr));
  }
  std::FILE* get() const { return file_; }

 private:
  std::FILE* file_;
};

// The processes of one layout.
class Ranks {
 public:
  explicit Ranks(const Layout& layout) : Ranks(layout, make_secret()) {}
  Ranks(const Layout& layout, const std::string& secret) : server_({.secret = secret}) {
    ::setenv(secret_variable, secret.c_str(), 1);
    for (std::int64_t rank = 0; rank < layout.world(); ++rank) start(layout, rank);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  ~Ranks() {
    for (Process& process : processes_) {
      process.commands.close();
      ::waitpid(process.pid, nullptr, 0);
    }
  }

  // One step of all ranks: the slowest one's seconds.
  double step() {
    for (const Process& process : processes_) {
      std::fputs("step\n", process.commands.get());
      std::fflush(process.commands.get());
    }
    double slowest = 0.0;
    for (const Process& process : processes_) slowest = std::max(slowest, std::stod(answer(process)));
    return slowest;
  }

  struct Memory {
    double grown = 0.0;
    double planned = 0.0;
  };
  // Ends the ranks.
  std::vector<Memory> memory() {
    std::vector<Memory> out;
    for (Process& process : processes_) process.commands.close();
    for (const Process& process : processes_) {
      const std::vector<std::string> words = split_text(answer(process), ' ');
      out.push_back({std::stod(words.at(0)), std::stod(words.at(1))});
    }
    return out;
  }

 private:
  struct Process {
    pid_t pid = -1;
    File commands, answers;
  };

  static std::string answer(const Process& process) {
    std::array<char, 128> line{};
    if (std::fgets(line.data(), line.size(), process.answers.get()) == nullptr)
      throw std::runtime_error("a rank ended early: its message stands above");
    return line.data();
  }

  void start(const Layout& layout, std::int64_t rank) {
    std::array<int, 2> in{}, out{};
    if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipes");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    std::vector<std::string> words = {"bench_parallel", "--rank", layout.text(), std::to_string(rank),
                                      std::to_string(server_.address().port)};
    std::vector<char*> arguments;
    arguments.reserve(words.size() + 1);
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    Process process;
    const int error = ::posix_spawn(&process.pid, "/proc/self/exe", &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    if (error != 0) throw std::runtime_error("a rank could not be started");
    process.commands = File(::fdopen(in[1], "w"));
    process.answers = File(::fdopen(out[0], "r"));
    processes_.push_back(std::move(process));
  }

  RendezvousServer server_;
  std::vector<Process> processes_;
};

// Medians of each layout's seconds per step, stepping by turns; the first round touches memory and is not counted.
std::vector<double> alternate(const std::vector<Layout>& layouts, int rounds) {
  std::vector<std::unique_ptr<Ranks>> all;
  all.reserve(layouts.size());
  for (const Layout& layout : layouts) all.push_back(std::make_unique<Ranks>(layout));
  std::vector<std::vector<double>> seconds(layouts.size());
  for (int round = 0; round <= rounds; ++round) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double elapsed = all[i]->step();
      if (round > 0) seconds[i].push_back(elapsed);
    }
  }
  std::vector<double> medians;
  medians.reserve(seconds.size());
  for (auto& values : seconds) medians.push_back(median(std::move(values)));
  return medians;
}

void measure_data(int rounds) {
  fmt::print("data: GPT-2 124M, T=1024, micro-batch 4, fp32, one thread a rank, {} rounds by turns\n", rounds);
  for (const std::int64_t zero : {0, 1}) {
    const auto seconds = alternate({Layout{}, Layout{.data = 2, .zero = zero}}, rounds);
    const double one = 4096 / seconds[0];
    const double two = 2 * 4096 / seconds[1];
    fmt::print("  zero {}: one rank {:.1f} tokens/s, two ranks {:.1f} tokens/s: {:.2f} x\n", zero, one, two, two / one);
    std::fflush(stdout);
  }
}

// With t1 one rank's time for a step and t2 that of two stages: the share of the two processors' time that no work of
// the step fills, 1 - t1 / (2 t2). It holds the transfers and the stages' imbalance besides the bubble.
void measure_bubble(int rounds) {
  fmt::print("bubble: 1F1B, two stages of four equal blocks (hidden 512, T=512), one thread a stage, {} rounds\n",
             rounds);
  for (const std::int64_t m : {2, 4, 8}) {
    const Layout one{.model = "balanced", .micro_batch = 2, .num_micro_batches = m, .context = 512};
    Layout two = one;
    two.pipeline = 2;
    const auto seconds = alternate({one, two}, rounds);
    fmt::print("  M={}: one rank {:.3f} s, two stages {:.3f} s: bubble {:.1f} %, formula (P-1)/(M+P-1) {:.1f} %\n", m,
               seconds[0], seconds[1], 100 * (1 - seconds[0] / (2 * seconds[1])), 100.0 / (static_cast<double>(m) + 1));
    std::fflush(stdout);
  }
}

void measure_memory(const std::string& name, const Layout& layout) {
  Ranks ranks(layout);
  for (int step = 0; step < 3; ++step) ranks.step();
  for (const Ranks::Memory& memory : ranks.memory())
    fmt::print("  {}: {} of {} planned: {:.3f}\n", name, bytes_text(static_cast<std::uint64_t>(memory.grown)),
               bytes_text(static_cast<std::uint64_t>(memory.planned)), memory.grown / memory.planned);
  std::fflush(stdout);
}

void measure_memory() {
  fmt::print(
      "memory: GPT-2 124M, T=256, micro-batch 1, two replicas, two micro-batches: growth of VmHWM against the plan\n");
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    measure_memory(fmt::format("zero {}", zero),
                   {.data = 2, .zero = zero, .micro_batch = 1, .num_micro_batches = 2, .context = 256});
  }
  fmt::print("memory of recomputation: a small vocabulary, T=512, four micro-batches of 8 on two stages\n");
  for (const ScheduleKind schedule : {ScheduleKind::one_f_one_b, ScheduleKind::zb_h1})
    for (const RecomputeKind recompute : {RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full})
      measure_memory(fmt::format("{}, recompute {}", to_text(schedule), to_text(recompute)), {.model = "balanced",
                                                                                              .pipeline = 2,
                                                                                              .micro_batch = 8,
                                                                                              .num_micro_batches = 4,
                                                                                              .context = 512,
                                                                                              .schedule = schedule,
                                                                                              .recompute = recompute});
}

int run(const std::vector<std::string>& arguments) {
  std::vector<std::string> names;
  int rounds = 5;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--rounds" && i + 1 < arguments.size()) {
      rounds = std::stoi(arguments[++i]);
    } else if (arguments[i] == "data" || arguments[i] == "bubble" || arguments[i] == "memory") {
      names.push_back(arguments[i]);
    } else {
      fmt::print(stderr, "usage: bench_parallel [data|bubble|memory]... [--rounds N]\n");
      return 2;
    }
  }
  if (names.empty()) names = {"data", "bubble", "memory"};
  for (const std::string& name : names) {
    if (name == "data") measure_data(std::max(1, rounds));
    if (name == "bubble") measure_bubble(std::max(1, rounds));
    if (name == "memory") measure_memory();
  }
  return 0;
}

}  // namespace
}  // namespace scaletrain

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() == 4 && arguments[0] == "--rank") {
      return scaletrain::run_rank(arguments[1], std::stoll(arguments[2]),
                                  static_cast<std::uint16_t>(std::stoi(arguments[3])));
    }
    return scaletrain::run(arguments);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_parallel: {}\n", error.what());
    return 1;
  }
}
