// Measures whole training steps: tokens/s, the share of the matrix-product ceiling measured around each step of the
// same run, what the time of the median step goes to, and the growth of the process's peak memory against the plan;
// beside PyTorch where a Python is named that has it. All that is compared steps by turns. A tool, not a test: it
// asserts nothing.
//
// Usage: bench_training [--case MODEL,CONTEXT,PRECISION]... [--rounds N] [--threads N] [--samples N]
//                       [--micro-batches N] [--python PROGRAM] [--torch-mode eager|compiled|compiled-by-block]...
//                       [--device cpu|cuda] [--graphs] [--set KEY=VALUE]... [--json FILE]
//   MODEL: a preset, llama-150m or llama-1.5b; PRECISION: fp32, tf32, bf16 or fp16. Without a case: GPT-2 124M and
//   llama-150m at 1024 tokens and GPT-2 124M at 8192, each in fp32 and bf16. --samples: of 1024 tokens, how many make a
//   micro-batch (4); a longer context takes fewer. --micro-batches: of a step (1). --python: runs PyTorch too, eager
//   and compiled or as --torch-mode says. --set: keys of train.optimizer of our own steps, but its
//   learning rate. --json: writes what is printed there.
// Exit status 3: the plan says that a case does not fit into the GPU's memory, and nothing was begun.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench_model.h"
#include "bench_tools.h"
#include "machine_text.h"
#include "plan/describe/devices.h"
#include "support/turn_process.h"
#include "timed_backend.h"

namespace scaletrain {
namespace {

using Json = nlohmann::ordered_json;

struct Case {
  std::string model;
  std::int64_t context = 0;
  Precision precision = Precision::fp32;
  RecomputeKind recompute = RecomputeKind::none;
};

Case parse_case(const std::string& text) {
  std::vector<std::string> parts = split_text(text, ',');
  if (parts.size() == 3) parts.emplace_back("none");
  if (parts.size() == 4)
    for (const Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16})
      for (const RecomputeKind recompute : {RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full})
        if (to_text(precision) == parts[2] && to_text(recompute) == parts[3])
          return {parts[0], std::stoll(parts[1]), precision, recompute};
  throw std::runtime_error(text + " is no case: MODEL,CONTEXT,PRECISION or MODEL,CONTEXT,PRECISION,RECOMPUTE");
}

// Behind the device in the words of a program that --graphs adds.
const std::string by_graphs = " by graphs";

// Micro-batches that are timed together, at least one step's: those of a GPU are short.
constexpr std::int64_t micro_batches_of_gpu = 10;

// One case of our own: answers each line with the figures of a step, and the end of input with those of its memory.
int run_steps(const BenchSettings& settings) {
  TimedBackend* timed = nullptr;
  BenchModel bench(settings, [&](std::unique_ptr<Backend> backend) {
    auto wrapped = std::make_unique<TimedBackend>(std::move(backend), *bench_model_config(settings.model).vocab);
    timed = wrapped.get();
    return wrapped;
  });
  const PhasePlan& phase = bench.phase;
  BenchSteps steps(bench);
  const double flops =
      model_flops_per_token(phase.model) * static_cast<double>(phase.micro_batch.rows() * settings.micro_batches);
  const Json ready = {{"name", settings.cuda_graphs ? "scaletrain, CUDA graphs" : "scaletrain"},
                      {"backend", bench.backend->description()},
                      {"step_flops", flops}};
  std::cout << ready.dump() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const double ceiling_before = calibrate_matmul(*bench.backend, *bench.stream, 0.5);
    StepRunner::Result result;
    const auto seconds_of = [&](int count) {
      const MonotonicTime start = monotonic_now();
      for (int i = 0; i < count; ++i) result = steps.step();
      bench.stream->synchronize();
      return seconds_since(start) / count;
    };
    const bool is_late = settings.device != DeviceKind::cpu;
    double elapsed = 0;
    if (is_late) {
      timed->set_waits(false);
      elapsed = seconds_of(static_cast<int>(std::max<std::int64_t>(1, micro_batches_of_gpu / settings.micro_batches)));
      timed->set_waits(true);
    }
    timed->take_seconds();
    timed->take_operations();
    const double waited = seconds_of(1);
    if (!is_late) elapsed = waited;
    const auto purposes = timed->take_seconds();
    Json operations = Json::array();
    for (const auto& [label, time] : timed->take_operations())
      operations.push_back({{"operation", label}, {"calls", time.calls}, {"seconds", time.seconds}});
    const double ceiling = (ceiling_before + calibrate_matmul(*bench.backend, *bench.stream, 0.5)) / 2;
    std::cout << Json{{"seconds", elapsed}, {"waited", waited},     {"loss", result.outcome.loss},
                      {"ceiling", ceiling}, {"purposes", purposes}, {"operations", operations}}
                     .dump()
              << std::endl;
  }
  std::cout << Json{{"memory_growth", bench.memory_growth()},
                    {"memory_planned", bench.planned_memory()},
                    {"memory_before", bench.memory_before}}
                   .dump()
            << std::endl;
  return 0;
}

struct Options {
  std::vector<std::string> cases;
  int rounds = 5;
  int threads = 2;
  std::int64_t samples = 4;
  std::int64_t micro_batches = 1;
  std::string python;
  std::string torch_script;
  std::vector<std::string> torch_modes = {"eager", "compiled"};
  std::string device = "cpu";
  bool graphs = false;
  std::vector<std::string> overrides;
  std::string json;
};

// One of those that step by turns.
struct Participant {
  TurnProcess process;
  Json ready{};
  std::vector<double> seconds{};
  Json last{};

  double median_seconds() const { return median(seconds); }
};

std::vector<Participant> participants_of(const Case& measured, const Options& options, std::int64_t micro_batch) {
  const auto add_shape = [&](std::vector<std::string> words, const std::string& device) {
    for (const std::string& word :
         {measured.model, std::to_string(measured.context), std::string(to_text(measured.precision)),
          std::to_string(micro_batch), std::to_string(options.threads), device, std::to_string(options.micro_batches)})
      words.push_back(word);
    return words;
  };
  std::vector<std::string> devices = {options.device};
  if (options.graphs) devices.push_back(options.device + by_graphs);
  std::vector<Participant> all;
  for (const std::string& device : devices) {
    std::vector<std::string> words = add_shape({"/proc/self/exe", "--steps"}, device);
    words.emplace_back(to_text(measured.recompute));
    words.insert(words.end(), options.overrides.begin(), options.overrides.end());
    all.push_back({TurnProcess(words)});
  }
  if (!options.python.empty())
    for (const std::string& mode : options.torch_modes)
      all.push_back({TurnProcess(add_shape({options.python, options.torch_script, mode}, options.device))});
  for (Participant& one : all) one.ready = Json::parse(one.process.answer());
  return all;
}

// "a (b to c)": the median and the quartiles.
std::string spread_text(std::vector<double> values, int digits) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
  };
  return fmt::format("{:.{}f} ({:.{}f} to {:.{}f})", median(values), digits, at(0.25), digits, at(0.75), digits);
}

// Of the last round's operations those that take most.
void print_longest(Json operations, double whole) {
  constexpr std::size_t most = 16;
  std::sort(operations.begin(), operations.end(),
            [](const Json& a, const Json& b) { return a["seconds"].get<double>() > b["seconds"].get<double>(); });
  for (std::size_t i = 0; i < std::min(most, operations.size()); ++i) {
    const double seconds = operations[i]["seconds"];
    fmt::print("      {:<46} {:>5} {:>8.2f} ms {:>6.1f} %\n", operations[i]["operation"].get<std::string>(),
               operations[i]["calls"].get<int>(), 1e3 * seconds, 100 * seconds / whole);
  }
}

std::int64_t micro_batch_of(const Case& measured, const Options& options) {
  return std::max<std::int64_t>(1, options.samples * 1024 / measured.context);
}

// Nothing: processors.
std::optional<DeviceFacts> gpu_of(const Options& options) {
  if (options.device == "cpu") return std::nullopt;
  return CudaModule(cuda_module_path()).look_at_device(0);
}

struct NoRoomError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// By the plan, before anything is allocated.
void check_room(const Case& measured, const Options& options, const DeviceFacts& gpu) {
  const Config config = bench_config({.model = measured.model,
                                      .context = measured.context,
                                      .compute = measured.precision,
                                      .micro_batch = micro_batch_of(measured, options),
                                      .micro_batches = options.micro_batches,
                                      .device = DeviceKind::cuda,
                                      .recompute = measured.recompute,
                                      .overrides = options.overrides});
  const RunPlan plan = make_run_plan(config, *config.model.vocab, std::nullopt);
  const MemoryPlan memory = plan.phases.front().memory(Rank(0), cuda_workspace_bytes);
  const std::size_t needed = memory.total() - memory.total_of_host();
  if (needed > gpu.memory)
    throw NoRoomError(fmt::format("{} does not fit: it needs {}, and {} has {}", measured.model, bytes_text(needed),
                                  gpu.name, bytes_text(gpu.memory)));
}

Json measure(const Case& measured, const Options& options, const std::optional<DeviceFacts>& gpu) {
  const std::int64_t micro_batch = micro_batch_of(measured, options);
  const auto tokens = static_cast<double>(micro_batch * options.micro_batches * measured.context);
  fmt::print("\n{}, {} x {} x {} tokens, {}, recompute {}, {} threads, {} rounds\n", measured.model,
             options.micro_batches, micro_batch, measured.context, to_text(measured.precision),
             to_text(measured.recompute), options.threads, options.rounds);
  for (const std::string& text : options.overrides) fmt::print("  with {}\n", text);
  std::fflush(stdout);
  std::vector<Participant> all = participants_of(measured, options, micro_batch);
  std::vector<double> shares;
  std::vector<std::vector<double>> purposes;  // by round, the rest of the step last
  std::vector<double> waited;                 // the step that they are of
  for (int round = 0; round <= options.rounds; ++round) {
    for (Participant& one : all) {
      one.process.ask("step");
      one.last = Json::parse(one.process.answer());
      if (round == 0) continue;  // pages are touched for the first time, kernels are made
      const double seconds = one.last["seconds"];
      one.seconds.push_back(seconds);
      if (&one != &all.front()) continue;
      shares.push_back(one.ready["step_flops"].get<double>() / seconds / one.last["ceiling"].get<double>());
      double rest = waited.emplace_back(one.last["waited"]);
      std::vector<double>& of_round = purposes.emplace_back(one.last["purposes"]);
      for (const double part : of_round) rest -= part;
      of_round.push_back(rest);
    }
  }
  Json result = {{"model", measured.model},
                 {"context", measured.context},
                 {"micro_batch", micro_batch},
                 {"micro_batches", options.micro_batches},
                 {"precision", std::string(to_text(measured.precision))},
                 {"recompute", std::string(to_text(measured.recompute))},
                 {"threads", options.threads}};
  if (!options.overrides.empty()) result["overrides"] = options.overrides;
  std::optional<double> peak;
  if (gpu) {
    result["gpu"] = gpu->name;
    if (const DeviceModel* const known = find_device_of_driver(gpu->name))
      peak = peak_flops(*known, measured.precision);
    if (peak) result["peak"] = *peak;
  }
  const double own = all.front().median_seconds();
  for (Participant& one : all) {
    std::vector<double> rates;
    for (const double seconds : one.seconds) rates.push_back(tokens / seconds);
    std::string line =
        fmt::format("  {:<36} {:>26} tokens/s", one.ready["name"].get<std::string>(), spread_text(rates, 0));
    Json entry = {
        {"name", one.ready["name"]}, {"seconds", one.seconds}, {"tokens_per_second", tokens / one.median_seconds()}};
    if (&one == &all.front()) {
      std::vector<double> percent = shares;
      for (double& share : percent) share *= 100;
      line +=
          fmt::format(", {} % of {:.0f} GFLOP/s", spread_text(percent, 1), one.last["ceiling"].get<double>() * 1e-9);
      entry["backend"] = one.ready["backend"];
      entry["ceiling_shares"] = shares;
      entry["ceiling"] = one.last["ceiling"];
      if (peak) {
        const double share = one.ready["step_flops"].get<double>() / own / *peak;
        line += fmt::format(", {:.1f} % of the data sheet's {:.0f} TFLOP/s", 100 * share, *peak * 1e-12);
        entry["peak_share"] = share;
      }
    } else {
      line += fmt::format(", {:.2f} x the time", one.median_seconds() / own);
    }
    entry["loss"] = one.last["loss"];
    fmt::print("{}\n", line);
    result["participants"].push_back(entry);
  }
  // Of the round whose time is nearest to the median: what medians of each purpose make together is no step's time.
  const std::vector<double>& rounds = all.front().seconds;
  const auto median_round =
      std::min_element(rounds.begin(), rounds.end(),
                       [own](double a, double b) { return std::abs(a - own) < std::abs(b - own); }) -
      rounds.begin();
  fmt::print("    {:<36} {:>8.1f} ms\n", "the step nearest to the median", 1e3 * rounds[std::size_t(median_round)]);
  result["median_step_seconds"] = own;
  const double whole = waited[static_cast<std::size_t>(median_round)];
  if (options.device != "cpu") {
    fmt::print("    {:<36} {:>8.1f} ms\n", "one that waits for every operation", 1e3 * whole);
    result["waiting_step_seconds"] = whole;
  }
  for (std::size_t i = 0; i <= purpose_names.size(); ++i) {
    const std::string_view name = i < purpose_names.size() ? purpose_names[i] : "the rest";
    const double seconds = purposes[static_cast<std::size_t>(median_round)][i];
    fmt::print("    {:<36} {:>8.1f} ms {:>6.1f} %\n", name, 1e3 * seconds, 100 * seconds / whole);
    result["seconds_by_purpose"][std::string(name)] = seconds;
  }
  result["operations"] = all.front().last["operations"];
  if (options.device != "cpu") print_longest(result["operations"], whole);
  TurnProcess& ours = all.front().process;
  ours.end_commands();
  const Json memory = Json::parse(ours.answer());
  const auto grown = memory["memory_growth"].get<std::uint64_t>();
  const auto planned = memory["memory_planned"].get<std::uint64_t>();
  // Of a GPU all that is in use is known, of whomever.
  if (options.device == "cpu" || all.size() == 1)
    fmt::print("    {} grew by {}, the plan says {}: ratio {:.3f}\n",
               options.device == "cpu" ? "VmHWM" : "the GPU's memory", bytes_text(grown), bytes_text(planned),
               static_cast<double>(grown) / static_cast<double>(planned));
  else
    fmt::print("    the plan says {}; what was in use is all participants'\n", bytes_text(planned));
  // What the driver, the libraries and their kernels have, and whoever else is there.
  if (options.device != "cpu")
    fmt::print("    in use before: {}\n", bytes_text(memory["memory_before"].get<std::uint64_t>()));
  std::fflush(stdout);
  result.update(memory);
  return result;
}

int run(const Options& options) {
  std::vector<std::string> names = options.cases;
  if (names.empty())
    names = {"gpt2-124m,1024,fp32",  "gpt2-124m,1024,bf16", "llama-150m,1024,fp32",
             "llama-150m,1024,bf16", "gpt2-124m,8192,fp32", "gpt2-124m,8192,bf16"};
  std::vector<Case> cases;
  cases.reserve(names.size());
  for (const std::string& name : names) cases.push_back(parse_case(name));
  Json report = {{"date", date_text()}, {"machine", machine_text()}, {"kernels", cpu_kernels_text()}};
  fmt::print("{}\n{}; {}\n", report["date"].get<std::string>(), machine_text(), cpu_kernels_text());
  const std::optional<DeviceFacts> gpu = gpu_of(options);
  if (gpu)
    for (const Case& one : cases) check_room(one, options, *gpu);
  for (const Case& one : cases) report["cases"].push_back(measure(one, options, gpu));
  if (options.json.empty()) return 0;
  std::ofstream file(options.json);
  file << report.dump(2) << "\n";
  if (!file.flush()) throw std::runtime_error(options.json + " could not be written");
  fmt::print("\nwritten to {}\n", options.json);
  return 0;
}

}  // namespace
}  // namespace scaletrain

int main(int argc, char** argv) {
  using namespace scaletrain;
  try {
    if (argc >= 10 && std::string(argv[1]) == "--steps") {
      const Case measured = parse_case(fmt::format("{},{},{},{}", argv[2], argv[3], argv[4], argv[9]));
      return run_steps({.model = measured.model,
                        .context = measured.context,
                        .compute = measured.precision,
                        .micro_batch = std::atoll(argv[5]),
                        .micro_batches = std::atoll(argv[8]),
                        .threads = std::atoi(argv[6]),
                        .device = argv[7] == std::string("cpu") ? DeviceKind::cpu : DeviceKind::cuda,
                        .cuda_graphs = argv[7] == "cuda" + by_graphs,
                        .recompute = measured.recompute,
                        .overrides = std::vector<std::string>(argv + 10, argv + argc)});
    }
    Options options;
    CLI::App app("whole training steps, beside PyTorch's");
    app.add_option("--case", options.cases, "MODEL,CONTEXT,PRECISION[,RECOMPUTE]")->take_all();
    app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber);
    app.add_option("--threads", options.threads)->check(CLI::PositiveNumber);
    app.add_option("--samples", options.samples, "of 1024 tokens")->check(CLI::PositiveNumber);
    app.add_option("--micro-batches", options.micro_batches, "of a step")->check(CLI::PositiveNumber);
    app.add_option("--python", options.python, "one that has PyTorch");
    app.add_option("--torch-script", options.torch_script, "torch_training.py");
    app.add_option("--torch-mode", options.torch_modes, "eager and compiled, unless it says one")
        ->check(CLI::IsMember({"eager", "compiled", "compiled-by-block"}));
    app.add_option("--device", options.device)->check(CLI::IsMember({"cpu", "cuda"}));
    app.add_flag("--graphs", options.graphs, "on GPUs: beside its own steps by CUDA graphs");
    app.add_option("--set", options.overrides, "KEY=VALUE of train.optimizer, of our own steps")->take_all();
    app.add_option("--json", options.json, "file to write");
    CLI11_PARSE(app, argc, argv);
    if (!options.python.empty() && options.torch_script.empty())
      throw std::runtime_error("--python wants --torch-script");
    if (options.graphs && options.device != "cuda") throw std::runtime_error("--graphs wants --device cuda");
    return run(options);
  } catch (const NoRoomError& error) {
    fmt::print(stderr, "bench_training: {}\n", error.what());
    return 3;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_training: {}\n", error.what());
    return 1;
  }
}
