// Strangers at the rendezvous port of a job that runs: what they send is meant to stop it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace scaletrain {

struct RendezvousPlace {
  std::string host;
  std::uint16_t port = 0;
};

// Where a worker meets its peers, by its command line; nothing for a lone one or one that has ended.
std::optional<RendezvousPlace> rendezvous_of(pid_t worker);
// The secret that the worker was given, for what only one who has heard a member could send; empty if it has ended.
std::string secret_of(pid_t worker);

// A connection that neither waits nor minds being thrown out.
class Stranger {
 public:
  explicit Stranger(const RendezvousPlace& place);
  ~Stranger();
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  Stranger(Stranger&& other) noexcept;

  bool connected() const { return socket_ >= 0; }
  // As much as is taken.
  void send(std::string_view bytes) const;
  // What comes until it is enough, or the other side closes, or for so long.
  std::string receive(double seconds, const std::function<bool(const std::string&)>& is_enough = {}) const;
  // Whether the other side has closed within so many seconds, whatever it sent before.
  bool is_dropped(double seconds) const;

 private:
  int socket_ = -1;
};

// What each of them sends: other protocols, random bytes, impossible lengths, a frame of 4 GiB, broken hellos.
std::vector<std::string> hostile_texts();

// While it lives: as many connections that say half a sentence and wait, and one of each hostile text.
class Siege {
 public:
  Siege(const RendezvousPlace& place, int half_open);
  int half_open() const { return static_cast<int>(waiting_.size()); }

 private:
  std::vector<Stranger> waiting_;
};

}  // namespace scaletrain
