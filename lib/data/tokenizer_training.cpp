#include "data/tokenizer_training.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "data/source_files.h"
#include "data/tokens/bpe/piece_counter.h"
#include "data/tokens/text_notes.h"
#include "data/tokens/text_reader.h"

namespace scaletrain {

namespace {

class CountingSink final : public DocumentSink {
 public:
  CountingSink(PieceCounter& counter, TokenizerTrainingResult& result) : counter_(counter), result_(result) {}

  void text(std::string_view piece) override {
    counter_.add(piece);
    size_ += piece.size();
  }
  // Documents without a byte are none.
  void end_document(std::uint64_t /*next*/) override {
    counter_.end_document();
    result_.documents += size_ > 0 ? 1 : 0;
    result_.bytes += size_;
    size_ = 0;
  }

 private:
  PieceCounter& counter_;
  TokenizerTrainingResult& result_;
  std::uint64_t size_ = 0;
};

std::vector<FoundFile> files_of(const TokenizerTrainingRequest& request, const std::string& path) {
  const SourceSpec spec{
      .key = "SOURCES", .path = path, .type = request.type, .field = request.field, .separator = request.separator};
  std::vector<FoundFile> files = find_files(spec, request.report);
  for (const FoundFile& file : files)
    if (file.kind == FileKind::tokens)
      throw UserError(fmt::format("{}: {} holds tokens; a tokenizer is trained on text or JSONL", path_key(spec),
                                  file.path.string()));
  return files;
}

}  // namespace

TokenizerTrainingResult train_tokenizer(const TokenizerTrainingRequest& request) {
  // What is wrong with the options is told before anything is read.
  train_bpe({}, request.options);
  TokenizerTrainingResult result;
  PieceCounter counter(text_of(request.pattern), std::max(request.threads, 1));
  CountingSink sink(counter, result);
  std::vector<std::vector<FoundFile>> files_of_sources;
  std::vector<FoundFile> all;
  for (const std::string& path : request.sources) {
    const std::vector<FoundFile>& files = files_of_sources.emplace_back(files_of(request, path));
    all.insert(all.end(), files.begin(), files.end());
  }
  check_options_are_used(request.separator, request.field, all);
  for (std::size_t i = 0; i < request.sources.size(); ++i) {
    TextSource source{.files = {},
                      .field = request.field,
                      .separator = request.separator,
                      .on_bad_record = request.on_bad_record,
                      .skip_setting = kSkipOption};
    TextNotes notes;
    for (const FoundFile& found : files_of_sources[i]) {
      const TextFile file = text_file(found);
      Hasher ignored;
      read_documents(file, source, sink, ignored, notes);
    }
    if (request.report)
      for (const std::string& line : notes.lines(
               request.sources[i], request.type == SourceKind::automatic ? jsonl_remedy_of("--type") : std::string()))
        request.report(line);
  }
  const std::vector<PieceCount> pieces = counter.finish();
  if (pieces.empty()) throw InputError("SOURCES: they hold no text; name files with some");
  result.pieces = pieces.size();
  result.trained = train_bpe(pieces, request.options);
  return result;
}

}  // namespace scaletrain
