#include "launch/launched_world.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

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
                        {"complete", shared.is_complete}, {"checkpoint", nullptr}};
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
  return shared;
}

// The note of a start that was refused.
struct Refusal {
  std::string id;
  std::string job;
  SharedFailure failure;
};

std::optional<Refusal> read_refusal(const RunPaths& paths) {
  const fs::path path = refusal_path(paths);
  try {
    const std::string text = read_text_file(path, 1u << 20);
    const nlohmann::json object = parse_json(text, path.string());
    return Refusal{.id = json_string(object, "id", path.string()),
                   .job = json_string(object, "job", path.string()),
                   .failure = parse_failure(text, path.string())};
  } catch (const InputError&) {
    return std::nullopt;  // not there
  }
}

bool of_another_job(const std::string& theirs, const std::string& ours) {
  return !theirs.empty() && !ours.empty() && theirs != ours;
}

// Connects to the server that the file names; nothing if it is of another start.
std::unique_ptr<KeyValueStore> try_file(const RendezvousFile& file, const LaunchedWorld::Options& options) {
  if (of_another_job(file.job, options.place.job)) return nullptr;
  try {
    const std::string& secret = options.secret.empty() ? file.secret : options.secret;
    auto store = connect_store(file.address, secret, connect_seconds);
    if (store->add(fmt::format("{}/{}", joined_key, options.place.rank), 1) == 1) {
      store->add(joined_key, 1);
      return store;
    }
  } catch (const PeerError&) {
    // Left over, or not there yet: the file is read again.
  }
  return nullptr;
}

}  // namespace

LaunchedWorld::LaunchedWorld(Options options, RendezvousAddress address)
    : options_(std::move(options)), address_(std::move(address)) {}

std::unique_ptr<LaunchedWorld> LaunchedWorld::join(const Options& options, std::optional<SharedFailure>& refused) {
  const LauncherPlace& place = options.place;
  if (place.rank == 0) {
    std::error_code ignored;
    fs::remove(refusal_path(options.paths), ignored);
    const bool is_local = place.local_world == place.world;
    RendezvousFile file{.secret = options.secret.empty() ? make_secret() : options.secret, .job = place.job};
    auto server = std::make_unique<RendezvousServer>(
        RendezvousServer::Options{.bind_address = is_local ? "127.0.0.1" : address_towards(""), .secret = file.secret});
    file.address = server->address();
    std::unique_ptr<LaunchedWorld> world(new LaunchedWorld(options, file.address));
    world->store_ = server->local_store();
    world->server_ = std::move(server);
    // A secret that everyone was given is not written down.
    if (!options.secret.empty()) file.secret.clear();
    write_rendezvous_file(options.paths, file);
    return world;
  }
  const std::optional<Refusal> before = read_refusal(options.paths);
  const MonotonicTime begin = monotonic_now();
  while (seconds_since(begin) < options.seconds) {
    if (options.interrupted && options.interrupted()) return nullptr;
    if (const auto file = read_rendezvous_file(options.paths)) {
      if (auto store = try_file(*file, options)) {
        std::unique_ptr<LaunchedWorld> world(new LaunchedWorld(options, file->address));
        world->store_ = std::move(store);
        return world;
      }
    }
    const auto refusal = read_refusal(options.paths);
    if (refusal && !of_another_job(refusal->job, place.job) &&
        (!place.job.empty() || !before || before->id != refusal->id)) {
      refused = refusal->failure;
      throw PeerError(fmt::format("rank 0 could not start: {}", refusal->failure.message));
    }
    pause(poll_seconds);
  }
  throw PeerError(
      fmt::format("rank {} of {} ({}): no rendezvous of this start in {} within {} s: has rank 0 started, "
                  "and do all hosts share this folder?",
                  place.rank, place.world, place.launcher, rendezvous_path(options.paths).string(), options.seconds));
}

LaunchedWorld::~LaunchedWorld() {
  try {
    if (!server_) {
      store_->add(left_key, 1);
      return;
    }
    const MonotonicTime farewell = monotonic_now();
    for (;;) {
      const std::int64_t joined = store_->add(joined_key, 0);
      const bool is_late_awaited = joined < options_.place.world - 1 && seconds_since(begin_) < options_.seconds;
      const bool is_inside_awaited = store_->add(left_key, 0) < joined && seconds_since(farewell) < options_.farewell;
      if (!is_late_awaited && !is_inside_awaited) break;
      pause(poll_seconds / 4);
    }
    // Unless another start has put its own there.
    const auto file = read_rendezvous_file(options_.paths);
    std::error_code ignored;
    if (file && file->address.port == address_.port) fs::remove(rendezvous_path(options_.paths), ignored);
  } catch (const std::exception&) {
    // Nobody is left to say farewell to.
  }
}

KeyValueStore& LaunchedWorld::store() {
  return *store_;
}

const RendezvousAddress& LaunchedWorld::address() const {
  return address_;
}

void LaunchedWorld::announce(const SharedStart& start) {
  store_->set(start_key, start_text(start));
}

std::optional<SharedStart> LaunchedWorld::await_start() {
  // Verifying a large checkpoint takes long; while rank 0 lives there is no deadline.
  double wait = poll_seconds / 4;
  for (;;) {
    if (const auto text = store_->find(start_key)) return parse_start(*text);
    if (store_->find(failure_key)) return std::nullopt;
    if (options_.interrupted && options_.interrupted()) return std::nullopt;
    pause(wait);
    wait = std::min(1.2 * wait, 1.0);
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

std::int64_t LaunchedWorld::processor_sharers() {
  const std::int64_t world = options_.place.world;
  std::string mask;
  for (const int processor : affinity_processors()) mask += fmt::format("{},", processor);
  const std::string key =
      fmt::format("launch/processors/{}", to_hex(hash_text(fmt::format("{}/{}/{}", host_name(), boot_id(), mask))));
  store_->add(key, 1);
  if (store_->add("launch/processors", 1) == world) store_->set("launch/processors/all", "");
  store_->wait("launch/processors/all", options_.seconds);
  return std::max<std::int64_t>(1, store_->add(key, 0));
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

void refuse_start(const RunPaths& paths, const LauncherPlace& place, const SharedFailure& failure) noexcept {
  try {
    nlohmann::json object = nlohmann::json::parse(failure_text(failure));
    object["id"] = random_id();
    object["job"] = place.job;
    write_private_file(refusal_path(paths), object.dump() + "\n");
  } catch (const std::exception&) {
    return;  // the others run into their deadline
  }
}

}  // namespace scaletrain
