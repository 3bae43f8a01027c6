#include "base/process/exit_status.h"

#include <atomic>
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/process/last_words.h"
#include "base/process/memory_limit.h"

namespace scaletrain {
namespace {

ExitStatus out_of_memory_status() {
  std::string words = memory_words();
  if (words.empty())
    words = "out of memory; `scaletrain check` prints what a run needs" + std::string(MemoryLimitText().view());
  return {ExitCode::input, std::move(words)};
}

std::atomic<std::string (*)()> limit_finder{nullptr};

std::string limit_words(const std::system_error& error) {
  if (error.code() != std::errc::resource_unavailable_try_again)
    return std::string(descriptor_remedy(error.code().value()));
  const auto find = limit_finder.load();
  return "; " + (find != nullptr ? find() : "raise the limits on processes and threads (ulimit -u, pids.max)");
}

}  // namespace

void set_limit_finder(std::string (*find)()) {
  limit_finder.store(find);
}

ExitStatus exit_status_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const UserError& user) {
    return {ExitCode::usage, user.what()};
  } catch (const InputError& input) {
    return {ExitCode::input, input.what()};
  } catch (const PeerError& peer) {
    return {ExitCode::peer, peer.what()};
  } catch (const DivergedError& diverged) {
    return {ExitCode::diverged, diverged.what()};
  } catch (const std::bad_alloc&) {
    return out_of_memory_status();
  } catch (const std::filesystem::filesystem_error& files) {
    return {ExitCode::input, files.what()};
  } catch (const std::system_error& system) {
    // A thread that could not be started, above all.
    if (is_out_of_memory(system)) return out_of_memory_status();
    return {ExitCode::peer,
            std::string("the system refused what the program asked for: ") + system.what() + limit_words(system)};
  } catch (const std::exception& bug) {
    return {ExitCode::bug, std::string("a bug: ") + bug.what() + "\nPlease report it with the config and this line."};
  } catch (...) {
    return {ExitCode::bug, "a bug: an exception of no known kind\nPlease report it with the config and this line."};
  }
}

}  // namespace scaletrain
