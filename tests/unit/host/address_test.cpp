#include "host/address.h"

#include <doctest/doctest.h>

#include <string>

#include "base/error.h"
#include "support/text.h"

namespace scaletrain {

TEST_CASE("an interface is found by name or address, and a wrong one is answered with those there are") {
  CHECK(address_of_interface("lo") == "127.0.0.1");
  CHECK(address_of_interface("127.0.0.1") == "127.0.0.1");
  CHECK(interface_of_address("127.0.0.1") == "lo");
  CHECK(interface_of_address("192.0.2.1").empty());
  try {
    address_of_interface("ib7");
    FAIL("expected a UserError");
  } catch (const UserError& error) {
    CHECK(std::string(error.what()).find("launch.interface: ") == 0);
    CHECK(contains(error.what(), "\"ib7\""));
    CHECK(contains(error.what(), "lo (127.0.0.1)"));
  }
}

TEST_CASE("the address towards this host is the one it is reached by") {
  CHECK(address_towards("127.0.0.1") == "127.0.0.1");
  CHECK_FALSE(address_towards("").empty());
  CHECK_THROWS_AS(address_towards("no such host"), PeerError);
}

}  // namespace scaletrain
