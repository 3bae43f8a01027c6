// Event files as TensorBoard reads them, runs/NAME/tensorboard/events.out.tfevents.SECONDS.HOST.PID.N: records of
// TFRecord framing (length, masked CRC-32C of it, payload, masked CRC-32C of that), each payload a protobuf Event with
// scalars, of which only the few fields that are used are encoded here.
//
// Each start of a run has a file of its own, whose name sorts behind those that are there: TensorBoard reads them in
// that order. It begins with SessionLog.START, by which TensorBoard drops every scalar of that step and beyond that it
// has read before: after a restart there is one value per step, as in metrics.jsonl. TensorBoard takes the first START
// that it meets for the beginning and drops nothing by it, so the first file has one too.
//
// As metrics.jsonl, event files never stop training: a write that fails is reported, its records are kept and written
// before the next one, behind what part of them reached the file is cut. A file that somebody removes is made again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "telemetry/metrics.h"
#include "telemetry/record_file.h"

namespace scaletrain {

struct Scalar {
  std::string tag;
  double value = 0;  // stored in single precision
};

// One framed record each. seconds: since 1970.
std::string event_of_version(double seconds);
std::string event_of_start(double seconds, std::int64_t step);
std::string event_of_scalars(double seconds, std::int64_t step, std::span<const Scalar> scalars);

// Not thread-safe: the thread that trains owns it. path() may be asked by any.
class EventWriter {
 public:
  using FailureReport = std::function<void(const std::string& message)>;

  // Makes the folder and a new file in it. Throws InputError: that happens before training, where a person can still
  // mend it.
  explicit EventWriter(const std::filesystem::path& folder, FailureReport report = {});

  // The calls below never throw for a failing file.

  // Training goes on with this step: what was written of it and of later ones is void.
  void begin_at(std::int64_t step);
  // Tags: loss, learning_rate, grad_norm, tokens_per_second, mfu, step_seconds, and loss_scale, gpu_memory_in_use,
  // batch, noise_square, noise_variance and noise_scale where there are.
  void write(const StepRecord& record);
  // Tag: validation/NAME/loss.
  void write(const EvaluationRecord& record);
  void write(const TaskRecord& record);

  // Writes what is waiting and fsyncs. False if the records are not safe on disk.
  bool sync();

  const std::filesystem::path& path() const { return path_; }

 private:
  void append(const std::string& record);
  bool flush();
  bool prepare();
  bool begin_anew();
  void fail(const std::string& problem);

  std::filesystem::path path_;
  FailureReport report_;
  RecordFile file_;
  std::optional<std::int64_t> begin_;  // of begin_at()
  bool failing_ = false;
};

}  // namespace scaletrain
