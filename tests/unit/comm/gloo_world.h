// Ranks as threads of one process, each with a Gloo device of its own on the loopback interface: for tests.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/gloo/gloo_transport.h"
#include "comm/in_process/world.h"
#include "support/text.h"

namespace scaletrain {

// Runs function(rank) on a thread per rank and joins them; what each one threw, as text, or "".
template <class Function>
std::vector<std::string> run_each(int num_ranks, Function function) {
  std::vector<std::string> errors(static_cast<std::size_t>(num_ranks));
  std::vector<std::thread> threads;
  threads.reserve(errors.size());
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&errors, &function, rank] {
      try {
        function(rank);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

// The ranks of the world, [10, 10 + num_ranks): unlike their places in the group, so that messages tell them apart.
inline std::vector<Rank> world_ranks(int num_ranks) {
  std::vector<Rank> ranks;
  ranks.reserve(static_cast<std::size_t>(num_ranks));
  for (int rank = 0; rank < num_ranks; ++rank) ranks.emplace_back(10 + rank);
  return ranks;
}

// The secret of their job.
inline const std::string gloo_secret = "0123456789abcdef";

// A group "data" of connected transports, one per rank.
struct GlooWorld {
  explicit GlooWorld(int num_ranks) : stores(num_ranks) {
    const auto size = static_cast<std::size_t>(num_ranks);
    devices.resize(size);
    transports.resize(size);
    errors = run_each(num_ranks, [&](int rank) {
      const auto index = static_cast<std::size_t>(rank);
      devices[index] = std::make_unique<GlooDevice>("127.0.0.1", gloo_secret);
      transports[index] =
          devices[index]->connect(*stores.make_store(), "data", world_ranks(num_ranks), Rank(10 + rank), 60.0);
    });
  }
  Transport& rank(int index) { return *transports[static_cast<std::size_t>(index)]; }

  InProcessWorld stores;
  std::vector<std::unique_ptr<GlooDevice>> devices;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::string> errors;
};

}  // namespace scaletrain
