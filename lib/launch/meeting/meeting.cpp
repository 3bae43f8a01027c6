#include "launch/meeting/meeting.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "host/address.h"
#include "launch/meeting/backoff.h"

namespace scaletrain {
namespace {

// Besides those that are meant to come: connections that were broken and made anew.
constexpr int spare_clients = 64;
constexpr double connect_seconds = 3.0;  // for one try at one file
constexpr double basis_seconds = 10.0;
constexpr double interruption_look_seconds = 0.1;

// Whether a place may be taken, as far as its status tells.
//
// Agents follow one another: whoever takes the place says of whom, and of several that find it free at the same time
// only the first is let in. One that was let in and was never seen there afterwards is followed after a while.
class PlaceWatch {
 public:
  PlaceWatch(const LauncherPlace& place, double run_out) : place_(place), run_out_(run_out) {}

  bool is_free(KeyValueStore& store, std::string& reason) {
    const auto text = store.find(status_key(place_.rank));
    if (!text) return claim(store, "", reason);
    const AgentStatus status = parse_status(*text);
    if (status.left) return claim(store, status.incarnation, reason);
    if (status.incarnation != incarnation_) {
      incarnation_ = status.incarnation;
      beat_ = status.beat;
      since_ = monotonic_now();
    }
    if (status.beat != beat_)
      throw UserError(
          fmt::format("another agent of {} is at work in this run: start one per {}, each with a number of its own",
                      place_.name(), place_.kind()));
    reason = fmt::format("an agent of {} was there until a moment ago", place_.name());
    return seconds_since(since_) >= run_out_ && claim(store, status.incarnation, reason);
  }

 private:
  bool claim(KeyValueStore& store, const std::string& predecessor, std::string& reason) {
    if (predecessor != predecessor_) {
      predecessor_ = predecessor;
      try_ = 0;
      refused_at_.reset();
    }
    if (refused_at_ && seconds_since(*refused_at_) >= run_out_) {
      ++try_;
      refused_at_.reset();
    }
    if (!refused_at_) {
      if (store.add(fmt::format("{}/after/{}/{}", status_key(place_.rank), predecessor, try_), 1) == 1) return true;
      refused_at_ = monotonic_now();
    }
    reason = fmt::format("another agent of {} is about to come in", place_.name());
    return false;
  }

  LauncherPlace place_;
  double run_out_;
  std::string incarnation_;
  std::uint64_t beat_ = 0;
  MonotonicTime since_{};
  std::string predecessor_;
  int try_ = 0;
  std::optional<MonotonicTime> refused_at_{};
};

std::string bind_address(const Meeting::Options& options) {
  if (options.interface) return address_of_interface(*options.interface);
  return options.place.local_world == options.place.world ? "127.0.0.1" : address_towards("");
}

// What a process that is not the first has come in by.
struct Join {
  std::unique_ptr<KeyValueStore> store{};
  RendezvousFile file{};
};
using ComeIn = std::function<bool(KeyValueStore& store, std::string& reason)>;

// Connects to the server that the file names; nothing, with the reason, if it is of another start.
std::unique_ptr<KeyValueStore> try_file(const RendezvousFile& file, const Meeting::Options& options,
                                        const ComeIn& come_in, std::string& reason) {
  if (is_another_job(file.job, options.place.job)) {
    reason = fmt::format("it is of another job ({}, this one is {})", file.job, options.place.job);
    return nullptr;
  }
  const std::string& secret = options.secret.empty() ? file.secret : options.secret;
  if (secret.empty()) {
    reason =
        fmt::format("{0} 0 was given SCALETRAIN_SECRET and this {0} was not; give it to all", options.place.kind());
    return nullptr;
  }
  try {
    auto store = connect_store(file.address, secret, connect_seconds);
    if (come_in(*store, reason)) return store;
  } catch (const PeerError& error) {
    reason = error.what();  // left over, or not there yet: the file is read again
  }
  return nullptr;
}

// False when interrupted.
bool pause(double seconds, const std::function<bool()>& interrupted) {
  const MonotonicTime begin = monotonic_now();
  for (;;) {
    if (interrupted && interrupted()) return false;
    const double left = seconds - seconds_since(begin);
    if (left <= 0) return true;
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, interruption_look_seconds)));
  }
}

// Reads the file again and again until `come_in` is content with the store of a server that takes the secret (else it
// gives the reason). Nothing when interrupted.
std::optional<Join> find_rendezvous(const Meeting::Options& options, const ComeIn& come_in,
                                    std::optional<ExitStatus>& noted) {
  const LauncherPlace& place = options.place;
  const EndNoteWatch notes(options.paths, place, options.believed_after);
  const std::string where = (options.paths.folder / "rendezvous.json").string();
  const MonotonicTime begin = monotonic_now();
  std::string reason = "there is no such file";
  WaitNotice notice = options.notice;
  Backoff backoff(place.rank, place.world);
  do {
    if (auto file = read_rendezvous_file(options.paths))
      if (auto store = try_file(*file, options, come_in, reason))
        return Join{.store = std::move(store), .file = std::move(*file)};
    if (auto end = notes.look()) {
      noted = std::move(end);
      throw PeerError(fmt::format("{} 0 could not start: {}", place.kind(), noted->message));
    }
    if (options.waiting && notice.is_due(seconds_since(begin)))
      options.waiting(
          fmt::format("waiting for {} 0: no rendezvous of this start in {} yet: {}", place.kind(), where, reason));
    if (!pause(backoff.next(), options.interrupted)) return std::nullopt;
  } while (seconds_since(begin) < options.seconds);
  const auto earlier = notes.earlier();
  throw PeerError(fmt::format(
      "{0} of {1} ({2}): no rendezvous of this start in {3} within {4} s: {5}; has {6} 0 started, and do all hosts "
      "share this folder?{7}{8}",
      place.name(), place.world, place.launcher, where, options.seconds, reason, place.kind(),
      earlier ? " A start of this run was refused before, or its end was noted: " : "",
      earlier ? earlier->message : ""));
}

}  // namespace

Meeting::Meeting(Options options) : options_(std::move(options)), lease_(agent_lease(options_.heartbeat)) {}

std::unique_ptr<Meeting> Meeting::join(const Options& options, const RunBasis& basis,
                                       std::optional<ExitStatus>& noted) {
  std::unique_ptr<Meeting> meeting(new Meeting(options));
  if (options.place.rank == 0) {
    meeting->serve(basis);
    return meeting;
  }
  PlaceWatch watch(options.place, lease_run_out(meeting->lease_));
  // Before the place is taken: the first agent may be leaving.
  const auto come_in = [&watch, &meeting](KeyValueStore& store, std::string& reason) {
    meeting->basis_ = parse_basis(store.wait(basis_key, basis_seconds));
    return watch.is_free(store, reason);
  };
  auto join = find_rendezvous(options, come_in, noted);
  if (!join) return nullptr;
  meeting->file_ = std::move(join->file);
  meeting->secret_ = options.secret.empty() ? meeting->file_.secret : options.secret;
  return meeting;
}

void Meeting::serve(const RunBasis& basis) {
  forget_end_note(options_.paths);
  secret_ = options_.secret.empty() ? make_secret() : options_.secret;
  basis_ = basis;
  if (options_.place.is_alone()) {
    alone_ = std::make_unique<InProcessWorld>(1);
    return;
  }
  server_ = std::make_unique<RendezvousServer>(
      RendezvousServer::Options{.bind_address = bind_address(options_),
                                .port = options_.port,
                                .secret = secret_,
                                .max_clients = static_cast<int>(options_.place.world) + spare_clients});
  server_->local_store()->set(basis_key, to_text(basis));
  // A secret that everyone was given is not written down.
  file_ = {.address = server_->address(), .secret = options_.secret.empty() ? secret_ : "", .job = options_.place.job};
  write_rendezvous_file(options_.paths, file_);
}

Meeting::~Meeting() {
  if (server_) remove_rendezvous_file(options_.paths, file_);
}

std::unique_ptr<KeyValueStore> Meeting::connect() const {
  if (alone_) return alone_->make_store();
  if (server_) return server_->local_store();
  return connect_store(file_.address, secret_, lease_ / 4, std::nullopt, lease_ / 2);
}

std::string Meeting::workers_secret(const WorkersRendezvous& rendezvous) const {
  return derived_secret(secret_, rendezvous.salt);
}

WorkersRendezvous Meeting::serve_workers(std::int64_t world, bool is_one_host) {
  workers_.reset();
  WorkersRendezvous rendezvous{.address = {}, .salt = make_secret()};
  if (world == 1) return rendezvous;
  workers_ = std::make_unique<RendezvousServer>(RendezvousServer::Options{
      .bind_address = is_one_host && !options_.interface ? "127.0.0.1" : bind_address(options_),
      // With several places it is the agents' rendezvous that has the port.
      .port = options_.place.is_alone() ? options_.port : std::uint16_t{0},
      .secret = workers_secret(rendezvous),
      .max_clients = static_cast<int>(world) + spare_clients});
  rendezvous.address = workers_->address();
  return rendezvous;
}

}  // namespace scaletrain
