#include "telemetry/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "telemetry/event_file.h"
#include "telemetry/metrics_reader.h"

namespace scaletrain {
namespace {

// Builds one line with its members in the order they are added.
class Line {
 public:
  explicit Line(std::string_view kind) { add("kind", kind); }

  Line& add(std::string_view key, std::string_view value) {
    // A path may hold any bytes; those that are not UTF-8 are replaced, because the line must stay JSON.
    using nlohmann::json;
    return raw(key, json(std::string(value)).dump(-1, ' ', false, json::error_handler_t::replace));
  }
  Line& add(std::string_view key, const std::string& value) { return add(key, std::string_view(value)); }
  Line& add(std::string_view key, std::int64_t value) { return raw(key, std::to_string(value)); }
  Line& add(std::string_view key, std::uint64_t value) { return raw(key, std::to_string(value)); }
  Line& add(std::string_view key, double value) { return raw(key, json_float(value)); }
  Line& add_bool(std::string_view key, bool value) { return raw(key, value ? "true" : "false"); }
  Line& add(std::string_view key, const std::vector<std::uint64_t>& values) {
    return raw(key, fmt::format("[{}]", fmt::join(values, ",")));
  }

  Line& add(std::string_view key, const std::vector<std::pair<std::string, double>>& values) {
    Line inner;
    for (const auto& [name, value] : values) inner.add(name, value);
    return raw(key, values.empty() ? "{}" : inner.text_ + "}");
  }

  Line& add_members(const DeviceRecord& device) {
    add("device", device.name).add("compute", device.compute);
    if (device.peak_flops) add("peak_flops", *device.peak_flops);
    return device.gpus > 0 ? add("gpus", device.gpus) : *this;
  }
  Line& add(std::string_view key, const LayoutRecord& layout) {
    Line inner;
    inner.add("world", layout.world)
        .add("data", layout.data)
        .add("tensor", layout.tensor)
        .add("pipeline", layout.pipeline)
        .add_bool("sequence", layout.sequence)
        .add("schedule", layout.schedule)
        .add("chunks", layout.chunks)
        .add("zero", layout.zero);
    if (layout.zero_group > 0) inner.add("zero_group", layout.zero_group);
    inner.add("micro_batch", layout.micro_batch)
        .add("micro_batches", layout.micro_batches)
        .add("threads", layout.threads);
    return raw(key, inner.text_ + "}");
  }

  Line& add(std::string_view key, const std::vector<SourceRecord>& sources) {
    std::string list;
    for (const SourceRecord& source : sources) {
      Line inner;
      inner.add("key", source.key).add("path", source.path);
      if (source.documents) inner.add("documents", *source.documents);
      inner.add("tokens", source.tokens)
          .add("samples", source.samples)
          .add("taken", source.taken)
          .add("taken_at_end", source.taken_at_end);
      if (source.cap) inner.add("cap", *source.cap);
      inner.add("epochs", source.epochs);
      list += (list.empty() ? "" : ",") + inner.text_ + "}";
    }
    return raw(key, "[" + list + "]");
  }

  std::string finish() { return std::move(text_) + "}\n"; }

 private:
  Line() = default;
  Line& raw(std::string_view key, std::string_view value) {
    fmt::format_to(std::back_inserter(text_), "{}\"{}\":{}", text_.empty() ? "{" : ",", key, value);
    return *this;
  }

  std::string text_;
};

[[noreturn]] void refuse(const std::filesystem::path& path, std::string_view operation, int error) {
  throw InputError(fmt::format("{}: {} failed: {}", path.string(), operation, std::strerror(error)));
}

// The offset after the file's last line end, 0 if there is none.
std::uint64_t end_of_whole_lines(const FileReader& file) {
  std::array<char, 64 * 1024> buffer{};
  for (std::uint64_t end = file.size(); end > 0;) {
    const std::uint64_t size = std::min<std::uint64_t>(end, buffer.size());
    file.read_at(end - size, std::as_writable_bytes(std::span(buffer.data(), size)));
    const std::size_t newline = std::string_view(buffer.data(), size).rfind('\n');
    if (newline != std::string_view::npos) return end - size + newline + 1;
    end -= size;
  }
  return 0;
}

}  // namespace

std::string layout_text(const LayoutRecord& layout, std::string_view device, std::int64_t gpus) {
  const std::string batches =
      fmt::format("{} of {}", counted(layout.micro_batches, "micro-batch", "es"), layout.micro_batch);
  if (layout.world <= 1 && !device.empty()) return fmt::format("1 GPU ({}), {}", device, batches);
  if (layout.world <= 1) return fmt::format("1 rank, {}, {}", batches, counted(layout.threads, "thread"));
  std::string devices = fmt::format("{} per rank", counted(layout.threads, "thread"));
  if (!device.empty())
    devices = gpus < layout.world ? fmt::format("sharing {} ({})", counted(gpus, "GPU"), device)
                                  : fmt::format("a GPU ({}) per rank", device);
  std::string schedule;
  if (layout.pipeline > 1) schedule = fmt::format(", schedule {}", layout.schedule);
  if (layout.chunks > 1) schedule += fmt::format(" with {} chunks", layout.chunks);
  const std::string groups = layout.zero_group > 0 ? fmt::format(" in groups of {}", layout.zero_group) : "";
  return fmt::format("{} ranks: data {} x tensor {} x pipeline {}{}, zero {}{}{}, {}, {}", layout.world, layout.data,
                     layout.tensor, layout.pipeline, layout.sequence ? ", sequence" : "", layout.zero, groups, schedule,
                     batches, devices);
}

MetricsWriter::MetricsWriter(std::filesystem::path file, FailureReport report, Ownership owns)
    : path_(std::move(file)), report_(std::move(report)), owns_(std::move(owns)) {
  open_file();
}

MetricsWriter::~MetricsWriter() = default;

void MetricsWriter::add_events(std::unique_ptr<EventWriter> events) {
  events_ = std::move(events);
}

std::optional<std::filesystem::path> MetricsWriter::event_file() const {
  return events_ ? std::optional(events_->path()) : std::nullopt;
}

// By a writer that owns the run: another one's records are of another branch.
EventWriter* MetricsWriter::events() const {
  return is_ended_ ? nullptr : events_.get();
}

void MetricsWriter::open_file() {
  // O_NONBLOCK: a pipe by this name must be refused below, not waited for. O_APPEND: between a look at the file's size
  // and the write behind it another process may have written.
  FileDescriptor file(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666));
  if (!file) refuse(path_, "opening the metrics file", errno);
  const FileReader reader(path_);
  const std::uint64_t end = end_of_whole_lines(reader);
  if (end != reader.size() && ::ftruncate(file.get(), static_cast<off_t>(end)) != 0) {
    refuse(path_, "cutting the torn last line", errno);
  }
  file_.open(std::move(file), end);
}

void MetricsWriter::write(const StartRecord& record) {
  append(Line("start")
             .add("world", record.world)
             .add("parameters", record.parameters)
             .add("seed", record.seed)
             .add("version", record.version)
             .add("wall_time", record.wall_time)
             .add_members(record.device)
             .add("layout", record.layout)
             .add("sources", record.sources)
             .finish());
  if (events() != nullptr) events_->begin_at(1);
}

void MetricsWriter::write(const StepRecord& record) {
  Line line("step");
  line.add("step", record.step)
      .add("tokens", record.tokens)
      .add("loss", record.loss)
      .add("learning_rate", record.learning_rate)
      .add("grad_norm", record.grad_norm)
      .add("step_seconds", record.step_seconds)
      .add("tokens_per_second", record.tokens_per_second)
      .add("mfu", record.mfu)
      .add("elapsed_seconds", record.elapsed_seconds)
      .add("wall_time", record.wall_time);
  if (record.loss_scale) line.add("loss_scale", *record.loss_scale);
  if (record.gpu_memory_in_use) line.add("gpu_memory_in_use", *record.gpu_memory_in_use);
  if (record.batch) line.add("batch", *record.batch);
  if (const auto& noise = record.noise) {
    line.add("noise_square", noise->square).add("noise_variance", noise->variance);
    if (noise->scale) line.add("noise_scale", *noise->scale);
    line.add("noise_batch_small", noise->batch_small).add("noise_batch_big", noise->batch_big);
  }
  append(line.finish());
  if (events() != nullptr) events_->write(record);
}

void MetricsWriter::write(const EvaluationRecord& record) {
  if (events() != nullptr && record.step == restarted_at_) replace_evaluations(record.step);
  append(Line("evaluation")
             .add("step", record.step)
             .add("dataset", record.dataset)
             .add("loss", record.loss)
             .add("tokens", record.tokens)
             .finish());
  if (events() != nullptr) events_->write(record);
}

void MetricsWriter::write(const TaskRecord& record) {
  if (events() != nullptr && record.step == restarted_at_) replace_evaluations(record.step);
  Line line("task");
  line.add("step", record.step).add("task", record.task).add("accuracy", record.accuracy);
  if (record.accuracy_error) line.add("accuracy_error", *record.accuracy_error);
  line.add("normalized_accuracy", record.normalized_accuracy);
  if (record.normalized_accuracy_error) line.add("normalized_accuracy_error", *record.normalized_accuracy_error);
  append(line.add("questions", record.questions).finish());
  if (events() != nullptr) events_->write(record);
}

void MetricsWriter::write(const CheckpointRecord& record) {
  Line line("checkpoint");
  line.add("step", record.step).add("path", record.path).add("seconds", record.seconds).add("bytes", record.bytes);
  line.add_bool("background", record.background)
      .add("stall_seconds", record.stall_seconds)
      .add("waited_seconds", record.waited_seconds);
  if (!record.failure.empty()) line.add("failure", record.failure);
  append(line.finish());
}

void MetricsWriter::write(const RestartRecord& record) {
  append(Line("restart")
             .add("step", record.step)
             .add("generation", record.generation)
             .add("checkpoint", record.checkpoint)
             .add_bool("fingerprint_changed", record.fingerprint_changed)
             .add("cause", record.cause)
             .add("wall_time", record.wall_time)
             .add_members(record.device)
             .add("layout", record.layout)
             .add("sources", record.sources)
             .finish());
  if (events() != nullptr) events_->begin_at(record.step + 1);
  restarted_at_ = record.step;
}

void MetricsWriter::write(const SkipRecord& record) {
  append(Line("skip").add("step", record.step).add("reason", record.reason).add("samples", record.samples).finish());
}

void MetricsWriter::write(const SpikeRecord& record) {
  append(Line("spike")
             .add("step", record.step)
             .add("loss", record.loss)
             .add("mean", record.mean)
             .add("deviation", record.deviation)
             .add("zscore", record.zscore)
             .add("action", record.action)
             .add_bool("within_window", record.within_window)
             .add("samples", record.samples)
             .finish());
}

void MetricsWriter::write(const PhaseRecord& record) {
  append(Line("phase")
             .add("step", record.step)
             .add("phase", record.phase)
             .add("steps", record.steps)
             .add("context", record.context)
             .add("global_batch", record.global_batch)
             .add("learning_rate_factor", record.learning_rate_factor)
             .add("weights", record.weights)
             .finish());
}

void MetricsWriter::write(const EarlyStopRecord& record) {
  append(Line("early_stop")
             .add("step", record.step)
             .add("metric", record.metric)
             .add("value", record.value)
             .add("reason", record.reason)
             .finish());
}

void MetricsWriter::write(const EndRecord& record) {
  append(Line("end")
             .add("step", record.step)
             .add("code", record.code)
             .add("reason", record.reason)
             .add("wall_time", record.wall_time)
             .add("tokens", record.tokens)
             .add("elapsed_seconds", record.elapsed_seconds)
             .add("best_loss", record.best_loss)
             .add("best_step", record.best_step)
             .add("restarts", record.restarts)
             .add("growths", record.growths)
             .add("resumes", record.resumes)
             .finish());
}

// A start that died between an evaluation left over to it and its save leaves that to the next one again. TensorBoard
// drops single values of a step only with all others of it, which are then told once more.
void MetricsWriter::replace_evaluations(std::int64_t step) {
  restarted_at_.reset();
  const auto is_of_step = [step](const auto& record) { return record.step == step; };
  try {
    const Metrics metrics = read_metrics(path_, DamagedLines::skip);
    if (std::none_of(metrics.evaluations.begin(), metrics.evaluations.end(), is_of_step) &&
        std::none_of(metrics.tasks.begin(), metrics.tasks.end(), is_of_step))
      return;
    events_->begin_at(step);
    const auto last = std::find_if(metrics.steps.rbegin(), metrics.steps.rend(), is_of_step);
    if (last != metrics.steps.rend()) events_->write(*last);
  } catch (const InputError& error) {
    fail(error.what());
  }
}

void MetricsWriter::append(const std::string& line) {
  if (is_ended_) return;
  file_.add(line);
  flush();
}

bool MetricsWriter::flush() {
  if (is_ended_) return false;
  if (file_.waiting().empty()) return true;
  if (!prepare()) return false;
  if (const int error = file_.write(); error != 0) {
    // Leaves whole lines to a reader who looks now. It may fail too; then the reader sees a torn last line.
    struct stat now {};
    if (::fstat(file_.file().get(), &now) == 0 && has_own_remains(static_cast<std::uint64_t>(now.st_size)))
      file_.cut_to(file_.end());
    fail("writing", error);
    return false;
  }
  failing_ = false;
  return true;
}

bool MetricsWriter::sync() {
  if (events() != nullptr) events_->sync();
  if (!flush()) return false;
  const int error = file_.sync();
  if (error != 0) fail("fsync", error);
  return error == 0;
}

// A file that another one was moved over has no name left; one that was itself moved has, but not this.
bool MetricsWriter::is_gone() const {
  struct stat now {};
  if (::fstat(file_.file().get(), &now) == 0 && now.st_nlink == 0) return true;
  return ::stat(path_.c_str(), &now) != 0 && errno == ENOENT;
}

bool MetricsWriter::begin_anew() {
  try {
    if (!owns_still()) return false;
    open_file();
  } catch (const std::exception& error) {
    fail(error.what());
    return false;
  }
  if (report_)
    report_(
        fmt::format("{}: the file was removed or moved while the run goes on; the lines from here on are in a new "
                    "one",
                    path_.string()));
  return true;
}

bool MetricsWriter::prepare() {
  if (is_gone()) return begin_anew();
  struct stat now {};
  if (::fstat(file_.file().get(), &now) != 0) {
    fail("looking at its size", errno);
    return false;
  }
  const auto size = static_cast<std::uint64_t>(now.st_size);
  if (size == file_.end()) return true;
  if (!has_own_remains(size)) return follow_another();
  const int error = file_.cut_to(file_.end());
  if (error != 0) fail("cutting the torn last line", error);
  return error == 0;
}

// What a failed write of the waiting lines left behind, which nobody cut.
bool MetricsWriter::has_own_remains(std::uint64_t size) const {
  const std::uint64_t end = file_.end();
  if (size <= end || size - end > file_.waiting().size()) return false;
  std::string remains(static_cast<std::size_t>(size - end), '\0');
  const ssize_t n = ::pread(file_.file().get(), remains.data(), remains.size(), static_cast<off_t>(end));
  return n == static_cast<ssize_t>(remains.size()) && file_.waiting().starts_with(remains);
}

// The lock decides who of two writers goes on.
bool MetricsWriter::owns_still() {
  if (!owns_ || owns_()) return true;
  is_ended_ = true;
  ++failures_;
  file_.clear();
  if (report_)
    report_(fmt::format("{}: another process has taken the run over and writes here; this one writes nothing more",
                        path_.string()));
  return false;
}

// What a former owner wrote last stays before what follows.
bool MetricsWriter::follow_another() {
  try {
    if (!owns_still()) return false;
    const FileReader reader(path_);
    const std::uint64_t end = end_of_whole_lines(reader);
    if (end != reader.size()) {
      if (const int error = file_.cut_to(end); error != 0) {
        fail("cutting the torn last line", error);
        return false;
      }
    }
    file_.set_end(end);
    return true;
  } catch (const std::exception& error) {
    fail(error.what());
    return false;
  }
}

void MetricsWriter::fail(std::string_view operation, int error) {
  fail(fmt::format("{}: {} failed: {}", path_.string(), operation, std::strerror(error)));
}

void MetricsWriter::fail(std::string_view problem) {
  ++failures_;
  if (std::exchange(failing_, true) || !report_) return;
  report_(fmt::format("{}. Training goes on; the lines are kept and written when the file accepts them.", problem));
}

}  // namespace scaletrain
