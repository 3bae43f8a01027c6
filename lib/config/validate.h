// The rules that involve more than one key, and the defaults that depend on another key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/keys/key_table.h"
#include "config/layout_rules.h"

namespace scaletrain {

// 256 bytes and the end of a document.
inline constexpr std::int64_t kBytesVocab = 257;

enum class Origin {
  user,     // a config file: data and a length are required
  program,  // written by this program: may describe a model without a run
};

// kv_heads, ffn_hidden and (for a user's config) precision.compute and run.directory, as far as neither file nor preset
// gave them. `device`: what computes in place of run.device.
void fill_defaults(Config& config, Origin origin, std::optional<DeviceKind> device, const ReadContext& context,
                   std::vector<std::string>& notices);

// What is allowed and probably not meant: keys that the user gave and that have no effect beside the others.
void add_notices(const Config& config, const ReadContext& context, std::vector<std::string>& notices);

// Adds every broken rule to the context's diagnostics: at the first of the rule's keys that an override sets, else at
// the first that was given. A rule stays silent when one of its keys was refused already. A value of the file that an
// override has left without effect is dropped with a notice. `world`: the ranks that there will be, if they are known
// already. `device` as above.
void validate_config(Config& config, Origin origin, const std::optional<WorldSize>& world,
                     std::optional<DeviceKind> device, ReadContext& context, std::vector<std::string>& notices);

// Where a key stands: its own place, or the nearest section's above it that the file has.
Place place_of(const ReadContext& context, std::string path);

// Whether a key or a section above it was refused.
bool is_broken(const ReadContext& context, std::string path);

}  // namespace scaletrain
