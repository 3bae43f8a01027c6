// The JSON of a manifest; its digest, which no fuzzer guesses, is put before it. Accepted: file names stay in the
// folder, and what is written back reads as the same.
#include <string>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/format/manifest.h"
#include "fuzz/target.h"

namespace scaletrain {
namespace {

std::string with_digest(std::string_view json) {
  const std::string hashed = "\"," + std::string(json.substr(json.empty() ? 0 : 1));
  return "{\"digest\":\"" + to_hex(hash_text(hashed)) + hashed;
}

void check_name(const std::string& name) {
  SCALETRAIN_CHECK(!name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
                   name.find('\0') == std::string::npos);
}

void check_accepted(const Manifest& manifest) {
  for (const ManifestFile& file : manifest.files) check_name(file.name);
  for (const std::string& name : manifest.tokenizer_files) check_name(name);
  for (const ManifestTensor& tensor : manifest.tensors)
    for (const TensorPiece& piece : tensor.pieces) check_name(piece.file);
  const std::string text = manifest_text(manifest);
  SCALETRAIN_CHECK(manifest_text(parse_manifest(text, "written")) == text);
}

void parse(std::string_view text) {
  try {
    check_accepted(parse_manifest(text, "input"));
  } catch (const InputError&) {  // refused
  }
}

}  // namespace
}  // namespace scaletrain

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = scaletrain::fuzz::text_of(data, size);
  scaletrain::parse(text);
  scaletrain::parse(scaletrain::with_digest(text));
  return 0;
}
