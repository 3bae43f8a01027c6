// NCCL's library as it is loaded: the one of this machine, if it has one, and what is none.
#include <doctest/doctest.h>

#include <string>

#include "backend/cuda/nccl_calls.h"

using namespace scaletrain::cuda;

TEST_CASE("every function of NCCL that is called is in the library of this machine, which tells its version") {
  const LoadedNccl loaded = load_nccl("libnccl.so.2");
  if (!loaded.calls) {
    MESSAGE("skipped: NCCL: " << loaded.obstacle);
    return;
  }
  int version = 0;
  CHECK(loaded.calls->get_version(&version) == ncclSuccess);
  // Of the header's major version, by which its functions are declared.
  CHECK(version / 10000 == NCCL_VERSION_CODE / 10000);
  CHECK(std::string(loaded.calls->get_error_string(ncclInvalidArgument)).find("argument") != std::string::npos);
}

TEST_CASE("a library that is not there, or that lacks a function, is told by name") {
  CHECK(load_nccl("/nowhere/libnccl.so.2").obstacle.starts_with("/nowhere/libnccl.so.2 is not found ("));
  const LoadedNccl other = load_nccl(OTHER_LIBRARY);
  CHECK_FALSE(other.calls);
  CHECK(other.obstacle == std::string(OTHER_LIBRARY) + " is too old: it has no ncclGetUniqueId");
}
