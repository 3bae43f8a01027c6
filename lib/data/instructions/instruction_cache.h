// Internal to lib/data: records of instructions, read, tokenised and packed into the file that samples are read from.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/block_reader.h"
#include "data/tokens/packed_file.h"
#include "data/tokens/text_notes.h"
#include "data/tokens/token_cache.h"

namespace scaletrain {

// Hears now and then how many bytes of the files were read.
using BytesRead = std::function<void(std::uint64_t bytes)>;

// All of it outlives the call.
struct InstructionReading {
  const TextSource& source;  // whose `instructions` say how
  const Tokenizer& tokenizer;
  const std::vector<FileContent>& contents;
  int threads = 1;   // that parse and tokenise; the bytes are the same for any number
  BytesRead read{};  // may be empty
};

// Writes all records of the source, and returns what there is to tell of the text; the file is not finished. A record
// longer than the context is cut there; one that has then nothing left to learn is left out. InputError if a file is
// not what `contents` says, or for a bad record that is not to be skipped: of several the first one in the text.
TextNotes write_instructions(const InstructionReading& reading, PackedWriter& writer, PackedCounts& told);

// What was packed, for people: "NAME: 1,000 conversations, ...".
std::vector<std::string> packed_lines(const std::string& name, const PackedFile& file, const InstructionRules& rules);

// One row as a sample: fewer tokens than the context are padded. A target is masked unless its token is learned,
// whatever `rules` say of documents.
void read_row(const PackedFile& file, std::int64_t row, const SampleRules& rules, const SampleBuffers& out);

}  // namespace scaletrain
