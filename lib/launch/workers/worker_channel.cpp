#include "launch/workers/worker_channel.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace scaletrain {
namespace {

constexpr std::size_t longest_line = 16 << 10;
constexpr std::size_t longest_message = 8 << 10;

// A message on one line: '%' and control bytes become %XX.
std::string escape_message(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, longest_message)) {
    if (out.size() >= longest_line - 64) break;
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '%') {
      out += fmt::format("%{:02X}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

std::optional<std::string> unescape_message(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    unsigned byte = 0;
    if (i + 2 >= text.size()) return std::nullopt;
    const auto [end, error] = std::from_chars(text.data() + i + 1, text.data() + i + 3, byte, 16);
    if (error != std::errc() || end != text.data() + i + 3) return std::nullopt;
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

template <class Number>
bool parse_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::optional<ExitCode> known_exit_code(int code) {
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::finished:
    case ExitCode::bug:
    case ExitCode::usage:
    case ExitCode::input:
    case ExitCode::peer:
    case ExitCode::diverged:
    case ExitCode::no_progress:
    case ExitCode::interrupted:
      return static_cast<ExitCode>(code);
  }
  return std::nullopt;
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
  return send_line(fmt::format("error {} {}\n", static_cast<int>(kind), escape_message(message)));
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
  return send_line(status_lines(status));
}

std::string status_lines(const WorkerStatus& status) {
  std::string lines =
      fmt::format("progress {} {} {}\n", status.progress, status.step, status.waiting ? "waiting" : "working");
  if (const auto& in = status.collective)
    lines += fmt::format("collective {:.3f} {}\n", in->seconds, escape_message(in->text));
  if (const auto& in = status.storage)
    lines += fmt::format("storage {} {} {:.3f}{}{}\n", in->activity, in->bytes, in->seconds,
                         in->text.empty() ? "" : " ", escape_message(in->text));
  if (const auto& pace = status.pace) lines += fmt::format("pace {} {:.6f}\n", pace->steps, pace->busy_seconds);
  return lines;
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
  return fmt::format("dumped{}{}\n", collective.empty() ? "" : " ", escape_message(collective));
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
  const std::vector<std::string> words = split_text(line, ' ');
  if (words.size() == 4 && words[0] == "progress") {
    std::uint64_t progress = 0;
    std::int64_t step = 0;
    const bool is_waiting = words[3] == "waiting";
    if (!parse_number(words[1], progress) || !parse_number(words[2], step)) return;
    if (step < -1 || (!is_waiting && words[3] != "working")) return;
    status_.progress = progress;
    status_.step = step;
    status_.waiting = is_waiting;
    status_.has_worked = status_.has_worked || !is_waiting;
    status_.collective.reset();
    ++status_.lines;
    return;
  }
  if (words.size() >= 3 && words[0] == "collective") {
    InCollective in;
    auto text = unescape_message(line.substr(words[0].size() + words[1].size() + 2));
    if (!parse_number(words[1], in.seconds) || !text) return;
    in.text = std::move(*text);
    status_.collective = std::move(in);
    ++status_.lines;
    return;
  }
  if (words.size() >= 4 && words[0] == "storage") {
    InStorage in;
    const std::size_t head = words[0].size() + words[1].size() + words[2].size() + words[3].size() + 4;
    auto text = unescape_message(words.size() == 4 ? "" : line.substr(head));
    const bool has_numbers =
        parse_number(words[1], in.activity) && parse_number(words[2], in.bytes) && parse_number(words[3], in.seconds);
    if (!has_numbers || !text) return;
    in.text = std::move(*text);
    status_.storage = std::move(in);
    ++status_.lines;
    return;
  }
  if (words.size() == 3 && words[0] == "pace") {
    Pace pace;
    if (!parse_number(words[1], pace.steps) || !parse_number(words[2], pace.busy_seconds)) return;
    status_.pace = pace;
    ++status_.lines;
    return;
  }
  if (!words.empty() && words[0] == "dumped") {
    auto text = unescape_message(words.size() == 1 ? "" : line.substr(words[0].size() + 1));
    if (!text) return;
    status_.dumped = std::move(*text);
    ++status_.lines;
    return;
  }
  if (words.size() >= 3 && words[0] == "error") {
    int code = 0;
    if (!parse_number(words[1], code)) return;
    const auto kind = known_exit_code(code);
    auto message = unescape_message(line.substr(words[0].size() + words[1].size() + 2));
    if (!kind || !message) return;
    status_.error = WorkerError{*kind, std::move(*message)};
    ++status_.lines;
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
