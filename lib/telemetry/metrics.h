// The metrics stream of a run, runs/NAME/metrics.jsonl: one JSON object a line, appended by rank 0 alone.
// metrics_reader.h reads it back. Every line has `kind`; floats are written so that they read back to the same bits
// (not finite: null).
//
// Metrics never stop training: a write that fails (disk full, I/O error) is counted and reported through the callback,
// the lines are kept and written again before the next one; whatever part of them reached the file is cut first.
//
// A run that was taken over (a job that its scheduler started again elsewhere) may have two writers for some seconds.
// Lines are only ever appended, and a writer that finds the file other than it left it asks whether it still owns the
// run: who does goes on behind what is there, who does not writes nothing more.
//
// Where somebody removes the file of a run that goes on, or moves it away, the lines from there on are in a new one by
// its name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "telemetry/record_file.h"

namespace scaletrain {

class EventWriter;

// How a run is spread over its ranks. A world of 0: not known (lines of an older program).
struct LayoutRecord {
  std::int64_t world = 0;  // ranks: data x tensor x pipeline
  std::int64_t data = 0;
  std::int64_t tensor = 0;
  std::int64_t pipeline = 0;
  bool sequence = false;        // sequence parallel
  std::string schedule{};       // "1f1b"
  std::int64_t chunks = 0;      // of the model, per pipeline rank
  std::int64_t zero = 0;        // 0 to 3
  std::int64_t zero_group = 0;  // replicas that share one copy of what ZeRO divides; 0: all of them
  std::int64_t micro_batch = 0;
  std::int64_t micro_batches = 0;  // per replica and step
  std::int64_t threads = 0;        // of rank 0's kernels
  bool operator==(const LayoutRecord&) const = default;
};
// "8 ranks: data 2 x tensor 2 x pipeline 2, sequence, zero 1, schedule 1f1b, 2 micro-batches of 4, 1 thread per rank";
// of a single rank "1 rank, 4 micro-batches of 4, 2 threads".
// device: what the ranks compute on, where that is not the processors ("NVIDIA H100 80GB HBM3"), and how many there
// are.
std::string layout_text(const LayoutRecord& layout, std::string_view device = {}, std::int64_t gpus = 1);

// What the ranks compute on. An empty name: not known (lines of an older program).
struct DeviceRecord {
  std::string name{};                  // of rank 0's: a GPU's by its driver ("NVIDIA H100 80GB HBM3"), or "cpu"
  std::string compute{};               // precision.compute: "bf16"
  std::optional<double> peak_flops{};  // of all ranks together, by which mfu goes, where the line is written knowing it
  std::int64_t gpus = 0;               // that the ranks compute on, all together; 0: on processors, or not known
  bool operator==(const DeviceRecord&) const = default;
};

// A source of data.train as a start finds it. Samples are counted over all epochs.
struct SourceRecord {
  std::string key{};  // "data.train.0"
  std::string path{};
  std::optional<std::int64_t> documents{};  // once through; nothing: its files do not say
  std::int64_t tokens = 0;                  // once through
  std::int64_t samples = 0;                 // once through
  std::int64_t taken = 0;                   // that the run has trained on before this start, or skipped
  std::int64_t taken_at_end = 0;            // the same if it goes its whole length
  std::optional<std::int64_t> cap{};        // that the run may take at most (data.train[].epochs)
  double epochs = 0;                        // that the run will have read by its end
  bool operator==(const SourceRecord&) const = default;
};

// Training began, from nothing or from a checkpoint of another run.
struct StartRecord {
  std::int64_t world = 0;       // ranks
  std::int64_t parameters = 0;  // trained and frozen
  std::uint64_t seed = 0;
  std::string version{};    // of this program
  std::string wall_time{};  // UTC, for people
  DeviceRecord device{};
  LayoutRecord layout{};
  std::vector<SourceRecord> sources{};  // of data.train
};

// What a step has measured of the gradient's noise (log.gradient_noise). Flat members of a step's line, each with
// `noise_` before its name.
struct NoiseRecord {
  double square = 0;              // estimate of the gradient's squared norm without noise, of this step
  double variance = 0;            // of the variance of a sample's gradient, of this step
  std::optional<double> scale{};  // the noise scale by the averages so far, in samples; nothing: not known yet
  std::int64_t batch_small = 0;   // samples of the smaller half, and
  std::int64_t batch_big = 0;     // of the batch that were compared
  bool operator==(const NoiseRecord&) const = default;
};

// One optimizer step. `step` and `tokens` count from the run's beginning, this step included.
struct StepRecord {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  double loss = 0;  // mean over the step's loss-bearing tokens
  double learning_rate = 0;
  double grad_norm = 0;  // before clipping
  double step_seconds = 0;
  double tokens_per_second = 0;
  double mfu = 0;  // share of the devices' peak, 0 to 1; the caller computes it
  // Of training, over all starts of the run, without the time between them.
  double elapsed_seconds = 0;
  std::string wall_time{};             // UTC, for people
  std::optional<double> loss_scale{};  // of fp16: that this step was made with
  // Bytes of rank 0's GPU that are in use at the end of the step, by whatever process.
  std::optional<std::uint64_t> gpu_memory_in_use{};
  std::optional<std::int64_t> batch{};  // samples of the step, where the batch follows the noise
  std::optional<NoiseRecord> noise{};   // of a step that measured it
};

struct EvaluationRecord {
  std::int64_t step = 0;
  std::string dataset{};
  double loss = 0;
  std::int64_t tokens = 0;  // that the loss is the mean of
};

// The accuracy on a multiple-choice task: the metrics task/NAME/accuracy and task/NAME/normalized_accuracy.
struct TaskRecord {
  std::int64_t step = 0;
  std::string task{};
  double accuracy = 0;
  std::optional<double> accuracy_error{};  // standard error; nothing for one question
  double normalized_accuracy = 0;
  std::optional<double> normalized_accuracy_error{};
  std::int64_t questions = 0;
};

struct CheckpointRecord {
  std::int64_t step = 0;
  std::string path{};
  double seconds = 0;
  std::int64_t bytes = 0;
  bool background = false;    // written while training went on
  double stall_seconds = 0;   // that training was held up by this save, the following included
  double waited_seconds = 0;  // for the save before, which was still being written
  std::string failure{};      // why it was not saved; empty when it was
};

// The `cause` of a restart that is none of the program's own: somebody, or the job system, started the run again.
inline constexpr std::string_view started_again = "the run was started again";
// That of one that takes in nodes which have come.
inline constexpr std::string_view grown = "there are nodes for more replicas";

// Training continues from `checkpoint`: earlier lines beyond `step` are void.
struct RestartRecord {
  std::int64_t step = 0;
  std::int64_t generation = 0;
  std::string checkpoint{};
  bool fingerprint_changed = false;  // machine, build or layout differ: losses may differ in their last bits
  std::string
      cause{};  // what ended the training before it ("rank 3: worker 17 was killed by signal 9 (Killed) at ...")
  std::string wall_time{};
  DeviceRecord device{};
  LayoutRecord layout{};
  std::vector<SourceRecord> sources{};
};

// The `reason` of a skip that nobody need worry about: fp16's loss scale finds its level by it.
inline constexpr std::string_view overflow_skip = "overflow";

// A step whose update was not applied.
struct SkipRecord {
  std::int64_t step = 0;
  std::string reason{};
  std::vector<std::uint64_t> samples{};
};

// A step whose loss jumped (train.spike).
struct SpikeRecord {
  std::int64_t step = 0;
  double loss = 0;
  double mean = 0;       // of the losses that it is measured against
  double deviation = 0;  // their standard deviation, with its floor
  double zscore = 0;
  std::string action{};                  // what was done: warn, skip (a skip line follows) or rollback (a restart line)
  std::vector<std::uint64_t> samples{};  // of the step
  bool within_window = false;            // rollback: no checkpoint was older than what the loss is measured against
};

// A phase of the run begins with `step`.
struct PhaseRecord {
  std::int64_t step = 0;
  std::int64_t phase = 0;         // from 0
  std::int64_t steps = 0;         // its length
  std::int64_t context = 0;       // tokens per sample
  std::int64_t global_batch = 0;  // samples per step
  double learning_rate_factor = 1.0;
  std::vector<std::pair<std::string, double>> weights{};  // of the sources that it reads, by their names
};

struct EarlyStopRecord {
  std::int64_t step = 0;
  std::string metric{};
  double value = 0;
  std::string reason{};
};

// A start of the run has ended: the last line that it writes (end_of_run.h in train). The next start adds its own.
struct EndRecord {
  std::int64_t step = 0;    // the last one done
  std::int64_t code = 0;    // of the program's exit
  std::string reason{};     // "finished", "stopped early", "interrupted", or what went wrong
  std::string wall_time{};  // UTC, for people
  // Of the whole run (run_summary.h).
  std::int64_t tokens = 0;
  double elapsed_seconds = 0;
  double best_loss = 0;  // the lowest of a training step; not finite: there was none
  std::int64_t best_step = 0;
  std::int64_t restarts = 0;  // by the program itself, after a failure or a rollback
  std::int64_t growths = 0;   // by the program itself, to take in nodes that came
  std::int64_t resumes = 0;   // starts of a run that had begun before
};

// Not thread-safe: the thread that trains owns it.
class MetricsWriter {
 public:
  // Called at the first failure and at the first one after a success, not at every line.
  using FailureReport = std::function<void(const std::string& message)>;
  // Whether this process still owns the run; asked where the file has changed meanwhile. InputError: it cannot be told
  // now.
  using Ownership = std::function<bool()>;

  // Opens or creates the file (as the umask says), cuts a torn last line, and appends after it. Throws InputError: that
  // happens before training, where a person can still mend it. owns: empty: always.
  explicit MetricsWriter(std::filesystem::path file, FailureReport report = {}, Ownership owns = {});
  ~MetricsWriter();

  // From here on steps, evaluations and where training goes back to are written for TensorBoard too.
  void add_events(std::unique_ptr<EventWriter> events);

  // The calls below never throw for a failing file.
  void write(const StartRecord& record);
  void write(const StepRecord& record);
  void write(const EvaluationRecord& record);
  void write(const TaskRecord& record);
  void write(const CheckpointRecord& record);
  void write(const RestartRecord& record);
  void write(const SkipRecord& record);
  void write(const SpikeRecord& record);
  void write(const PhaseRecord& record);
  void write(const EarlyStopRecord& record);
  void write(const EndRecord& record);

  // Writes what is waiting and fsyncs: called at checkpoints. False if the lines are not safe on disk. TensorBoard's
  // file is synced too, and is not what the answer is about.
  bool sync();

  std::int64_t failures() const { return failures_; }  // writes and syncs that failed
  const std::filesystem::path& path() const { return path_; }
  // TensorBoard's, where there is one. By any thread after add_events().
  std::optional<std::filesystem::path> event_file() const;

 private:
  EventWriter* events() const;
  void replace_evaluations(std::int64_t step);
  void append(const std::string& line);
  bool flush();
  // Opens or creates it and cuts a torn last line; throws InputError and has the old one open still.
  void open_file();
  bool is_gone() const;
  bool begin_anew();
  // Brings the file to where this writer left it, or behind what another wrote; false: no line can be written now.
  bool prepare();
  bool has_own_remains(std::uint64_t size) const;
  bool follow_another();
  // Throws what the question throws.
  bool owns_still();
  void fail(std::string_view operation, int error);
  void fail(std::string_view problem);

  std::filesystem::path path_;
  RecordFile file_;
  FailureReport report_;
  Ownership owns_;
  std::unique_ptr<EventWriter> events_;
  std::optional<std::int64_t> restarted_at_;  // this writer's last restart line, until an evaluation of that step
  bool failing_ = false;
  bool is_ended_ = false;  // another process owns the run: nothing more is written
  std::int64_t failures_ = 0;
};

}  // namespace scaletrain
