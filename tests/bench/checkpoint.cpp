// Measures checkpoints of GPT-2 124M in fp32 that are written in the background: what they cost training, and the
// writer against the disk. A tool, not a test: it asserts nothing.
//
//   stall   how long training is held up by a save, as a share of the median step without one; how much longer the
//           steps take beside which a save is copied and written, and the writer's own processor time in them, in the
//           kernel and in all; the growth of VmHWM against the plan
//   write   a save of the copy, everything until the checkpoint is committed included, against the disk's sequential
//           speed: the same files with the same numbers of bytes, written in order by one writer and synced, through
//           the page cache and past it (O_DIRECT); the faster of the two counts. The three by turns, and the median and
//           the quartiles of the rounds' ratios
//
// Usage: bench_checkpoint [stall|write]... [--folder DIR] [--rounds N] [--micro-batch N]; without a name: both, each in
// a process of its own. About 3 GB of DIR (a new folder in it, removed at the end) are used.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "bench_model.h"
#include "checkpoint/save/staging.h"
#include "telemetry/metrics_reader.h"
#include "train/saving/checkpointer.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> names;
  fs::path folder = fs::temp_directory_path();
  int rounds = 9;
  int micro_batch = 1;
};

// Removed with everything in it.
class Workspace {
 public:
  explicit Workspace(const fs::path& parent) : path_(parent / fmt::format("bench-checkpoint-{}", ::getpid())) {
    fs::create_directories(path_ / "logs");
  }
  ~Workspace() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// A model with a run folder that is removed with it.
struct Run {
  explicit Run(const Options& options)
      : model({.micro_batch = options.micro_batch, .saves_in_background = true}),
        workspace(options.folder),
        paths(workspace.path()) {}

  BenchModel model;
  Workspace workspace;
  RunPaths paths;
};

// The processor time of threads that come after it was made: of the writer, here.
class LaterThreads {
 public:
  struct Seconds {
    double all = 0.0;
    double kernel = 0.0;  // of these
  };

  LaterThreads() {
    for (const auto& entry : fs::directory_iterator("/proc/self/task")) known_.push_back(entry.path() / "stat");
  }

  // Seconds since the last call, of those that have ended too.
  Seconds seconds() {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    Seconds later{
        .all = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec),
        .kernel = static_cast<double>(usage.ru_stime.tv_sec) + 1e-6 * static_cast<double>(usage.ru_stime.tv_usec)};
    for (const fs::path& stat : known_) {
      const Seconds known = seconds_of(stat);
      later.all -= known.all;
      later.kernel -= known.kernel;
    }
    const Seconds since{.all = later.all - before_.all, .kernel = later.kernel - before_.kernel};
    before_ = later;
    return since;
  }

 private:
  // Time in the program and in the kernel are the 14th and 15th value; the second, a name, ends with the last bracket.
  static Seconds seconds_of(const fs::path& stat) {
    std::ifstream file(stat);
    std::string text;
    std::getline(file, text);
    const std::size_t name_end = text.rfind(')');
    if (name_end == std::string::npos) return {};
    std::istringstream rest(text.substr(name_end + 1));
    std::string skipped;
    for (int i = 3; i < 14; ++i) rest >> skipped;
    double user = 0.0;
    double system = 0.0;
    rest >> user >> system;
    const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
    return {.all = (user + system) / ticks, .kernel = system / ticks};
  }

  std::vector<fs::path> known_;
  Seconds before_;
};

void measure_stall(const Options& options) {
  constexpr std::int64_t steps_between = 3;
  Run run(options);
  BenchModel& bench = run.model;
  BenchSteps training(bench);
  Log log(LogOptions{.standard_error = true});
  MetricsWriter metrics(run.paths.metrics());
  RunState state;
  std::vector<double> plain;
  std::vector<double> beside;
  std::vector<double> writing;  // processor seconds of the writer in each of those
  std::vector<double> kernel;   // of these
  LaterThreads writer;
  {
    Checkpointer checkpoints({.config = bench.config,
                              .plan = bench.phase,
                              .stream = *bench.stream,
                              .store = *bench.store,
                              .rank = Rank(0),
                              .paths = run.paths,
                              .metrics = &metrics,
                              .log = log,
                              .tokenizer_files = {},
                              .fingerprint = "",
                              .may_commit = {},
                              .entered = {}},
                             state);
    // The first step touches memory and stands for nothing; the first save comes after it.
    bool is_beside = false;
    const std::int64_t steps = 1 + options.rounds * steps_between;
    while (state.step < steps) {
      const MonotonicTime start = monotonic_now();
      training.step([&] { checkpoints.before_update(); });
      const double elapsed = seconds_since(start);
      ++state.step;
      checkpoints.poll();
      const LaterThreads::Seconds used = writer.seconds();
      if (state.step > 1) (is_beside ? beside : plain).push_back(elapsed);
      if (is_beside) {
        writing.push_back(used.all);
        kernel.push_back(used.kernel);
      }
      fmt::print("step {:>3}  {:.2f} s{}, processor of other threads {:.2f} s ({:.2f} s in the kernel)\n", state.step,
                 elapsed, is_beside ? "  beside a save" : "", used.all, used.kernel);
      is_beside = state.step % steps_between == 1 && state.step < steps;
      if (is_beside) checkpoints.save({});
    }
    checkpoints.settle();
  }
  std::vector<double> stalls;
  double longest = 0.0;
  for (const CheckpointRecord& record : read_metrics(run.paths.metrics()).checkpoints) {
    stalls.push_back(record.stall_seconds);
    longest = std::max(longest, record.stall_seconds);
    fmt::print("save of step {:>3}  {:.3f} s held up ({:.3f} s for the one before), written in {:.2f} s\n", record.step,
               record.stall_seconds, record.waited_seconds, record.seconds);
  }
  const double step = median(plain);
  fmt::print("stall    {:.1f} % of a step of {:.2f} s (median), {:.1f} % (the first), {:.1f} % (the longest)\n",
             100 * median(stalls) / step, step, 100 * stalls.front() / step, 100 * longest / step);
  // The training threads wait for each other: each second that the writer takes from one of them is lost to all.
  fmt::print(
      "beside   a step beside a save takes {:.2f} s ({:.1f} %) longer; in it the writer computes for {:.2f} s "
      "({:.2f} s in the kernel)\n",
      median(beside) - step, 100 * (median(beside) / step - 1.0), median(writing), median(kernel));
  bench.print_memory();
}

// What was removed is given back to the disk at the next sync, and a disk that is shared may owe somebody a pause.
void let_disk_rest() {
  ::sync();
  std::this_thread::sleep_for(std::chrono::seconds(3));
}

// The bytes of a file with an address and a length that O_DIRECT takes.
constexpr std::size_t direct_unit = 4096;
constexpr std::size_t block = 8u << 20;

class AlignedBlock {
 public:
  AlignedBlock() : bytes_(static_cast<std::byte*>(std::aligned_alloc(direct_unit, block))) {
    // Not zeros, which a disk might not write.
    for (std::size_t i = 0; i < block; ++i) bytes_.get()[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  }
  const std::byte* data() const { return bytes_.get(); }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte, Free> bytes_;
};

// Seconds for files of these sizes, each written in order by large blocks and synced; nothing if the storage does not
// take the flags. A length is cut to what O_DIRECT takes: by less than a page.
std::optional<double> write_in_order(const fs::path& folder, const std::vector<std::uint64_t>& sizes,
                                     const AlignedBlock& content, int flags) {
  let_disk_rest();
  fs::create_directory(folder);
  const MonotonicTime start = monotonic_now();
  bool is_good = true;
  for (std::size_t i = 0; i < sizes.size() && is_good; ++i) {
    const fs::path path = folder / std::to_string(i);
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | flags, 0600);
    is_good = file >= 0;
    for (std::uint64_t rest = sizes[i] / direct_unit * direct_unit; is_good && rest > 0;) {
      const auto written = ::write(file, content.data(), std::min<std::uint64_t>(rest, block));
      is_good = written > 0;
      if (is_good) rest -= static_cast<std::uint64_t>(written);
    }
    is_good = is_good && ::fsync(file) == 0;
    if (file >= 0) ::close(file);
  }
  const double seconds = seconds_since(start);
  fs::remove_all(folder);
  if (!is_good) return std::nullopt;
  return seconds;
}

std::vector<std::uint64_t> sizes_of(const fs::path& checkpoint) {
  std::vector<std::uint64_t> sizes;
  for (const auto& entry : fs::directory_iterator(checkpoint)) sizes.push_back(entry.file_size());
  return sizes;
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

void measure_write(const Options& options) {
  Run run(options);
  StateStaging staging(*run.model.store);
  staging.prefault();
  staging.copy();
  const AlignedBlock content;
  std::vector<std::uint64_t> sizes;
  const auto save = [&](int round) {
    SaveRequest request;
    request.folder = run.paths.checkpoints();
    request.manifest.step = round;
    let_disk_rest();
    const MonotonicTime start = monotonic_now();
    const SaveResult result = save_checkpoint(staging, request);
    const double seconds = seconds_since(start);
    sizes = sizes_of(result.path);
    fs::remove_all(result.path);
    return seconds;
  };
  save(0);  // the disk's caches, and blocks that were never used
  double total = 0.0;
  for (const std::uint64_t size : sizes) total += static_cast<double>(size);
  const auto speed = [total](double seconds) { return bytes_text(static_cast<std::uint64_t>(total / seconds)) + "/s"; };
  std::vector<double> ratios;
  for (int round = 1; round <= options.rounds; ++round) {
    // Each goes first, second and third in turn: what a disk has just done is felt by what follows.
    double saved = 0.0;
    std::optional<double> cached;
    std::optional<double> direct;
    for (int place = 0; place < 3; ++place) {
      switch ((round + place) % 3) {
        case 0:
          saved = save(round);
          break;
        case 1:
          cached = write_in_order(run.paths.folder / "plain", sizes, content, 0);
          break;
        default:
          direct = write_in_order(run.paths.folder / "plain", sizes, content, O_DIRECT);
      }
    }
    if (!cached) {
      fmt::print(stderr, "writing to {} failed\n", run.paths.folder.string());
      std::exit(1);
    }
    const double sequential = std::min(*cached, direct.value_or(*cached));
    ratios.push_back(100 * sequential / saved);
    fmt::print("round {}  in order {}, past the page cache {}, save {}: {:.1f} %\n", round, speed(*cached),
               direct ? speed(*direct) : "not possible here", speed(saved), ratios.back());
  }
  fmt::print(
      "write    {:.1f} % of the disk's sequential speed (median of {} rounds; quartiles {:.1f} and {:.1f}), {} in "
      "{} files\n",
      median(ratios), ratios.size(), quantile(ratios, 0.25), quantile(ratios, 0.75),
      bytes_text(static_cast<std::uint64_t>(total)), sizes.size());
}

// In a process of its own: the peak of memory is a process's.
int measure_apart(void (*measure)(const Options&), const Options& options) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    measure(options);
    std::fflush(nullptr);
    ::_exit(0);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return 1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool has_value = i + 1 < argc;
    if (argument == "stall" || argument == "write") {
      options.names.push_back(argument);
    } else if (argument == "--folder" && has_value) {
      options.folder = argv[++i];
    } else if (argument == "--rounds" && has_value) {
      options.rounds = std::max(1, std::atoi(argv[++i]));
    } else if (argument == "--micro-batch" && has_value) {
      options.micro_batch = std::max(1, std::atoi(argv[++i]));
    } else {
      fmt::print(stderr, "usage: bench_checkpoint [stall|write]... [--folder DIR] [--rounds N] [--micro-batch N]\n");
      std::exit(2);
    }
  }
  if (options.names.empty()) options.names = {"stall", "write"};
  return options;
}

}  // namespace
}  // namespace scaletrain

int main(int argc, char** argv) {
  const scaletrain::Options options = scaletrain::parse(argc, argv);
  int failed = 0;
  for (const std::string& name : options.names)
    failed |=
        scaletrain::measure_apart(name == "write" ? scaletrain::measure_write : scaletrain::measure_stall, options);
  return failed;
}
