// Internal to lib/data: the files behind a path of the config, and what each is read as. Nothing is read but the first
// bytes of files that no key and no name tells the kind of.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "config/config.h"
#include "data/dataset.h"
#include "data/tokens/token_cache.h"
#include "data/tokens/token_file.h"

namespace scaletrain {

struct SourceSpec {
  std::string key;  // for messages: "data.train.0"; or an option: "--data"; or an argument of a command: "SOURCES"
  std::string path;
  SourceKind type = SourceKind::automatic;
  std::string field;
  std::optional<std::string> separator;
  RecordKind records = RecordKind::text;
  std::optional<DocumentPart> part{};  // of the documents; nothing: all
};

// Of data.train[index].
SourceSpec training_spec(const SourceConfig& source, std::size_t index);

enum class FileKind { text, jsonl, parquet, tokens };

struct FoundFile {
  std::filesystem::path path;
  FileKind kind = FileKind::text;
};

// How a file that holds no tokens is read.
TextFile text_file(const FoundFile& file);

// One of a folder whose kind cannot be read.
struct RefusedFile {
  std::filesystem::path path;
  std::string problem;
};

// What names the path in messages: a key of the config or an option of the command line.
std::string path_key(const SourceSpec& spec);
// An option names the path, beside which no key says how it is read.
bool is_option(const SourceSpec& spec);
// The same of what holds documents out: "data.train.0.split".
std::string split_key(const SourceSpec& spec);

// How text under another name is read as JSONL, for messages; empty where a key or an option says that it is text.
std::string jsonl_remedy(const SourceSpec& spec);

// Nothing is under the name, not even a link: a file that was listed a moment ago had a temporary name.
bool is_gone(const std::filesystem::path& file);

// The files of a folder that cannot be read. The error that is thrown tells why of the first, and names a few of the
// others.
class UnreadableFiles {
 public:
  // What `look` throws of a file: an InputError is kept unless the file is gone meanwhile, all else passes through.
  template <class Look>
  void look_at(const std::filesystem::path& file, Look look) {
    try {
      look();
    } catch (const FileAccessError& error) {
      add(file, error.what(), true);
    } catch (const InputError& error) {
      add(file, error.what(), false);
    }
  }
  // InputError if there was one; FileAccessError if the first was.
  void refuse() const;

 private:
  void add(const std::filesystem::path& file, const std::string& problem, bool is_refused_access);

  std::string first_;
  bool is_refused_access_ = false;
  std::vector<std::string> others_;  // the names of some
  std::size_t num_others_ = 0;
};

// The files of a path: itself, all that is in the folder and below it, or what a pattern (base/glob.h) stands for; at
// least one, in the order of their paths, byte by byte. Names that begin with a dot are left out. So are pipes and
// sockets, and folders that a link leads back to, and that is reported. What is gone again when it is looked at is no
// file of the folder. UserError: no such path, a kind of file that cannot be read; InputError: what cannot be looked
// at, a folder or pattern without files.
//
// only: of the files of a folder or pattern those alone; null: all. How many that leaves out is reported.
// is_over: asked before each file of a folder; once it is true the rest is left out, be it all. May be empty.
// refused: takes those of a folder or pattern whose kind cannot be read, instead of the first being thrown; then it may
// be that no other one is found.
//
// JSON that is not JSONL (meta.json) is left out beside JSONL, Parquet, token files or .txt, and that is reported;
// otherwise `.json` is a kind that cannot be read.
//
// Shards of `data build` beside the files that they were merged to hold the same tokens: they are left out, and that is
// reported.
std::vector<FoundFile> find_files(const SourceSpec& spec, const Reporter& report, const SourceFiles* only = nullptr,
                                  const std::function<bool()>& is_over = {},
                                  std::vector<RefusedFile>* refused = nullptr);

// All that such a path may be read from, with indices of token files; none of them is opened. The tokens of a pair that
// is named without its endings may not be there. Throws as find_files() does.
std::vector<std::filesystem::path> list_files(const std::string& path);

// UserError for a separator or a field that no file of the source would use, for documents that are to be held out of
// token files, and for files that hold no such records.
void check_keys_are_used(const SourceSpec& spec, const std::vector<FoundFile>& files);

// The same of a command's --separator and --field, for the files of all its sources.
void check_options_are_used(const std::optional<std::string>& separator, const std::string& field,
                            const std::vector<FoundFile>& files);

// By its header. UserError for what the cache holds of instructions: it is cut for one context.
std::unique_ptr<TokenFile> open_source_tokens(const SourceSpec& spec, const FoundFile& file);

// A notice where its record says that another tokenizer made its ids, or that this may be; UserError where it is
// certain and refuses(), which is asked then alone.
void check_tokenizer(const SourceSpec& spec, const TokenFile& file, const Tokenizer& tokenizer,
                     const std::function<bool()>& refuses, const Reporter& report);

// Text, where the tokenizer reads token files only.
UserError text_refusal(const SourceSpec& spec, const FoundFile& file, const std::string& tokenizer);

// A token file that does not say where its documents end, which `documents` needs.
UserError hidden_documents_refusal(const SourceSpec& spec, const DocumentsConfig& documents, const TokenFile& file);

}  // namespace scaletrain
