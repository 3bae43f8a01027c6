#include "base/process/exit_status.h"

#include <filesystem>
#include <new>
#include <system_error>

#include "base/error.h"

namespace scaletrain {

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
    return {ExitCode::input, "out of memory; `scaletrain check` prints what a run needs"};
  } catch (const std::filesystem::filesystem_error& files) {
    return {ExitCode::input, files.what()};
  } catch (const std::system_error& system) {
    // A thread that could not be started, above all.
    return {ExitCode::peer,
            std::string("the system refused what the program asked for: ") + system.what() +
                "; raise the limits on processes, threads and memory (ulimit -u, the container's pids.max)"};
  } catch (const std::exception& bug) {
    return {ExitCode::bug, std::string("a bug: ") + bug.what() + "\nPlease report it with the config and this line."};
  } catch (...) {
    return {ExitCode::bug, "a bug: an exception of no known kind\nPlease report it with the config and this line."};
  }
}

}  // namespace scaletrain
