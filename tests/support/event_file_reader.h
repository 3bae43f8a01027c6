// Reads TensorBoard's event files by their description, sharing nothing with what writes them: TFRecord framing with
// its checksums bit by bit, and of the protobuf messages the fields that scalars need. Whatever is not as described is
// a failed test.
#pragma once

#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/temp_folder.h"

namespace scaletrain {

struct ReadEvent {
  double seconds = 0;
  std::int64_t step = 0;
  std::string version{};
  std::optional<std::int64_t> session{};  // SessionLog's status
  std::vector<std::pair<std::string, float>> scalars{};
};

class EventFileReader {
 public:
  static std::vector<ReadEvent> read(std::string_view bytes) {
    std::vector<ReadEvent> events;
    while (!bytes.empty()) {
      REQUIRE(bytes.size() >= 16);
      const auto size = number<std::uint64_t>(bytes);
      CHECK(number<std::uint32_t>(bytes.substr(8)) == masked(bytes.substr(0, 8)));
      REQUIRE(bytes.size() >= 16 + size);
      const std::string_view payload = bytes.substr(12, size);
      CHECK(number<std::uint32_t>(bytes.substr(12 + size)) == masked(payload));
      events.push_back(event(payload));
      bytes.remove_prefix(16 + size);
    }
    return events;
  }

  // What TensorBoard shows of a run's folder, by its rules: files in the order of their names; from the second
  // SessionLog.START on each drops what there is of its step and beyond. Every value of a tag at a step, in order.
  static std::map<std::string, std::map<std::int64_t, std::vector<float>>> shown(const std::filesystem::path& folder) {
    std::map<std::filesystem::path, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      files[entry.path()] = TempFolder::read(entry.path());
    std::map<std::string, std::map<std::int64_t, std::vector<float>>> out;
    bool has_started = false;
    for (const auto& [path, bytes] : files) {
      for (const ReadEvent& event : read(bytes)) {
        if (event.session == 1) {
          if (has_started)
            for (auto& [tag, values] : out) values.erase(values.lower_bound(event.step), values.end());
          has_started = true;
        }
        for (const auto& [tag, value] : event.scalars) out[tag][event.step].push_back(value);
      }
    }
    return out;
  }

 private:
  template <class Number>
  static Number number(std::string_view bytes) {
    REQUIRE(bytes.size() >= sizeof(Number));
    Number out;
    std::memcpy(&out, bytes.data(), sizeof(Number));
    return out;
  }
  static std::uint32_t masked(std::string_view bytes) {
    std::uint32_t rest = 0xffffffff;
    for (const char byte : bytes) {
      for (int bit = 0; bit < 8; ++bit) {
        const bool out = ((rest ^ (static_cast<unsigned char>(byte) >> bit)) & 1) != 0;
        rest = (rest >> 1) ^ (out ? 0x82f63b78u : 0u);
      }
    }
    rest = ~rest;
    return ((rest >> 15) | (rest << 17)) + 0xa282ead8u;
  }
  static std::uint64_t varint(std::string_view& bytes) {
    std::uint64_t out = 0;
    for (int shift = 0;; shift += 7) {
      REQUIRE((!bytes.empty() && shift < 64));
      const auto byte = static_cast<unsigned char>(bytes.front());
      bytes.remove_prefix(1);
      out |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return out;
    }
  }
  // Calls visit(field, value of a number, bytes) for each field.
  template <class Visit>
  static void for_each_field(std::string_view message, Visit visit) {
    while (!message.empty()) {
      const std::uint64_t key = varint(message);
      std::uint64_t value = 0;
      std::string_view bytes;
      std::size_t size = 0;
      switch (key & 7) {
        case 0:
          value = varint(message);
          break;
        case 1:
          value = number<std::uint64_t>(message);
          size = 8;
          break;
        case 2:
          size = varint(message);
          REQUIRE(size <= message.size());
          bytes = message.substr(0, size);
          break;
        case 5:
          value = number<std::uint32_t>(message);
          size = 4;
          break;
        default:
          FAIL("a wire type that is none: " << (key & 7));
      }
      message.remove_prefix(size);
      visit(static_cast<int>(key), value, bytes);
    }
  }
  // Keys are field << 3 | wire type, as event.proto and summary.proto have them.
  static ReadEvent event(std::string_view payload) {
    ReadEvent out;
    for_each_field(payload, [&out](int key, std::uint64_t value, std::string_view bytes) {
      switch (key) {
        case 1 << 3 | 1:
          out.seconds = std::bit_cast<double>(value);
          break;
        case 2 << 3 | 0:
          out.step = static_cast<std::int64_t>(value);
          break;
        case 3 << 3 | 2:
          out.version = bytes;
          break;
        case 5 << 3 | 2:
          for_each_field(bytes, [&out](int inner, std::uint64_t, std::string_view text) {
            CHECK(inner == (1 << 3 | 2));
            out.scalars.push_back(scalar(text));
          });
          break;
        case 7 << 3 | 2:
          for_each_field(bytes, [&out](int inner, std::uint64_t status, std::string_view) {
            CHECK(inner == (1 << 3 | 0));
            out.session = static_cast<std::int64_t>(status);
          });
          break;
        default:
          FAIL("a field that nobody writes: " << key);
      }
    });
    return out;
  }
  static std::pair<std::string, float> scalar(std::string_view message) {
    std::pair<std::string, float> out;
    for_each_field(message, [&out](int key, std::uint64_t value, std::string_view bytes) {
      if (key == (1 << 3 | 2))
        out.first = bytes;
      else if (key == (2 << 3 | 5))
        out.second = std::bit_cast<float>(static_cast<std::uint32_t>(value));
      else
        FAIL("a field that nobody writes: " << key);
    });
    return out;
  }
};

}  // namespace scaletrain
