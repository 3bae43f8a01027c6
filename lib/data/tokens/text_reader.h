// Internal to lib/data: the documents of text and JSONL files, in pieces.
#pragma once

#include <string_view>

#include "base/hash.h"
#include "data/tokens/token_cache.h"

namespace scaletrain {

class DocumentSink {
 public:
  virtual ~DocumentSink() = default;
  // The next bytes of the current document.
  virtual void text(std::string_view piece) = 0;
  // The current document is complete; it may be empty.
  virtual void end_document() = 0;
};

// Feeds all documents of the file to the sink, in bounded memory, and all its bytes to the hasher.
void read_documents(const TextFile& file, const TextSource& source, DocumentSink& sink, Hasher& hasher);

}  // namespace scaletrain
