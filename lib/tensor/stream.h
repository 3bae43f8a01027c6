// An in-order queue of work on one device: what is issued to it runs one after the other, beside the host. A backend
// makes it (Backend::make_stream); there is no default stream.
#pragma once

namespace scaletrain {

class Stream {
 public:
  virtual ~Stream() = default;
  // Blocks the host until everything issued so far has run. For shutdown, tests and the host's backends.
  virtual void synchronize() = 0;
};

}  // namespace scaletrain
