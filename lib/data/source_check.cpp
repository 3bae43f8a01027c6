#include "data/source_check.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/glob.h"
#include "data/corpus/corpus_output.h"
#include "data/instructions/instruction_encoder.h"
#include "data/instructions/instruction_record.h"
#include "data/instructions/instruction_source.h"
#include "data/parquet/parquet_file.h"
#include "data/source_files.h"
#include "data/tokens/json_lines.h"
#include "data/tokens/text_notes.h"
#include "data/tokens/text_reader.h"
#include "data/tokens/text_stream.h"
#include "data/tokens/token_cache.h"
#include "data/tokens/token_file.h"
#include "data/tokens/tokenizer.h"

namespace scaletrain {

namespace {

namespace fs = std::filesystem;

struct FirstLine {
  std::string text;
  LinePlace place;
};

constexpr std::size_t most_bytes_of_line = 4u << 20;

// That is not blank; nothing where the beginning of the file holds none as a whole.
std::optional<FirstLine> first_line(const TextFile& file) {
  constexpr std::size_t piece_bytes = 64u << 10;
  TextStream stream(file.path, file.compression);
  std::vector<char> piece(piece_bytes);
  FirstLine line{.text = {}, .place = {.offset = 0, .number = 1}};
  const auto is_blank = [&line] { return line.text.find_first_not_of(" \t\r") == std::string::npos; };
  for (std::size_t read = 0; read < most_bytes_of_line;) {
    const std::size_t size = stream.read(piece);
    if (size == 0) return is_blank() ? std::nullopt : std::optional(line);
    read += size;
    for (std::string_view rest(piece.data(), size); !rest.empty();) {
      const std::size_t newline = rest.find('\n');
      line.text += rest.substr(0, newline);
      if (newline == std::string_view::npos) break;
      if (!is_blank()) return line;
      line.place = {.offset = line.place.offset + line.text.size() + 1, .number = line.place.number + 1};
      line.text.clear();
      rest.remove_prefix(newline + 1);
    }
  }
  return std::nullopt;
}

// Throws what is wrong, as a start that reads the source would.
class SourceCheck {
 public:
  SourceCheck(const SourceSpec& spec, const DataConfig& config, const std::function<bool()>& is_over,
              const LookLimits& limits)
      : spec_(spec), config_(config), is_over_(is_over), limits_(limits), report_(limits.report) {}

  void run() {
    const std::vector<FoundFile> files = find_files(spec_, report_, nullptr, is_over_);
    // Of files that were not seen nothing can be told.
    if (is_over_()) return;
    check_keys_are_used(spec_, files);
    if (spec_.records == RecordKind::messages) look_at_template();
    UnreadableFiles unreadable;
    for (const FoundFile& file : files) {
      if (is_over_()) break;
      unreadable.look_at(file.path, [&] { look_at(file); });
    }
    unreadable.refuse();
    if (is_over_()) return;
    if (!has_content_) throw InputError(nothing_to_read(files));
  }
  // Of what was seen.
  bool has_text() const { return has_text_; }

 private:
  void look_at_template() {
    // A tokenizer that is not there is told as such; where one lies whose files are wrong, by whoever opens it.
    const auto& path = config_.tokenizer.path;
    const bool has_files = !path || path_exists(*path);
    if (!has_files && !config_.instructions.chat_template) return;
    const ChatTemplate chat = chat_template_of(config_, {});
    if (!has_files) return;
    const Tokenizer* tokenizer = open_tokenizer();
    if (tokenizer == nullptr || !tokenizer->reads_text()) return;
    // No record is encoded: any context does.
    const InstructionEncoder refuses({.records = spec_.records, .chat = chat, .context = 1}, *tokenizer);
  }

  // The config's; null where it cannot be made, which is told by whoever needs it.
  const Tokenizer* open_tokenizer() {
    if (std::exchange(has_looked_for_tokenizer_, true)) return tokenizer_.get();
    try {
      tokenizer_ = make_tokenizer(config_.tokenizer, std::nullopt);
    } catch (const InputError&) {
    } catch (const UserError&) {
    }
    return tokenizer_.get();
  }

  void look_at(const FoundFile& file) {
    if (file.kind == FileKind::tokens) {
      look_at_tokens(file);
    } else {
      look_at_text(file);
    }
  }

  void look_at_tokens(const FoundFile& file) {
    const auto tokens = open_source_tokens(spec_, file);
    has_content_ = has_content_ || tokens->num_tokens() > 0;
    fs::path record = tokens->path();
    if (path_exists(record.replace_extension(kRecordEnding)) && open_tokenizer() != nullptr)
      check_tokenizer(
          spec_, *tokens, *open_tokenizer(), [this] { return !limits_.has_begun || !limits_.has_begun(); }, report_);
    if (config_.documents.need_ends() && !ends_documents() && tokens->num_tokens() > 0 && tokens->one_document())
      throw hidden_documents_refusal(spec_, config_.documents, *tokens);
  }

  void look_at_text(const FoundFile& file) {
    if (config_.tokenizer.type == TokenizerKind::ids) throw text_refusal(spec_, file, "ids");
    if (file.kind == FileKind::parquet) {
      has_text_ = open_parquet(file.path, spec_.field)->num_rows() > 0 || has_text_;
      has_content_ = has_content_ || has_text_;
      return;
    }
    // Those whose kind no key tells were opened to find it.
    if (spec_.type != SourceKind::automatic && ::access(file.path.c_str(), R_OK) != 0)
      throw_file_error(file.path, "open", errno);
    std::error_code error;
    has_text_ = has_text_ || fs::file_size(file.path, error) > 0;
    has_content_ = has_content_ || has_text_;
    if (file.kind == FileKind::jsonl && config_.on_bad_record == BadRecordPolicy::fail && !has_record_)
      look_at_record(text_file(file));
    if (file.kind == FileKind::text && report_ && !std::exchange(has_seen_lines_, true)) look_at_lines(file.path);
  }

  // The first one: where it lacks the field, so do all of them as a rule.
  void look_at_record(const TextFile& file) {
    const std::optional<FirstLine> line = first_line(file);
    // One whose first line is beyond what is looked at was looked at, too: a folder has many.
    std::error_code error;
    has_record_ = line || fs::file_size(file.path, error) >= most_bytes_of_line;
    if (!line) return;
    const std::string where = line_text(file, line->place);
    try {
      if (spec_.records == RecordKind::text) {
        document_of_line(line->text, spec_.field, where);
      } else {
        parse_instruction(line->text, spec_.records, where);
      }
    } catch (const BadRecordError& error) {
      throw_bad_record(error, {.files = {}, .field = spec_.field, .separator = spec_.separator});
    }
  }

  void look_at_lines(const fs::path& file) const {
    TextNotes notes;
    try {
      if (json_lines_at_beginning(file) > 0) notes.add_json_lines(file.string());
    } catch (const InputError&) {  // what is damaged inside is told by whoever reads it
    }
    for (const std::string& line : notes.lines(spec_.key + ": " + spec_.path, jsonl_remedy(spec_))) report_(line);
  }

  bool ends_documents() const {
    return config_.tokenizer.type != TokenizerKind::ids || config_.tokenizer.end_of_document.has_value();
  }

  std::string nothing_to_read(const std::vector<FoundFile>& files) const {
    const std::string what = files.size() > 1 ? fmt::format("all of its {} files are empty", files.size())
                             : files.front().path == spec_.path
                                 ? "the file is empty"
                                 : fmt::format("its only file, {}, is empty", files.front().path.filename().string());
    return fmt::format("{}: {}: {}; give it text, JSONL or token files, or name another path", path_key(spec_),
                       spec_.path, what);
  }

  const SourceSpec& spec_;
  const DataConfig& config_;
  const std::function<bool()>& is_over_;
  const LookLimits& limits_;
  const Reporter& report_;
  bool has_content_ = false;
  bool has_text_ = false;
  bool has_record_ = false;      // was looked at
  bool has_seen_lines_ = false;  // of a file of text
  bool has_looked_for_tokenizer_ = false;
  std::unique_ptr<Tokenizer> tokenizer_;
};

// "KEY: what is wrong", where it begins with a key of the data; else with that of the path.
InputProblem problem_of(const SourceSpec& spec, const std::string& text, bool is_config) {
  const std::string key = text.substr(0, text.find(": "));
  if (key.starts_with(spec.key + ".") || key.starts_with("data.documents.") || key.starts_with("data.instructions.") ||
      key.starts_with("data.tokenizer"))
    return {.key = key, .message = text.substr(key.size() + 2), .is_config = is_config};
  return {.key = path_key(spec), .message = text, .is_config = is_config};
}

bool holds_tokenised_text(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error); !error && it != fs::directory_iterator(); it.increment(error))
    if (it->path().extension() == token_cache_extension) return true;
  return false;
}

// A folder that cannot be written to serves as long as all of the text is tokenised there: whoever reads it finds out.
std::optional<InputProblem> look_at_cache(const DataConfig& config) {
  const std::string key = "data.cache";
  try {
    const fs::path folder = cache_folder(config.cache);
    if (!holds_tokenised_text(folder)) check_folder_is_writable(folder);
    return std::nullopt;
  } catch (const UserError& user) {
    return InputProblem{.key = key, .message = std::string(user.what()).substr(key.size() + 2), .is_config = true};
  } catch (const InputError& input) {
    return InputProblem{
        .key = key,
        .message = fmt::format("{}; tokenised text is kept there: name another folder, here or in SCALETRAIN_CACHE",
                               input.what())};
  }
}

std::optional<InputProblem> look_at(const SourceSpec& spec, const DataConfig& config,
                                    const std::function<bool()>& is_over, const LookLimits& limits, bool& has_text) {
  std::error_code error;
  if (!fs::exists(spec.path, error) && !fs::exists(spec.path + ".idx", error) &&
      !(has_wildcards(spec.path) && is_folder(parse_pattern(spec.path).folder)))
    return std::nullopt;
  try {
    SourceCheck source(spec, config, is_over, limits);
    source.run();
    has_text = has_text || source.has_text();
    return std::nullopt;
  } catch (const UserError& user) {
    return problem_of(spec, user.what(), true);
  } catch (const FileAccessError& refused) {
    return problem_of(
        spec, fmt::format("{}; have the system let this user read it, or name another path", refused.what()), false);
  } catch (const InputError& input) {
    return problem_of(spec, input.what(), false);
  }
}

}  // namespace

std::vector<InputProblem> source_problems(const DataConfig& config, const LookLimits& limits) {
  const MonotonicTime begin = monotonic_now();
  const std::function<bool()> is_over = [&limits, begin] {
    return (limits.interrupted && limits.interrupted()) || seconds_since(begin) >= limits.seconds;
  };
  std::vector<InputProblem> problems;
  bool has_text = false;
  const auto add = [&](const SourceSpec& spec) {
    if (spec.path.empty() || is_over()) return;
    if (const auto problem = look_at(spec, config, is_over, limits, has_text)) problems.push_back(*problem);
  };
  for (std::size_t i = 0; i < config.train.size(); ++i) add(training_spec(config.train[i], i));
  for (std::size_t i = 0; i < config.validation.size(); ++i) {
    const ValidationConfig& set = config.validation[i];
    if (!set.held_out_of) add({validation_key(config, i), set.path, set.type, set.field, set.separator, set.records});
  }
  if (!has_text) return problems;
  if (const auto problem = look_at_cache(config)) problems.push_back(*problem);
  return problems;
}

}  // namespace scaletrain
