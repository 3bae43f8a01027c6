// Internal to lib/data: one opening function per token file format. They read the header only; see TokenFile::verify().
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>

#include "base/file.h"
#include "data/tokens/token_file.h"

namespace scaletrain {

// First bytes of the formats that are told apart by them.
inline constexpr std::array<char, 8> kCacheMagic = {'S', 'C', 'T', 'O', 'K', 'E', 'N', 'S'};
inline constexpr std::array<char, 8> kPackedMagic = {'S', 'C', 'P', 'A', 'C', 'K', 'E', 'D'};
// The numbers 20240520 and 20240801 as little-endian int32.
inline constexpr std::array<char, 4> kLlmcMagic16 = {'\x88', '\xD8', '\x34', '\x01'};
inline constexpr std::array<char, 4> kLlmcMagic32 = {'\xA1', '\xD9', '\x34', '\x01'};

std::unique_ptr<TokenFile> open_megatron_file(const std::filesystem::path& bin, const std::filesystem::path& idx);
std::unique_ptr<TokenFile> open_llmc_file(const std::filesystem::path& path);
std::unique_ptr<TokenFile> open_cache_file(const std::filesystem::path& path,
                                           MappedFile::Keeping keeping = MappedFile::Keeping::is_reopened);

}  // namespace scaletrain
