#include "train/start/start_up.h"

#include <fmt/format.h>

#include <exception>
#include <string_view>

#include "base/error.h"
#include "host/machine.h"

namespace scaletrain {

namespace {

// Tokenising a large corpus takes hours. Nothing is lost by waiting: whoever dies ends the store's waits.
constexpr double start_deadline = 24.0 * 3600.0;
constexpr std::string_view ready = "ready";
constexpr const char* first_data = "first-data";  // what rank 0 has opened
constexpr const char* notices = "notices";        // how many ranks have one
constexpr const char* first_notice = "first-notice";

// Where a host's first rank says that the data is open: the same for all processes that share a kernel, containers
// included.
std::string data_name() {
  const std::string boot = boot_id();
  return "data/" + (boot.empty() ? host_name() : boot);
}

}  // namespace

StartUp::StartUp(const WorkerPlace& place, std::int64_t generation) : place_(place), generation_(generation) {
  SCALETRAIN_CHECK((place.world > 1) == (place.rendezvous != nullptr));
}

std::string StartUp::key(const std::string& name) const {
  return fmt::format("start/{}/{}", generation_, name);
}

// What stands behind `ready`; PeerError for another word.
std::string StartUp::answer_of(const std::string& name) {
  const std::string answer = place_.rendezvous->wait(key(name), start_deadline);
  if (!answer.starts_with(ready)) throw PeerError("the start of the run failed on another rank: " + answer);
  return answer.substr(ready.size());
}

std::optional<std::string> StartUp::data_of_first(const std::string& own_word) {
  if (place_.rendezvous == nullptr) return std::nullopt;
  if (place_.rank != Rank(0)) return answer_of(first_data);
  place_.rendezvous->set(key(first_data), std::string(ready) + own_word);
  has_told_data_ = true;
  return std::nullopt;
}

void StartUp::first_on_host(const std::function<std::string(const std::string& found_by_first)>& open) {
  const bool is_first = place_.rendezvous == nullptr || place_.local_rank == 0;
  const std::string name = data_name();
  const std::string found = open(is_first ? "" : answer_of(name));
  if (is_first && place_.rendezvous != nullptr) place_.rendezvous->set(key(name), std::string(ready) + found);
}

void StartUp::tell_first(const std::string& notice) {
  if (place_.rendezvous == nullptr || place_.rank == Rank(0)) return;
  if (place_.rendezvous->add(key(notices), 1) == 1)
    place_.rendezvous->set(key(first_notice),
                           fmt::format("rank {} on {}: {}", place_.rank.value(), host_name(), notice));
}

std::string StartUp::told_by_another() {
  if (place_.rendezvous == nullptr || place_.rank != Rank(0)) return "";
  return place_.rendezvous->find(key(first_notice)).value_or("");
}

void StartUp::wait_for_all() {
  if (place_.rendezvous == nullptr) return;
  if (place_.rendezvous->add(key("arrived"), 1) == place_.world) place_.rendezvous->set(key("go"), std::string(ready));
  answer_of("go");
}

void StartUp::failed(const std::string& reason) noexcept {
  if (place_.rendezvous == nullptr) return;
  try {
    const std::string text = fmt::format("rank {}: {}", place_.rank.value(), reason);
    if (place_.local_rank == 0) place_.rendezvous->set(key(data_name()), text);
    if (place_.rank == Rank(0) && !has_told_data_) place_.rendezvous->set(key(first_data), text);
    place_.rendezvous->set(key("go"), text);
  } catch (const std::exception&) {
    return;  // without the store the others fail by themselves
  }
}

}  // namespace scaletrain
