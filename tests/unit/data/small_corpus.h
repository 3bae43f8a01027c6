// A corpus of some ten batches of all kinds, its builds, and what they have written.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "data/corpus/corpus_build.h"
#include "data/tokens/tokenizer.h"
#include "packed_text.h"
#include "support/temp_folder.h"

namespace scaletrain::test {

// Megatron's pair as its format's description says, read without a line of the program's.
struct ReadPair {
  std::vector<std::vector<std::int64_t>> documents;
  int code = 0;
};
template <class T>
T number_at(const std::string& bytes, std::size_t offset) {
  if (offset + sizeof(T) > bytes.size())
    FAIL("the file ends before ", offset + sizeof(T));  // of each token: no REQUIRE
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}
inline ReadPair read_pair(const std::filesystem::path& stem) {
  const std::string idx = TempFolder::read(stem.string() + ".idx");
  const std::string bin = TempFolder::read(stem.string() + ".bin");
  ReadPair pair;
  REQUIRE(idx.substr(0, 9) == std::string("MMIDIDX\0\0", 9));
  REQUIRE(number_at<std::uint64_t>(idx, 9) == 1);
  pair.code = number_at<std::uint8_t>(idx, 17);
  REQUIRE((pair.code == 8 || pair.code == 4));
  const std::size_t width = pair.code == 8 ? 2 : 4;
  const auto sequences = number_at<std::uint64_t>(idx, 18);
  const auto entries = number_at<std::uint64_t>(idx, 26);
  REQUIRE(idx.size() == 34 + sequences * 12 + entries * 8);
  std::uint64_t end = 0;
  for (std::uint64_t d = 0; d + 1 < entries; ++d) {
    const auto first = number_at<std::int64_t>(idx, 34 + sequences * 12 + d * 8);
    const auto last = number_at<std::int64_t>(idx, 34 + sequences * 12 + (d + 1) * 8);
    pair.documents.emplace_back();
    for (auto s = static_cast<std::size_t>(first); s < static_cast<std::size_t>(last); ++s) {
      const auto length = number_at<std::int32_t>(idx, 34 + s * 4);
      const auto pointer = number_at<std::int64_t>(idx, 34 + sequences * 4 + s * 8);
      REQUIRE(static_cast<std::uint64_t>(pointer) == end);
      for (std::int32_t t = 0; t < length; ++t, end += width)
        pair.documents.back().push_back(width == 2 ? number_at<std::uint16_t>(bin, end)
                                                   : number_at<std::int32_t>(bin, end));
    }
  }
  REQUIRE(end == bin.size());
  return pair;
}

// As text; token 256 as '|'.
inline std::vector<std::string> texts_of(const std::filesystem::path& stem) {
  std::vector<std::string> texts;
  for (const auto& document : read_pair(stem).documents) {
    texts.emplace_back();
    for (const std::int64_t token : document) texts.back() += token == 256 ? '|' : static_cast<char>(token);
  }
  return texts;
}

inline std::string words(std::size_t seed, std::size_t size) {
  std::string text;
  for (std::size_t i = 0; text.size() < size; ++i) text += std::to_string((seed * 7919 + i) * 2654435761u % 9973) + " ";
  text.resize(size);
  return text;
}

inline std::string json_line(const std::string& text) {
  return nlohmann::json({{"id", 1}, {"text", text}}).dump() + "\n";
}

// What SmallCorpus has, made once: numbers are spelled by the million.
struct SmallCorpusText {
  std::vector<std::pair<std::string, std::string>> files;
  std::vector<std::string> documents;  // with '|'

  SmallCorpusText() {
    const auto keep = [this](const std::string& text) { documents.push_back(text + "|"); };
    files.emplace_back("in/a.txt", words(1, 4'500'001));
    keep(files.back().second);
    std::string lines;
    for (std::size_t i = 0; i < 1500; ++i) {
      const std::string text = i == 77 ? "" : words(i, i * 37 % 2999 + 1);
      lines += json_line(text) + (i % 100 == 3 ? "\n \t\n" : "");
      if (!text.empty()) keep(text);
    }
    files.emplace_back("in/b.jsonl", lines);
    std::string packed;
    for (std::size_t i = 0; i < 300; ++i) {
      packed += json_line(words(i + 9000, 501));
      keep(words(i + 9000, 501));
    }
    files.emplace_back("in/c/d.jsonl.gz", gzipped(packed.substr(0, 70'001)) + gzipped(packed.substr(70'001)));
    for (int i = 0; i < 9; ++i) {
      const std::string text = words(static_cast<std::size_t>(i) + 500, 1001);
      files.emplace_back("in/d/" + std::to_string(i) + ".txt.zst", zstandard(text));
      keep(text);
    }
  }
};

// A folder with text, JSONL of many lines, packed and not, and below, so that a build has some ten batches; one
// document is longer than four of them.
struct SmallCorpus {
  TempFolder folder;
  ByteTokenizer tokenizer;
  std::vector<std::string> messages;
  const std::vector<std::string>& documents = text().documents;

  SmallCorpus() {
    for (const auto& [name, bytes] : text().files) folder.write(name, bytes);
  }
  static const SmallCorpusText& text() {
    static const SmallCorpusText once;
    return once;
  }

  CorpusRequest request(const std::string& output) {
    CorpusRequest request;
    request.sources = {(folder / "in").string()};
    request.tokenizer = &tokenizer;
    request.tokenizer_name = "bytes";
    request.output = (folder / output).string();
    request.threads = 2;
    request.report = [this](const std::string& message) { messages.push_back(message); };
    return request;
  }
};

inline std::string all_bytes(const std::filesystem::path& stem) {
  return TempFolder::read(stem.string() + ".bin") + TempFolder::read(stem.string() + ".idx") +
         TempFolder::read(stem.string() + ".build.json");
}

struct Stopped {};

// Builds as one that is stopped at batch number `stop`; true once it was not.
inline bool build_until(CorpusRequest request, int stop) {
  int batches = 0;
  request.record_seconds = 0.0;
  request.progress = [&](std::uint64_t, std::uint64_t) {
    if (++batches > stop) throw Stopped();
  };
  try {
    build_corpus(request);
    return true;
  } catch (const Stopped&) {
    return false;
  }
}

}  // namespace scaletrain::test
