#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/format/confined_path.h"
#include "checkpoint/hugging_face/hugging_face.h"
#include "checkpoint/hugging_face/hugging_face_config.h"

namespace scaletrain {

namespace {

std::vector<std::int64_t> ids_of(const nlohmann::json& config, const char* key, const std::string& where) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return {};
  std::vector<std::int64_t> ids;
  for (const nlohmann::json& id : found->is_array() ? *found : nlohmann::json::array({*found})) {
    // Some files have -1 for none.
    if (!id.is_number_integer()) throw InputError(fmt::format("{}: \"{}\" is no token's id", where, key));
    if (id.get<std::int64_t>() >= 0) ids.push_back(id.get<std::int64_t>());
  }
  return ids;
}

std::optional<std::int64_t> first_of(const std::vector<std::int64_t>& ids) {
  return ids.empty() ? std::nullopt : std::optional(ids.front());
}

}  // namespace

SpecialTokens read_special_tokens(const std::filesystem::path& folder, const std::string& file) {
  const auto path = confined_path(folder, file, folder.string());
  const std::string where = path.string();
  const nlohmann::json config = read_json_file(path);
  if (!config.is_object()) throw InputError(where + ": is not a JSON object");
  return {.begin = first_of(ids_of(config, "bos_token_id", where)),
          .end = ids_of(config, "eos_token_id", where),
          .pad = first_of(ids_of(config, "pad_token_id", where))};
}

nlohmann::ordered_json ids_json(const std::vector<std::int64_t>& ids) {
  if (ids.size() > 1) return ids;
  return ids.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(ids.front());
}

}  // namespace scaletrain
