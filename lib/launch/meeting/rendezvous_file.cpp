#include "launch/meeting/rendezvous_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "host/machine.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr double note_seconds = 300.0;  // for which a note of an unknown job may be this start's

fs::path rendezvous_path(const RunPaths& paths) {
  return paths.folder / "rendezvous.json";
}
// Its name begins as the lock's: a file that belongs to the run folder.
fs::path note_path(const RunPaths& paths) {
  return paths.folder / ".lock.json.refused";
}

// Appears under its name complete; only its owner may read it.
void write_private_file(const fs::path& path, const std::string& content) {
  const fs::path temporary = path.parent_path() / fmt::format(".tmp-rendezvous-{}", random_id());
  FileDescriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const auto fail = [&temporary](const char* what) {
    const std::string reason = std::strerror(errno);
    ::unlink(temporary.c_str());
    throw InputError(fmt::format("{}: {} failed: {}", temporary.string(), what, reason));
  };
  if (!file) fail("open");
  for (std::size_t at = 0; at < content.size();) {
    const ssize_t n = ::write(file.get(), content.data() + at, content.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write");
    at += static_cast<std::size_t>(n);
  }
  if (::fsync(file.get()) != 0) fail("fsync");
  rename_durably(temporary, path);
}

double monotonic_seconds() {
  return std::chrono::duration<double>(monotonic_now().time_since_epoch()).count();
}

struct EndNote {
  std::string id;
  std::string job;
  std::optional<double> age{};  // seconds; nothing: it was written under another clock than this boot's
  ExitStatus end;
};

// By the clock of this boot. What other clocks say, of hosts and of files, may be set at any time.
std::optional<double> age_of(const nlohmann::json& note, const std::string& where) {
  const std::string boot = boot_id();
  if (boot.empty() || json_string(note, "boot", where) != boot) return std::nullopt;
  return monotonic_seconds() - json_number(note, "monotonic", where);
}

std::optional<EndNote> read_end_note(const RunPaths& paths) {
  const std::string where = note_path(paths).string();
  try {
    const nlohmann::json object = parse_json(read_text_file(where, 1u << 20), where);
    return EndNote{.id = json_string(object, "id", where),
                   .job = json_string(object, "job", where),
                   .age = age_of(object, where),
                   .end = {.code = static_cast<ExitCode>(json_integer(object, "code", where)),
                           .message = json_string(object, "message", where)}};
  } catch (const InputError&) {
    return std::nullopt;  // not there
  }
}

}  // namespace

bool is_another_job(const std::string& theirs, const std::string& ours) {
  return !theirs.empty() && !ours.empty() && theirs != ours;
}

void write_rendezvous_file(const RunPaths& paths, const RendezvousFile& file) {
  const nlohmann::json object{
      {"host", file.address.host}, {"port", file.address.port}, {"secret", file.secret}, {"job", file.job}};
  write_private_file(rendezvous_path(paths), object.dump() + "\n");
}

std::optional<RendezvousFile> read_rendezvous_file(const RunPaths& paths) {
  const std::string where = rendezvous_path(paths).string();
  try {
    const nlohmann::json object = parse_json(read_text_file(where, 1u << 16), where);
    const std::int64_t port = json_integer(object, "port", where);
    if (port < 1 || port > 65535) return std::nullopt;
    return RendezvousFile{
        .address = {.host = json_string(object, "host", where), .port = static_cast<std::uint16_t>(port)},
        .secret = json_string(object, "secret", where),
        .job = json_string(object, "job", where)};
  } catch (const InputError&) {
    return std::nullopt;  // not there; or replaced while it was read over a network
  }
}

void remove_rendezvous_file(const RunPaths& paths, const RendezvousFile& file) noexcept {
  try {
    std::error_code ignored;
    if (read_rendezvous_file(paths) == file) fs::remove(rendezvous_path(paths), ignored);
  } catch (const std::exception&) {
    return;  // it names a server that is gone, and is known by that
  }
}

void leave_end_note(const RunPaths& paths, const LauncherPlace& place, const ExitStatus& end) noexcept {
  try {
    const nlohmann::json object{{"id", random_id()},
                                {"job", place.job},
                                {"boot", boot_id()},
                                {"monotonic", monotonic_seconds()},
                                {"code", static_cast<int>(end.code)},
                                {"message", end.message}};
    write_private_file(note_path(paths), object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } catch (const std::exception&) {
    return;  // the others run into their deadline
  }
}

void forget_end_note(const RunPaths& paths) noexcept {
  std::error_code ignored;
  fs::remove(note_path(paths), ignored);
}

std::optional<ExitStatus> noted_end(const RunPaths& paths, const LauncherPlace& place, double seconds) {
  const auto note = read_end_note(paths);
  if (!note || is_another_job(note->job, place.job)) return std::nullopt;
  const bool is_of_job = !place.job.empty() && note->job == place.job;
  if (!is_of_job && (!note->age || *note->age > seconds)) return std::nullopt;
  return note->end;
}

EndNoteWatch::EndNoteWatch(const RunPaths& paths, const LauncherPlace& place, double believed_after)
    : paths_(paths), place_(place), believed_after_(believed_after) {
  const auto before = read_end_note(paths_);
  if (!before) return;
  id_before_ = before->id;
  if (!is_another_job(before->job, place_.job)) earlier_ = before->end;
}

std::optional<ExitStatus> EndNoteWatch::look() const {
  const auto note = read_end_note(paths_);
  if (!note || is_another_job(note->job, place_.job)) return std::nullopt;
  if (note->id != id_before_) return note->end;
  // The first place of a new start would have removed it by now, if it has come.
  const bool is_late = seconds_since(begin_) >= believed_after_;
  const bool is_of_job = !place_.job.empty() && note->job == place_.job;
  const bool is_believed =
      is_of_job ? is_late || place_.launcher != "SCALETRAIN_NODE" : is_late && note->age && *note->age < note_seconds;
  return is_believed ? std::optional(note->end) : std::nullopt;
}

std::optional<ExitStatus> EndNoteWatch::earlier() const {
  return earlier_;
}

}  // namespace scaletrain
