// Under which address other hosts find this one.
#pragma once

#include <string>

namespace scaletrain {

// The numeric address that launch.interface means: of the interface of that name, or the address itself. UserError if
// this host has neither; it lists what there is.
std::string address_of_interface(const std::string& interface);

// The name of this host's interface that has the address; empty: none has.
std::string interface_of_address(const std::string& address);

// The numeric address of this host's interface towards `host`, or towards the network at large if `host` is empty;
// "127.0.0.1" where there is no network. PeerError if `host` cannot be resolved.
std::string address_towards(const std::string& host);

}  // namespace scaletrain
