#include "launch/node_world.h"

#include <fmt/format.h>

#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace scaletrain {
namespace {

// Besides those that are meant to come: connections that were broken and made anew.
constexpr int spare_clients = 64;
constexpr double basis_seconds = 10.0;

// Whether a node's place may be taken, as far as its status tells.
//
// Agents follow one another: whoever takes the place says of whom, and of several that find it free at the same time
// only the first is let in. One that was let in and was never seen there afterwards is followed after a while.
class PlaceWatch {
 public:
  PlaceWatch(std::int64_t node, double run_out) : node_(node), run_out_(run_out) {}

  bool is_free(KeyValueStore& store, std::string& reason) {
    const auto text = store.find(status_key(node_));
    if (!text) return claim(store, "", reason);
    const NodeStatus status = parse_status(*text);
    if (status.left) return claim(store, status.incarnation, reason);
    if (status.incarnation != incarnation_) {
      incarnation_ = status.incarnation;
      beat_ = status.beat;
      since_ = monotonic_now();
    }
    if (status.beat != beat_)
      throw UserError(
          fmt::format("another agent of node {} is at work in this run: start one per node, each with a "
                      "number of its own",
                      node_));
    reason = fmt::format("an agent of node {} was there until a moment ago", node_);
    return seconds_since(since_) >= run_out_ && claim(store, status.incarnation, reason);
  }

 private:
  bool claim(KeyValueStore& store, const std::string& predecessor, std::string& reason) {
    if (predecessor != predecessor_) {
      predecessor_ = predecessor;
      round_ = 0;
      refused_at_.reset();
    }
    if (refused_at_ && seconds_since(*refused_at_) >= run_out_) {
      ++round_;
      refused_at_.reset();
    }
    if (!refused_at_) {
      if (store.add(fmt::format("{}/after/{}/{}", status_key(node_), predecessor, round_), 1) == 1) return true;
      refused_at_ = monotonic_now();
    }
    reason = fmt::format("another agent of node {} is about to come in", node_);
    return false;
  }

  std::int64_t node_;
  double run_out_;
  std::string incarnation_;
  std::uint64_t beat_ = 0;
  MonotonicTime since_{};
  std::string predecessor_;
  int round_ = 0;
  std::optional<MonotonicTime> refused_at_{};
};

}  // namespace

NodeWorld::NodeWorld(LaunchedWorld::Options options, double heartbeat)
    : options_(std::move(options)), lease_(agent_lease(heartbeat)) {}

std::unique_ptr<NodeWorld> NodeWorld::join(const LaunchedWorld::Options& options, double heartbeat,
                                           const RunBasis& basis, std::optional<SharedFailure>& refused) {
  std::unique_ptr<NodeWorld> world(new NodeWorld(options, heartbeat));
  if (options.place.rank == 0) {
    forget_refusal(options.paths);
    world->secret_ = options.secret.empty() ? make_secret() : options.secret;
    world->server_ = std::make_unique<RendezvousServer>(
        RendezvousServer::Options{.bind_address = rendezvous_bind_address(options),
                                  .port = options.port,
                                  .secret = world->secret_,
                                  .max_clients = static_cast<int>(options.place.world) + spare_clients});
    world->basis_ = basis;
    world->server_->local_store()->set(basis_key, to_text(basis));
    // A secret that everyone was given is not written down.
    world->file_ = {.address = world->server_->address(),
                    .secret = options.secret.empty() ? world->secret_ : "",
                    .job = options.place.job};
    write_rendezvous_file(options.paths, world->file_);
    return world;
  }
  PlaceWatch watch(options.place.rank, lease_run_out(world->lease_));
  // Before the place is taken: node 0 may be leaving.
  const auto come_in = [&watch, &world](KeyValueStore& store, std::string& reason) {
    world->basis_ = parse_basis(store.wait(basis_key, basis_seconds));
    return watch.is_free(store, reason);
  };
  auto entrance = find_rendezvous(options, std::nullopt, come_in, refused);
  if (!entrance) return nullptr;
  world->file_ = std::move(entrance->file);
  world->secret_ = options.secret.empty() ? world->file_.secret : options.secret;
  return world;
}

NodeWorld::~NodeWorld() {
  if (server_) remove_rendezvous_file(options_.paths, file_);
}

std::unique_ptr<KeyValueStore> NodeWorld::connect() const {
  if (server_) return server_->local_store();
  return connect_store(file_.address, secret_, lease_ / 4, std::nullopt, lease_ / 2);
}

std::string NodeWorld::workers_secret(const WorkersRendezvous& rendezvous) const {
  return derived_secret(secret_, rendezvous.salt);
}

WorkersRendezvous NodeWorld::serve_workers(std::int64_t world) {
  workers_.reset();
  WorkersRendezvous rendezvous{.address = {}, .salt = make_secret()};
  workers_ = std::make_unique<RendezvousServer>(
      RendezvousServer::Options{.bind_address = rendezvous_bind_address(options_),
                                .secret = workers_secret(rendezvous),
                                .max_clients = static_cast<int>(world) + spare_clients});
  rendezvous.address = workers_->address();
  return rendezvous;
}

}  // namespace scaletrain
