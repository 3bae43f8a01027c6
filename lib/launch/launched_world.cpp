#include "launch/launched_world.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "launch/machine.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr double connect_seconds = 3.0;  // for one try at one file
constexpr double poll_seconds = 0.1;
constexpr double look_seconds = 0.25;         // between two looks whether to tell whom this rank waits for
constexpr double note_seconds = 300.0;        // for which a note of an unknown job may be this start's
constexpr double lost_farewell = 2.0;         // for ranks that have lost another: they need not wait long either
constexpr double failed_start_seconds = 2.0;  // that the rendezvous of a start that fails at once stays for late ranks
constexpr int spare_clients = 64;             // besides the ranks: connections that were broken and made anew

constexpr const char* start_key = "launch/start";
constexpr const char* failure_key = "launch/failure";
constexpr const char* failures_key = "launch/failures";
constexpr const char* joined_key = "launch/joined";
constexpr const char* left_key = "launch/left";

fs::path rendezvous_path(const RunPaths& paths) {
  return paths.folder / "rendezvous.json";
}
// Its name begins as the lock's: a file that belongs to the run folder.
fs::path refusal_path(const RunPaths& paths) {
  return paths.folder / ".lock.json.refused";
}

void pause(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
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

std::string failure_text(const SharedFailure& failure) {
  return nlohmann::json{{"rank", failure.rank}, {"code", static_cast<int>(failure.code)}, {"message", failure.message}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

SharedFailure parse_failure(const std::string& text, const std::string& where) {
  const nlohmann::json object = parse_json(text, where);
  return {.rank = json_integer(object, "rank", where),
          .code = static_cast<ExitCode>(json_integer(object, "code", where)),
          .message = json_string(object, "message", where)};
}

std::string start_text(const SharedStart& shared) {
  nlohmann::json object{{"step", shared.start.step},      {"generation", shared.start.generation},
                        {"asked", shared.start.asked},    {"lock", shared.lock_id},
                        {"complete", shared.is_complete}, {"checkpoint", nullptr},
                        {"config", shared.config},        {"version", shared.version}};
  if (shared.start.checkpoint) object["checkpoint"] = shared.start.checkpoint->string();
  return object.dump();
}

SharedStart parse_start(const std::string& text) {
  const std::string where = start_key;
  const nlohmann::json object = parse_json(text, where);
  SharedStart shared;
  if (!json_member(object, "checkpoint", where).is_null())
    shared.start.checkpoint = json_string(object, "checkpoint", where);
  shared.start.step = json_integer(object, "step", where);
  shared.start.generation = json_integer(object, "generation", where);
  shared.start.asked = json_string(object, "asked", where);
  shared.lock_id = json_string(object, "lock", where);
  shared.is_complete = json_bool(object, "complete", where);
  shared.config = json_string(object, "config", where);
  shared.version = json_string(object, "version", where);
  return shared;
}

// The note of a start that was refused.
struct Refusal {
  std::string id;
  std::string job;
  std::optional<double> age{};  // seconds; nothing: it was written under another clock than this boot's
  SharedFailure failure;
};

double monotonic_seconds() {
  return std::chrono::duration<double>(monotonic_now().time_since_epoch()).count();
}

// Of a note, by the clock of this boot. What other clocks say, of hosts and of files, may be set at any time.
std::optional<double> age_of(const nlohmann::json& note, const std::string& where) {
  const std::string boot = boot_id();
  if (boot.empty() || json_string(note, "boot", where) != boot) return std::nullopt;
  return monotonic_seconds() - json_number(note, "monotonic", where);
}

std::optional<Refusal> read_refusal(const RunPaths& paths) {
  const fs::path path = refusal_path(paths);
  try {
    const std::string text = read_text_file(path, 1u << 20);
    const nlohmann::json object = parse_json(text, path.string());
    return Refusal{.id = json_string(object, "id", path.string()),
                   .job = json_string(object, "job", path.string()),
                   .age = age_of(object, path.string()),
                   .failure = parse_failure(text, path.string())};
  } catch (const InputError&) {
    return std::nullopt;  // not there
  }
}

bool of_another_job(const std::string& theirs, const std::string& ours) {
  return !theirs.empty() && !ours.empty() && theirs != ours;
}

// Whether a note is about the start that this rank belongs to. before: the one that was there when it began.
bool is_of_this_start(const Refusal& refusal, const std::optional<Refusal>& before,
                      const LaunchedWorld::Options& options, MonotonicTime begin) {
  const std::string& job = options.place.job;
  if (of_another_job(refusal.job, job)) return false;
  if (!before || before->id != refusal.id) return true;
  if (!job.empty() && refusal.job == job)
    return options.place.launcher != "SCALETRAIN_NODE" || seconds_since(begin) >= options.believed_after;
  // Rank 0 of a new start would have removed it by now, if it has come.
  return refusal.age && *refusal.age < note_seconds && seconds_since(begin) >= options.believed_after;
}

// Connects to the server that the file names; nothing, with the reason, if it is of another start.
std::unique_ptr<KeyValueStore> try_file(const RendezvousFile& file, const LaunchedWorld::Options& options,
                                        std::optional<std::int64_t> member,
                                        const std::function<bool(KeyValueStore&, std::string&)>& come_in,
                                        std::string& reason) {
  if (of_another_job(file.job, options.place.job)) {
    reason = fmt::format("it is of another job ({}, this one is {})", file.job, options.place.job);
    return nullptr;
  }
  const std::string& secret = options.secret.empty() ? file.secret : options.secret;
  if (secret.empty()) {
    reason = fmt::format("{0} 0 was given SCALETRAIN_SECRET and this {0} was not; give it to all", options.kind);
    return nullptr;
  }
  try {
    auto store = connect_store(file.address, secret, connect_seconds, member);
    if (come_in(*store, reason)) return store;
  } catch (const PeerError& error) {
    reason = error.what();  // left over, or not there yet: the file is read again
  }
  return nullptr;
}

// The failure that others have told, as the reason that ends a wait.
std::optional<std::string> told_reason(KeyValueStore& store) {
  const auto text = store.find(failure_key);
  if (!text) return std::nullopt;
  const SharedFailure failure = parse_failure(*text, failure_key);
  return fmt::format("rank {} failed: {}", failure.rank, failure.message);
}

}  // namespace

LaunchedWorld::LaunchedWorld(Options options, RendezvousFile file, std::unique_ptr<RendezvousServer> server,
                             std::unique_ptr<KeyValueStore> store)
    : options_(std::move(options)),
      file_(std::move(file)),
      server_(std::move(server)),
      connection_(std::move(store)),
      store_(std::make_unique<LockedStore>(*connection_)),
      watched_(*store_, {.interrupted = options_.interrupted, .failure = told_reason}),
      watched_in_background_(*store_, {.interrupted = {}, .failure = told_reason}) {}

std::unique_ptr<LaunchedWorld> LaunchedWorld::join(const Options& options, std::optional<SharedFailure>& refused) {
  const LauncherPlace& place = options.place;
  if (place.rank == 0) {
    forget_refusal(options.paths);
    const std::string secret = options.secret.empty() ? make_secret() : options.secret;
    auto server = std::make_unique<RendezvousServer>(
        RendezvousServer::Options{.bind_address = rendezvous_bind_address(options),
                                  .port = options.port,
                                  .secret = secret,
                                  // Each rank has one connection, and its watch another.
                                  .max_clients = 2 * static_cast<int>(place.world) + spare_clients});
    // A secret that everyone was given is not written down.
    const RendezvousFile file{
        .address = server->address(), .secret = options.secret.empty() ? secret : "", .job = place.job};
    auto store = server->local_store();
    std::unique_ptr<LaunchedWorld> world(new LaunchedWorld(options, file, std::move(server), std::move(store)));
    if (options.refusal) world->tell_failure(*options.refusal);
    write_rendezvous_file(options.paths, file);
    return world;
  }
  const auto come_in = [&place](KeyValueStore& store, std::string& reason) {
    if (store.add(fmt::format("{}/{}", joined_key, place.rank), 1) == 1) {
      store.add(joined_key, 1);
      return true;
    }
    reason = fmt::format("a rank {} has come in there before", place.rank);
    return false;
  };
  auto entrance = find_rendezvous(options, place.rank, come_in, refused);
  if (!entrance) return nullptr;
  return std::unique_ptr<LaunchedWorld>(
      new LaunchedWorld(options, std::move(entrance->file), nullptr, std::move(entrance->store)));
}

LaunchedWorld::~LaunchedWorld() {
  try {
    if (server_) {
      serve_farewell();
    } else {
      store_->add(left_key, 1);
    }
  } catch (const std::exception&) {
    // Nobody is left to say farewell to.
  }
  if (server_) remove_rendezvous_file(options_.paths, file_);
}

void LaunchedWorld::serve_farewell() {
  const std::int64_t num_others = options_.place.world - 1;
  const std::optional<SharedFailure> failure = cause(0.0);
  // After a failure late ones find the note; but who is on the way hears more inside.
  const double late_seconds = failure ? std::min(options_.seconds, failed_start_seconds) : options_.seconds;
  const auto is_late_awaited = [&](std::int64_t joined) {
    return joined < num_others && seconds_since(begin_) < late_seconds &&
           !(options_.interrupted && options_.interrupted());
  };
  const MonotonicTime farewell = monotonic_now();
  WaitNotice notice = options_.notice;
  for (;;) {
    const std::int64_t joined = store_->add(joined_key, 0);
    const std::int64_t lost = store_->add(num_lost_members_key, 0);
    const double patience = lost > 0 ? std::min(options_.farewell, lost_farewell) : options_.farewell;
    const bool is_inside_awaited = store_->add(left_key, 0) + lost < joined && seconds_since(farewell) < patience;
    if (!is_inside_awaited && !is_late_awaited(joined)) break;
    if (options_.waiting && !is_inside_awaited && notice.is_due(seconds_since(farewell)))
      options_.waiting(fmt::format("waiting for {} to hear that the run has ended", missing_text()));
    pause(poll_seconds / 4);
  }
  if (failure && store_->add(joined_key, 0) < num_others) refuse_start(options_.paths, options_.place, *failure);
}

KeyValueStore& LaunchedWorld::store() {
  return watched_;
}

KeyValueStore& LaunchedWorld::background_store() {
  return watched_in_background_;
}

std::unique_ptr<KeyValueStore> LaunchedWorld::connect(double seconds, double reply_seconds) const {
  if (server_) return server_->local_store();
  return connect_store(file_.address, options_.secret.empty() ? file_.secret : options_.secret, seconds, {},
                       reply_seconds);
}

void LaunchedWorld::withdraw() const noexcept {
  if (server_) remove_rendezvous_file(options_.paths, file_);
}

const RendezvousAddress& LaunchedWorld::address() const {
  return file_.address;
}

void LaunchedWorld::announce(const SharedStart& start) {
  store_->set(start_key, start_text(start));
}

std::optional<SharedStart> LaunchedWorld::await_start() {
  // Verifying a large checkpoint takes long; while rank 0 lives there is no deadline.
  constexpr double round_seconds = 3600.0;
  try {
    for (;;)
      if (const auto text = watched_.find_within(start_key, round_seconds)) return parse_start(*text);
  } catch (const PeerError&) {
    if (was_interrupted() || store_->find(failure_key) || lost_rank(*store_)) return std::nullopt;
    throw;
  }
}

void LaunchedWorld::tell_failure(const SharedFailure& failure) noexcept {
  try {
    if (store_->add(failures_key, 1) == 1) store_->set(failure_key, failure_text(failure));
  } catch (const std::exception&) {
    return;
  }
}

std::optional<SharedFailure> LaunchedWorld::told_failure(double seconds) noexcept {
  try {
    const MonotonicTime begin = monotonic_now();
    for (;;) {
      if (const auto text = store_->find(failure_key)) return parse_failure(*text, failure_key);
      if (seconds_since(begin) >= seconds) return std::nullopt;
      pause(poll_seconds / 4);
    }
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::optional<SharedFailure> LaunchedWorld::cause(double seconds) noexcept {
  try {
    const MonotonicTime begin = monotonic_now();
    for (;;) {
      if (const auto text = store_->find(failure_key)) return parse_failure(*text, failure_key);
      if (const auto rank = lost_rank(*store_))
        return SharedFailure{.rank = *rank, .code = ExitCode::peer, .message = lost_text(*rank), .is_silent = true};
      if (seconds_since(begin) >= seconds) return std::nullopt;
      pause(poll_seconds / 4);
    }
  } catch (const PeerError&) {
    if (server_) return std::nullopt;
    return SharedFailure{.rank = 0, .code = ExitCode::peer, .message = lost_text(0), .is_silent = true};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::int64_t LaunchedWorld::processor_sharers() {
  std::string mask;
  for (const int processor : affinity_processors()) mask += fmt::format("{},", processor);
  const std::string key =
      fmt::format("launch/processors/{}", to_hex(hash_text(fmt::format("{}/{}/{}", host_name(), boot_id(), mask))));
  store_->add(key, 1);
  await_all("launch/processors");
  return std::max<std::int64_t>(1, store_->add(key, 0));
}

std::vector<std::int64_t> LaunchedWorld::host_ranks() {
  const std::string key = fmt::format(
      "launch/host/{}", to_hex(hash_text(fmt::format("{}/{}/{}", host_name(), boot_id(), network_namespace()))));
  const std::int64_t place = store_->add(key, 1);
  store_->set(fmt::format("{}/{}", key, place), fmt::format("{}", options_.place.rank));
  await_all("launch/host");
  const std::int64_t count = store_->add(key, 0);
  std::vector<std::int64_t> ranks;
  for (std::int64_t other = 1; other <= count; ++other) {
    const std::string text = store_->wait(fmt::format("{}/{}", key, other), connect_seconds);
    std::int64_t rank = 0;
    std::from_chars(text.data(), text.data() + text.size(), rank);
    ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// Every rank calls it once with this key.
void LaunchedWorld::await_all(const std::string& key) {
  const std::string all = key + "/all";
  if (store_->add(key + "/count", 1) == options_.place.world) store_->set(all, "");
  const MonotonicTime begin = monotonic_now();
  WaitNotice notice = options_.notice;
  for (;;) {
    const double waited = seconds_since(begin);
    if (watched_.find_within(all, std::clamp(options_.seconds - waited, 0.0, look_seconds))) return;
    if (waited >= options_.seconds) break;
    // Of the ranks rank 0 is the one that knows who has come.
    if (server_ && options_.waiting && notice.is_due(waited))
      options_.waiting(fmt::format("waiting for {}; all must come within {:g} s", missing_text(), options_.seconds));
  }
  const std::vector<std::int64_t> missing = missing_ranks();
  if (missing.empty())
    throw PeerError(
        fmt::format("the ranks did not come together within {:g} s: one has come in and is stuck", options_.seconds));
  throw PeerError(
      fmt::format("{} {} not come within {:g} s: was each started, with the same run folder and SCALETRAIN_SECRET?",
                  missing_text(), missing.size() == 1 ? "has" : "have", options_.seconds));
}

std::vector<std::int64_t> LaunchedWorld::missing_ranks() {
  std::vector<std::int64_t> missing;
  for (std::int64_t rank = 1; rank < options_.place.world; ++rank)
    if (!store_->find(fmt::format("{}/{}", joined_key, rank))) missing.push_back(rank);
  return missing;
}

// "ranks 1, 5"
std::string LaunchedWorld::missing_text() {
  constexpr std::size_t longest_list = 8;
  const std::vector<std::int64_t> missing = missing_ranks();
  if (missing.empty()) return "a rank that has come in and is still preparing";
  std::string list;
  for (std::size_t i = 0; i < std::min<std::size_t>(missing.size(), longest_list); ++i)
    list += fmt::format("{}{}", i == 0 ? "" : ", ", missing[i]);
  if (missing.size() > longest_list) list += fmt::format(" and {} more", missing.size() - longest_list);
  return fmt::format("rank{} {}", missing.size() == 1 ? "" : "s", list);
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

std::optional<Entrance> find_rendezvous(const LaunchedWorld::Options& options, std::optional<std::int64_t> member,
                                        const std::function<bool(KeyValueStore& store, std::string& reason)>& come_in,
                                        std::optional<SharedFailure>& refused) {
  const LauncherPlace& place = options.place;
  const std::optional<Refusal> before = read_refusal(options.paths);
  const MonotonicTime begin = monotonic_now();
  std::string reason = "there is no such file";
  WaitNotice notice = options.notice;
  while (seconds_since(begin) < options.seconds) {
    if (options.interrupted && options.interrupted()) return std::nullopt;
    if (auto file = read_rendezvous_file(options.paths))
      if (auto store = try_file(*file, options, member, come_in, reason))
        return Entrance{.store = std::move(store), .file = std::move(*file)};
    const auto refusal = read_refusal(options.paths);
    if (refusal && is_of_this_start(*refusal, before, options, begin)) {
      refused = refusal->failure;
      throw PeerError(fmt::format("rank {} could not start: {}", refusal->failure.rank, refusal->failure.message));
    }
    if (options.waiting && notice.is_due(seconds_since(begin)))
      options.waiting(fmt::format("waiting for {} 0: no rendezvous of this start in {} yet: {}", options.kind,
                                  rendezvous_path(options.paths).string(), reason));
    pause(poll_seconds);
  }
  const std::string noted =
      before && !of_another_job(before->job, place.job)
          ? fmt::format(". A start of this run was refused before, or its end was noted: {}", before->failure.message)
          : "";
  throw PeerError(
      fmt::format("{0} {1} of {2} ({3}): no rendezvous of this start in {4} within {5} s: {6}; has {0} 0 started, "
                  "and do all hosts share this folder?{7}",
                  options.kind, place.rank, place.world, place.launcher, rendezvous_path(options.paths).string(),
                  options.seconds, reason, noted));
}

std::string rendezvous_bind_address(const LaunchedWorld::Options& options) {
  if (options.interface) return address_of_interface(*options.interface);
  return options.place.local_world == options.place.world ? "127.0.0.1" : address_towards("");
}

void remove_rendezvous_file(const RunPaths& paths, const RendezvousFile& file) noexcept {
  try {
    std::error_code ignored;
    if (read_rendezvous_file(paths) == file) fs::remove(rendezvous_path(paths), ignored);
  } catch (const std::exception&) {
    return;  // it names a server that is gone, and is known by that
  }
}

void refuse_start(const RunPaths& paths, const LauncherPlace& place, const SharedFailure& failure) noexcept {
  try {
    nlohmann::json object = nlohmann::json::parse(failure_text(failure));
    object["id"] = random_id();
    object["job"] = place.job;
    object["boot"] = boot_id();
    object["monotonic"] = monotonic_seconds();
    write_private_file(refusal_path(paths), object.dump() + "\n");
  } catch (const std::exception&) {
    return;  // the others run into their deadline
  }
}

std::optional<SharedFailure> noted_end(const RunPaths& paths, const LauncherPlace& place, double seconds) {
  const auto refusal = read_refusal(paths);
  if (!refusal || of_another_job(refusal->job, place.job)) return std::nullopt;
  const bool is_of_job = !place.job.empty() && refusal->job == place.job;
  if (!is_of_job && (!refusal->age || *refusal->age > seconds)) return std::nullopt;
  return refusal->failure;
}

void forget_refusal(const RunPaths& paths) noexcept {
  std::error_code ignored;
  fs::remove(refusal_path(paths), ignored);
}

}  // namespace scaletrain
