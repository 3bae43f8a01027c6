#include "launch/workers/worker_channel.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace scaletrain {
namespace {

constexpr std::size_t longest_message = 8 << 10;
// A message each of whose bytes is written as six.
constexpr std::size_t longest_line = 64 << 10;

// InputError for what is none.
ExitCode exit_code_of(std::int64_t code) {
  for (const ExitCode known : {ExitCode::finished, ExitCode::bug, ExitCode::usage, ExitCode::input, ExitCode::peer,
                               ExitCode::diverged, ExitCode::no_progress, ExitCode::interrupted})
    if (static_cast<std::int64_t>(known) == code) return known;
  throw InputError(fmt::format("{}: no exit code", code));
}

// Texts may quote what is no text.
std::string line_of(const nlohmann::json& object) {
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// What a line tells in place of what was told before. InputError if it is none of the protocol's.
WorkerStatus updated(WorkerStatus status, std::string_view line) {
  const std::string where = "a worker's line";
  const nlohmann::json object = parse_json(line, where, {.depth = 4, .bytes = longest_line});
  ++status.lines;
  if (object.contains("error")) {
    status.error = WorkerError{.kind = exit_code_of(json_integer(object, "error", where)),
                               .message = json_string(object, "message", where),
                               .at = object.contains("at") ? json_number(object, "at", where) : 0.0};
    return status;
  }
  if (object.contains("dumped")) {
    status.dumped = json_string(object, "dumped", where);
    return status;
  }
  status.progress = json_unsigned(object, "progress", where);
  status.step = json_integer(object, "step", where);
  if (status.step < -1) throw InputError(where + ": a step below the first");
  status.waiting = json_bool(object, "waiting", where);
  status.has_worked = status.has_worked || !status.waiting;
  status.collective.reset();
  if (object.contains("collective")) {
    const nlohmann::json& in = json_member(object, "collective", where);
    status.collective =
        InCollective{.text = json_string(in, "text", where), .seconds = json_number(in, "seconds", where)};
  }
  if (object.contains("storage")) {
    const nlohmann::json& in = json_member(object, "storage", where);
    status.storage = InStorage{.activity = json_unsigned(in, "activity", where),
                               .bytes = json_unsigned(in, "bytes", where),
                               .text = json_string(in, "text", where),
                               .seconds = json_number(in, "seconds", where)};
  }
  if (object.contains("pace")) {
    const nlohmann::json& pace = json_member(object, "pace", where);
    status.pace =
        Pace{.steps = json_integer(pace, "steps", where), .busy_seconds = json_number(pace, "busy_seconds", where)};
  }
  return status;
}

}  // namespace

WorkerReporter::WorkerReporter(int descriptor, double period_seconds) {
  if (descriptor < 0) return;
  // The agent left it open across exec on purpose; nothing that this process starts may keep it.
  if (::fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0)
    throw UserError(fmt::format("--channel {}: not an open descriptor; this option is for the agent", descriptor));
  socket_ = FileDescriptor(descriptor);
  thread_ = GuardedThread([this, period_seconds] { run(period_seconds); });
}

WorkerReporter::~WorkerReporter() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void WorkerReporter::watch(std::function<std::uint64_t()> counter) {
  const std::lock_guard lock(mutex_);
  counter_ = std::move(counter);
}

void WorkerReporter::watch_collective(std::function<std::optional<InCollective>()> collective) {
  const std::lock_guard lock(mutex_);
  collective_ = std::move(collective);
}

void WorkerReporter::watch_storage(std::function<std::optional<InStorage>()> storage) {
  const std::lock_guard lock(mutex_);
  storage_ = std::move(storage);
}

void WorkerReporter::pace(const Pace& pace) {
  const std::lock_guard lock(mutex_);
  pace_ = pace;
}

void WorkerReporter::entered(std::int64_t step, bool waiting) {
  const std::lock_guard lock(mutex_);
  step_ = step;
  waiting_ = waiting;
  send_status();
}

bool WorkerReporter::error(ExitCode kind, std::string_view message) {
  const std::lock_guard lock(mutex_);
  return send_line(line_of(nlohmann::json::object({{"error", static_cast<int>(kind)},
                                                   {"message", std::string(message.substr(0, longest_message))},
                                                   {"at", seconds_since(MonotonicTime())}})));
}

void WorkerReporter::run(double period_seconds) {
  std::unique_lock lock(mutex_);
  do {
    listen();
    try {
      if (storage_) last_storage_ = storage_();
      send_status();
    } catch (const std::bad_alloc&) {  // a line less: the next one may find memory again
    }
  } while (!wake_.wait_for(lock, std::chrono::duration<double>(period_seconds), [this] { return stopping_; }));
}

// However many bytes have come: the last one counts.
void WorkerReporter::listen() {
  std::array<char, 256> bytes{};
  bool has_come = false;
  while (::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) has_come = true;
  if (has_come) vouched_.store(monotonic_now(), std::memory_order_relaxed);
}

bool WorkerReporter::send_status() {
  if (counter_) last_counter_ = counter_();
  WorkerStatus status;
  status.progress = last_counter_;
  status.step = step_;
  status.waiting = waiting_;
  if (collective_) status.collective = collective_();
  status.storage = std::exchange(last_storage_, std::nullopt);
  status.pace = pace_;
  return send_line(status_line(status));
}

std::string status_line(const WorkerStatus& status) {
  nlohmann::json object{{"progress", status.progress}, {"step", status.step}, {"waiting", status.waiting}};
  if (const auto& in = status.collective) object["collective"] = {{"text", in->text}, {"seconds", in->seconds}};
  if (const auto& in = status.storage)
    object["storage"] = {
        {"activity", in->activity}, {"bytes", in->bytes}, {"text", in->text}, {"seconds", in->seconds}};
  if (const auto& pace = status.pace) object["pace"] = {{"steps", pace->steps}, {"busy_seconds", pace->busy_seconds}};
  return line_of(object);
}

bool WorkerReporter::send_line(const std::string& line) {
  if (!socket_) return false;
  const auto send_some = [this](std::string_view text) {
    std::size_t sent = 0;
    while (sent < text.size()) {
      // An agent that has ended is no reason for SIGPIPE, one that is stopped no reason to wait.
      const ssize_t n = ::send(socket_.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      sent += static_cast<std::size_t>(n);
    }
    return sent;
  };
  unsent_.erase(0, send_some(unsent_));
  if (!unsent_.empty()) return false;
  const std::size_t sent = send_some(line);
  if (sent == 0) return false;
  unsent_ = line.substr(sent);
  return true;
}

std::string dumped_line(std::string_view collective) {
  return line_of(nlohmann::json::object({{"dumped", std::string(collective)}}));
}

void WorkerStatusParser::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, end);
    if (line_.size() + piece.size() > longest_line) {
      overlong_ = true;
      line_.clear();
    }
    if (!overlong_) line_ += piece;
    if (end == std::string_view::npos) return;
    if (!overlong_) take_line(line_);
    overlong_ = false;
    line_.clear();
    bytes.remove_prefix(end + 1);
  }
}

void WorkerStatusParser::take_line(std::string_view line) {
  try {
    status_ = updated(status_, line);
  } catch (const InputError&) {
    return;
  }
}

bool WorkerChannel::drain() {
  std::array<char, 4096> buffer{};
  // Bounded, so that a worker that floods its channel cannot keep its agent here.
  for (int i = 0; i < 256; ++i) {
    const ssize_t n = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (n == 0) return false;
    parser_.feed(std::string_view(buffer.data(), static_cast<std::size_t>(n)));
  }
  return true;
}

void WorkerChannel::vouch() {
  constexpr char word = '\n';
  [[maybe_unused]] const ssize_t n = ::send(socket_.get(), &word, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ChannelPair make_channel() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw PeerError(fmt::format("socketpair for the worker's channel failed: {}", std::strerror(errno)));
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

}  // namespace scaletrain
