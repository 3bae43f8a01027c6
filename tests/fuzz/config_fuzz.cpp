// A config file. Accepted: written out with all defaults it reads back as the same config.
#include <optional>
#include <string>

#include "base/error.h"
#include "config/load.h"
#include "fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace scaletrain;
  const std::string_view text = fuzz::text_of(data, size);
  const auto environment = [](const std::string& name) {
    return name == "HOME" ? std::optional<std::string>("/home/user") : std::nullopt;
  };
  try {
    const LoadedConfig loaded = parse_config(text, "config.yaml", "/data", {}, environment);
    const std::string resolved = resolved_yaml(loaded.config);
    SCALETRAIN_CHECK(resolved_yaml(parse_resolved_config(resolved, "resolved")) == resolved);
  } catch (const UserError&) {  // refused
  }
  try {
    parse_resolved_config(text, "config.yaml");
  } catch (const InputError&) {  // refused
  }
  return 0;
}
