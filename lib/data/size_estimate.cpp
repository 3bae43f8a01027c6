#include "data/size_estimate.h"

#include <exception>
#include <filesystem>

#include "data/source_files.h"
#include "data/tokens/text_stream.h"

namespace scaletrain {

namespace {

namespace fs = std::filesystem;

enum class EstimatedKind { text, jsonl, parquet, tokens };

struct FoundBytes {
  std::uint64_t bytes = 0;
  EstimatedKind kind = EstimatedKind::text;
  bool is_compressed = false;
};

EstimatedKind estimated_kind(const fs::path& file, SourceKind type) {
  switch (type) {
    case SourceKind::text:
      return EstimatedKind::text;
    case SourceKind::jsonl:
      return EstimatedKind::jsonl;
    case SourceKind::parquet:
      return EstimatedKind::parquet;
    case SourceKind::tokens:
      return EstimatedKind::tokens;
    case SourceKind::automatic:
      break;
  }
  const fs::path extension = uncompressed_name(file).extension();
  if (extension == ".bin") return EstimatedKind::tokens;
  if (extension == ".parquet") return EstimatedKind::parquet;
  return extension == ".jsonl" || extension == ".ndjson" ? EstimatedKind::jsonl : EstimatedKind::text;
}

// As a run reads them; an index beside tokens holds none.
FoundBytes find_bytes(const SourceConfig& source) {
  FoundBytes found;
  for (const fs::path& file : list_files(source.path)) {
    std::error_code error;
    const auto bytes = fs::file_size(file, error);
    if (error || file.extension() == ".idx") continue;
    // Beside other files a run passes it over.
    if (source.type == SourceKind::automatic && uncompressed_name(file).extension() == ".json") continue;
    found.bytes += bytes;
    found.kind = estimated_kind(file, source.type);
    found.is_compressed =
        found.is_compressed || found.kind == EstimatedKind::parquet || compression_of(file) != Compression::none;
  }
  return found;
}

}  // namespace

std::optional<SizeEstimate> estimate_tokens(const SourceConfig& source, const TokenizerConfig& tokenizer,
                                            std::int64_t vocab) noexcept {
  // How much of a record is read, and how samples are packed, no size of a file tells.
  if (source.records != RecordKind::text) return std::nullopt;
  try {
    FoundBytes found = find_bytes(source);
    if (found.bytes == 0 || found.is_compressed) return std::nullopt;
    if (source.split)
      found.bytes = static_cast<std::uint64_t>(static_cast<double>(found.bytes) * (1.0 - source.split->validation));
    if (found.bytes == 0) return std::nullopt;
    if (found.kind == EstimatedKind::tokens) {
      // What token files keep is the smallest type that holds the vocabulary.
      constexpr std::int64_t most_of_16_bits = 1 << 16;
      const std::uint64_t width = vocab <= most_of_16_bits ? 2 : 4;
      return SizeEstimate{found.bytes / width, width == 2 ? "2 bytes a token" : "4 bytes a token"};
    }
    if (tokenizer.type != TokenizerKind::bytes) return std::nullopt;
    return SizeEstimate{found.bytes, found.kind == EstimatedKind::jsonl ? "at most a byte a token" : "a byte a token"};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace scaletrain
