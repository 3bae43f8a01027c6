// Token files written by hand, byte by byte, from their formats' descriptions.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace scaletrain::test {

template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

template <class T>
std::string packed(const std::vector<int>& values) {
  std::string out;
  for (const int v : values) put<T>(out, static_cast<T>(v));
  return out;
}

// documents: for each document the lengths of its sequences.
inline std::string megatron_index(const std::vector<std::vector<int>>& documents, std::uint8_t code, int width) {
  std::vector<int> lengths;
  std::vector<std::int64_t> entries = {0};
  for (const auto& document : documents) {
    lengths.insert(lengths.end(), document.begin(), document.end());
    entries.push_back(static_cast<std::int64_t>(lengths.size()));
  }
  std::string out("MMIDIDX\0\0", 9);
  put<std::uint64_t>(out, 1);
  put<std::uint8_t>(out, code);
  put<std::uint64_t>(out, lengths.size());
  put<std::uint64_t>(out, entries.size());
  for (const int length : lengths) put<std::int32_t>(out, length);
  std::int64_t offset = 0;
  for (const int length : lengths) {
    put<std::int64_t>(out, offset);
    offset += std::int64_t{length} * width;
  }
  for (const std::int64_t entry : entries) put<std::int64_t>(out, entry);
  return out;
}

inline std::string llmc_header(std::size_t tokens, bool wide) {
  std::string out;
  put<std::int32_t>(out, wide ? 20240801 : 20240520);
  put<std::int32_t>(out, wide ? 7 : 1);
  put<std::int32_t>(out, static_cast<std::int32_t>(tokens));
  out.resize(1024, '\0');
  return out;
}

inline std::string llmc_file(const std::vector<int>& tokens, bool wide) {
  return llmc_header(tokens.size(), wide) + (wide ? packed<std::uint32_t>(tokens) : packed<std::uint16_t>(tokens));
}

}  // namespace scaletrain::test
