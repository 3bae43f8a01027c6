// A line of JSONL. What the quick reader of one member takes, the parser of all of JSON takes too, with the same string
// in it.
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "data/tokens/json_record.h"
#include "fuzz/target.h"

namespace scaletrain {
namespace {

void read(std::string_view line) {
  for (const char* const field : {"text", "a", ""}) {
    std::string found;
    if (!find_string_member(line, field, found)) continue;
    const nlohmann::json value = parse_json(line, "input", {.depth = 64, .bytes = line.size() + 1});
    SCALETRAIN_CHECK(value.is_object() && value.contains(field));
    SCALETRAIN_CHECK(value[field].is_string());
    SCALETRAIN_CHECK(value[field].get_ref<const std::string&>() == found);
  }
}

}  // namespace
}  // namespace scaletrain

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  scaletrain::read(scaletrain::fuzz::text_of(data, size));
  return 0;
}
