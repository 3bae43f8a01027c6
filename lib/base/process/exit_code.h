// What the process tells its caller. A job script requeues on 75 only.
#pragma once

namespace scaletrain {

enum class ExitCode : int {
  finished = 0,      // done, or stopped early by policy
  bug = 1,           // a bug in this program
  usage = 2,         // bad command line or config
  input = 3,         // bad data or checkpoint, a file system that refuses, or no memory
  peer = 4,          // a peer or the network failed and restarts are used up
  diverged = 5,      // training diverged past policy
  no_progress = 6,   // no progress over several restarts: do not requeue
  interrupted = 75,  // state saved: run me again
};

}  // namespace scaletrain
