// A tokenizer with a chat template, and sources of instructions for it.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/tokens/tokenizer.h"
#include "dataset_scene.h"
#include "open_tokenizer.h"
#include "support/chat_tokenizer.h"

namespace scaletrain::test {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

inline json message(const std::string& role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

// Of chat_tokenizer.h.
struct Scene {
  TempFolder folder;
  std::filesystem::path path = write_chat_tokenizer(folder);
  std::unique_ptr<Tokenizer> tokenizer = open_bpe(path);
  DataConfig config = config_for(folder);
  std::vector<std::string> told;

  Scene() {
    config.tokenizer.type = TokenizerKind::bpe;
    config.tokenizer.path = path.string();
    config.documents.attention = DocumentAttention::within;
  }
  SourceConfig source(const std::string& name, const std::vector<json>& records,
                      RecordKind kind = RecordKind::messages) const {
    std::string lines;
    for (const json& record : records) lines += record.dump() + "\n";
    SourceConfig out = source_at(folder.write(name, lines));
    out.records = kind;
    return out;
  }
  DataOptions options(std::int64_t context) {
    DataOptions out = test::options(context);
    out.vocab = 259;
    out.report = [this](const std::string& line) { told.push_back(line); };
    return out;
  }
  bool has_told(const std::string& text) const {
    return std::any_of(told.begin(), told.end(),
                       [&](const std::string& line) { return line.find(text) != std::string::npos; });
  }
};

// A question and an answer of so many letters.
inline json small_chat(std::int64_t question, std::int64_t answer, char letter) {
  return {{"messages", json::array({message("user", std::string(static_cast<std::size_t>(question), letter)),
                                    message("assistant", std::string(static_cast<std::size_t>(answer), letter))})}};
}

}  // namespace scaletrain::test
