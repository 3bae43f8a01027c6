#include "telemetry/event_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "base/error.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view name_begin = "events.out.tfevents.";

template <class Unsigned>
void add_little_endian(std::string& out, Unsigned value) {
  for (std::size_t byte = 0; byte < sizeof(Unsigned); ++byte) out += static_cast<char>((value >> (8 * byte)) & 0xff);
}

// A protobuf message, field by field. Numbers of fields: TensorFlow's event.proto and summary.proto.
class Message {
 public:
  Message& add(int field, double value) {
    add_key(field, 1);
    add_little_endian(text_, std::bit_cast<std::uint64_t>(value));
    return *this;
  }
  Message& add(int field, float value) {
    add_key(field, 5);
    add_little_endian(text_, std::bit_cast<std::uint32_t>(value));
    return *this;
  }
  Message& add(int field, std::int64_t value) {
    add_key(field, 0);
    add_varint(static_cast<std::uint64_t>(value));
    return *this;
  }
  Message& add(int field, std::string_view bytes) {
    add_key(field, 2);
    add_varint(bytes.size());
    text_ += bytes;
    return *this;
  }
  Message& add(int field, const Message& inner) { return add(field, std::string_view(inner.text_)); }

  const std::string& text() const { return text_; }

 private:
  void add_key(int field, int wire_type) { add_varint(static_cast<std::uint64_t>(field) << 3 | wire_type); }
  void add_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
  }

  std::string text_;
};

// A CRC of bytes that hold CRCs themselves is weak; the format rotates it and adds a constant.
std::uint32_t masked_crc(std::string_view bytes) {
  constexpr std::uint32_t mask = 0xa282ead8;
  return std::rotr(crc32c(bytes), 15) + mask;
}

std::string framed(std::string_view payload) {
  std::string out;
  add_little_endian(out, std::uint64_t{payload.size()});
  add_little_endian(out, masked_crc(out));
  out += payload;
  add_little_endian(out, masked_crc(payload));
  return out;
}

Message event_at(double seconds, std::int64_t step) {
  Message event;
  event.add(1, seconds);
  if (step != 0) event.add(2, step);
  return event;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The seconds in the name of an event file; 0 for any other file.
std::int64_t seconds_of(std::string_view name) {
  std::int64_t seconds = 0;
  if (!name.starts_with(name_begin)) return seconds;
  name.remove_prefix(name_begin.size());
  std::from_chars(name.data(), name.data() + name.size(), seconds);
  return seconds;
}

// Behind all that are there, though the clock may have been set back or another host's may be ahead.
std::int64_t seconds_of_next(const fs::path& folder) {
  auto seconds = static_cast<std::int64_t>(seconds_now());
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    seconds = std::max(seconds, seconds_of(entry->path().filename().native()) + 1);
  return seconds;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

fs::path new_name(const fs::path& folder) {
  static int count = 0;
  return folder /
         fmt::format("{}{:010}.{}.{}.{}", name_begin, seconds_of_next(folder), host_name(), ::getpid(), count++);
}

// O_EXCL: a name that is taken is another writer's file.
FileDescriptor make_file(const fs::path& path) {
  create_folders(path.parent_path());
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666));
  if (!file) throw_file_error(path, "making the event file", errno);
  return file;
}

}  // namespace

std::string event_of_version(double seconds) {
  return framed(event_at(seconds, 0).add(3, std::string_view("brain.Event:2")).text());
}

std::string event_of_start(double seconds, std::int64_t step) {
  constexpr std::int64_t session_start = 1;
  return framed(event_at(seconds, step).add(7, Message().add(1, session_start)).text());
}

std::string event_of_scalars(double seconds, std::int64_t step, std::span<const Scalar> scalars) {
  Message summary;
  for (const Scalar& scalar : scalars)
    summary.add(1, Message().add(1, std::string_view(scalar.tag)).add(2, static_cast<float>(scalar.value)));
  return framed(event_at(seconds, step).add(5, summary).text());
}

EventWriter::EventWriter(const fs::path& folder, FailureReport report) : report_(std::move(report)) {
  create_folders(folder);
  path_ = new_name(folder);
  file_.open(make_file(path_), 0);
  append(event_of_version(seconds_now()));
}

void EventWriter::begin_at(std::int64_t step) {
  begin_ = step;
  append(event_of_start(seconds_now(), step));
}

void EventWriter::write(const StepRecord& record) {
  std::vector<Scalar> scalars = {{"loss", record.loss},
                                 {"learning_rate", record.learning_rate},
                                 {"grad_norm", record.grad_norm},
                                 {"tokens_per_second", record.tokens_per_second},
                                 {"mfu", record.mfu},
                                 {"step_seconds", record.step_seconds}};
  if (record.loss_scale) scalars.push_back({"loss_scale", *record.loss_scale});
  if (record.gpu_memory_in_use)
    scalars.push_back({"gpu_memory_in_use", static_cast<double>(*record.gpu_memory_in_use)});
  if (record.batch) scalars.push_back({"batch", static_cast<double>(*record.batch)});
  if (record.noise) {
    scalars.push_back({"noise_square", record.noise->square});
    scalars.push_back({"noise_variance", record.noise->variance});
    if (record.noise->scale) scalars.push_back({"noise_scale", *record.noise->scale});
  }
  append(event_of_scalars(seconds_now(), record.step, scalars));
}

void EventWriter::write(const EvaluationRecord& record) {
  const Scalar loss{fmt::format("validation/{}/loss", record.dataset), record.loss};
  append(event_of_scalars(seconds_now(), record.step, std::span(&loss, 1)));
}

void EventWriter::write(const TaskRecord& record) {
  const Scalar scalars[] = {{fmt::format("task/{}/accuracy", record.task), record.accuracy},
                            {fmt::format("task/{}/normalized_accuracy", record.task), record.normalized_accuracy}};
  append(event_of_scalars(seconds_now(), record.step, scalars));
}

void EventWriter::append(const std::string& record) {
  file_.add(record);
  flush();
}

bool EventWriter::flush() {
  if (!prepare()) return false;
  if (const int error = file_.write(); error != 0) {
    // Leaves whole records to who looks now; where this fails too, the next call cuts.
    file_.cut_to(file_.end());
    fail(fmt::format("{}: writing failed: {}", path_.string(), std::strerror(error)));
    return false;
  }
  failing_ = false;
  return true;
}

bool EventWriter::prepare() {
  struct stat now {};
  if (::stat(path_.c_str(), &now) != 0) {
    if (errno == ENOENT) return begin_anew();
    fail(fmt::format("{}: looking at it failed: {}", path_.string(), std::strerror(errno)));
    return false;
  }
  const auto size = static_cast<std::uint64_t>(now.st_size);
  if (size == file_.end()) return true;
  if (size < file_.end()) {  // somebody has cut it, perhaps amid a record
    ::unlink(path_.c_str());
    return begin_anew();
  }
  // What a failed write left behind. A reader must not find the next record behind half a one.
  const int error = file_.cut_to(file_.end());
  if (error == 0) return true;
  fail(fmt::format("{}: cutting a torn record failed: {}", path_.string(), std::strerror(error)));
  return false;
}

bool EventWriter::sync() {
  if (!flush()) return false;
  const int error = file_.sync();
  if (error != 0) fail(fmt::format("{}: fsync failed: {}", path_.string(), std::strerror(error)));
  return error == 0;
}

// By its old name. All that this start had written is gone, and later ones are to be void as before.
bool EventWriter::begin_anew() {
  try {
    file_.open(make_file(path_), 0);
  } catch (const std::exception& error) {
    fail(error.what());
    return false;
  }
  const double now = seconds_now();
  file_.add_first(event_of_version(now) + (begin_ ? event_of_start(now, *begin_) : std::string()));
  if (report_)
    report_(
        fmt::format("{}: the file was removed, moved or cut while the run goes on; the scalars from here on are in a "
                    "new one",
                    path_.string()));
  return true;
}

void EventWriter::fail(const std::string& problem) {
  if (std::exchange(failing_, true) || !report_) return;
  report_(fmt::format("{}. Training goes on; the scalars are kept and written when the file accepts them.", problem));
}

}  // namespace scaletrain
