// How the agents of a run find each other, and the workers of each round. The first place's agent serves the agents'
// rendezvous and says where in RUN/rendezvous.json; the others read that file, less and less often, until they have
// come in. A file that is left over from another start is known by its job, or by a server that is gone or refuses the
// secret. An agent may come late, or again after its place was lost: the place of one of whom nothing was heard for
// longer than a lease is free. An agent without others meets nobody: no file is written and no port is opened but the
// one of its workers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/in_process/world.h"
#include "comm/rendezvous/key_value_store.h"
#include "comm/rendezvous/rendezvous.h"
#include "host/launcher.h"
#include "launch/coordination/messages.h"
#include "launch/meeting/rendezvous_file.h"
#include "launch/watch/wait_notice.h"

namespace scaletrain {

class Meeting {
 public:
  struct Options {
    RunPaths paths;
    LauncherPlace place;
    double heartbeat = 60.0;  // seconds; the lease follows from it
    std::string secret{};     // SCALETRAIN_SECRET, if it is set; else the first place makes one
    // launch.interface: where the first place serves; nothing: this host's loopback if the launcher says that all
    // places are on it, else the address towards the network at large.
    std::optional<std::string> interface {};
    std::uint16_t port = 0;        // launch.port; 0: any free one
    double seconds = 300.0;        // for the first place to be found
    double believed_after = 15.0;  // see EndNoteWatch
    std::function<bool()> interrupted{};
    // Hears that this place waits for the first, after a while and then seldom; empty: nobody does.
    std::function<void(const std::string&)> waiting{};
    WaitNotice notice{};  // when
  };

  // The first place (the run folder exists and is locked by this process): serves at once; its basis is what the others
  // find. The others: come in, or nothing when interrupted. PeerError: nobody was found within the time, or a note says
  // that the start has ended, which is then in `noted`. UserError where another agent of the same place is there.
  static std::unique_ptr<Meeting> join(const Options& options, const RunBasis& basis, std::optional<ExitStatus>& noted);
  // The first place's file goes.
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  const LauncherPlace& place() const { return options_.place; }
  // A store of its own for each thread. PeerError where no connection is had within a quarter of the lease.
  std::unique_ptr<KeyValueStore> connect() const;
  // The first place's.
  const RunBasis& basis() const { return basis_; }
  double lease() const { return lease_; }
  bool is_serving() const { return server_ != nullptr || alone_ != nullptr; }

  // The first place: a rendezvous for the workers of a new round; that of the last one ends. A single worker needs
  // none.
  WorkersRendezvous serve_workers(std::int64_t world, bool is_one_host);
  // Of a round's workers, which follows from the agents' own.
  std::string workers_secret(const WorkersRendezvous& rendezvous) const;

 private:
  explicit Meeting(Options options);
  void serve(const RunBasis& basis);

  Options options_;
  double lease_;
  RendezvousFile file_{};
  std::string secret_{};
  RunBasis basis_{};
  std::unique_ptr<RendezvousServer> server_{};
  std::unique_ptr<InProcessWorld> alone_{};  // the store of an agent without others
  std::unique_ptr<RendezvousServer> workers_{};
};

}  // namespace scaletrain
