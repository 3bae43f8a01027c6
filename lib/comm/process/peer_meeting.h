// How the members of a group meet: a TCP connection between every two of them, and no one else.
//
// For as long as it takes, each member listens at one port, tells the address of it through the store, with a nonce,
// to those that come behind it in the group, and calls those that come before it. The caller proves in its first words
// that it knows the job's secret (HMAC-SHA-256 over group, places and both nonces), and the one that is called proves
// it in its answer. So a member's words lie there when its connection is taken up, and whoever else connects, talks,
// closes or says nothing is dropped and costs nothing but the time of dropping: strangers are few at any time, the
// oldest gives way to a newcomer, and a member that was dropped among them calls again.
//
//   caller                                              listener
//   hello: magic, own place, nonce, HMAC of a client  ->
//                                                     <-  HMAC of a server; the connection is the pair's from here on
//
// Not withstood: who can read and change what travels between hosts (README of the program: a network you trust).
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "base/numbers/strong.h"
#include "comm/rendezvous/key_value_store.h"

namespace scaletrain {

struct PeerMeeting {
  std::string name;           // of the group; unique among all meetings of the job
  std::vector<Rank> members;  // of the world, for messages
  int own = 0;                // this process's place among them
  std::string address;        // numeric, of this host: where to listen
  std::string secret;         // the job's
  double seconds = 300.0;     // for all to have come
};

// The connections by place, non-blocking; this process's own place has none. Nothing listens any more when it returns,
// and nothing of it stays in the store. PeerError that names the group and who is missing; UserError where this process
// may have no more descriptors. One thread per meeting; the store is used by no other meanwhile.
std::vector<FileDescriptor> meet_peers(KeyValueStore& store, const PeerMeeting& meeting);

}  // namespace scaletrain
