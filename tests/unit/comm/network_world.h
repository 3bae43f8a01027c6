// Ranks as threads of one process, each with a network of its own on the loopback interface: for tests.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/in_process/world.h"
#include "comm/process/process_network.h"
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

using Bytes = std::vector<std::byte>;

// Different for every message and at every place.
inline Bytes content(std::size_t size, unsigned seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 131 + i / 251 + seed * 17) & 0xff);
  return bytes;
}

// The secret of their job.
inline const std::string job_secret = "0123456789abcdef";

// How the members reach each other: whether a rank offers its memory. Types, for test cases over all of them.
struct ByMemory {
  static bool uses_memory(int /*rank*/) { return true; }
};
struct ByTcp {
  static bool uses_memory(int /*rank*/) { return false; }
};
// As on several hosts: rank 0 is reached by TCP, the others reach each other through memory.
struct ByBoth {
  static bool uses_memory(int rank) { return rank != 0; }
};

inline std::unique_ptr<ProcessNetwork> make_network(bool uses_memory = true, std::string address = "127.0.0.1") {
  return std::make_unique<ProcessNetwork>(
      ProcessNetwork::Options{.address = std::move(address), .secret = job_secret, .uses_memory = uses_memory});
}

// A group "data" of connected transports, one per rank.
template <class Ways>
struct NetworkWorld {
  explicit NetworkWorld(int num_ranks) : stores(num_ranks) {
    const auto size = static_cast<std::size_t>(num_ranks);
    networks.resize(size);
    transports.resize(size);
    errors = run_each(num_ranks, [&](int rank) {
      const auto index = static_cast<std::size_t>(rank);
      networks[index] = make_network(Ways::uses_memory(rank));
      transports[index] =
          networks[index]->connect(*stores.make_store(), "data", world_ranks(num_ranks), Rank(10 + rank), 60.0);
    });
  }
  Transport& rank(int index) { return *transports[static_cast<std::size_t>(index)]; }

  InProcessWorld stores;
  std::vector<std::unique_ptr<ProcessNetwork>> networks;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::string> errors;
};

}  // namespace scaletrain
