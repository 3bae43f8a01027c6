#include "data/sources.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/numbers/checked.h"
#include "data/corpus/corpus_build.h"
#include "data/instructions/instruction_source.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// Changes when the files of a source would be laid end to end otherwise, and so its samples be others. Before there was
// such a number each file had samples of its own.
constexpr std::uint64_t kJoiningRules = 1;

// Changes when the parts of a source that grew would be cut or mixed otherwise.
constexpr std::uint64_t kGrowingRules = 1;

// All files that the source is read from, in order.
std::vector<fs::path> paths_of(const std::vector<FoundFile>& files,
                               const std::vector<std::unique_ptr<TokenFile>>& tokens) {
  std::vector<fs::path> paths;
  for (const FoundFile& file : files)
    if (file.kind != FileKind::tokens) paths.push_back(file.path);
  for (const auto& file : tokens) {
    if (!file) continue;
    const std::vector<fs::path> more = file->files();
    paths.insert(paths.end(), more.begin(), more.end());
  }
  return paths;
}

const SourceFiles* find_only(const SourceSpec& spec, std::span<const SourceFiles> all) {
  const auto found = std::find_if(all.begin(), all.end(), [&spec](const SourceFiles& files) {
    return files.key == spec.key && files.path == hash_text(spec.path);
  });
  return found == all.end() ? nullptr : &*found;
}

class OpenFoundSource final : public FoundSource {
 public:
  OpenFoundSource(SourceSpec spec, const Tokenizer& tokenizer, const DataConfig& config, const DataOptions& options)
      : spec_(std::move(spec)),
        tokenizer_(tokenizer),
        config_(config),
        options_(options),
        files_(find_files(spec_, options.report, find_only(spec_, options.only))) {
    check_keys_are_used(spec_, files_);
    if (spec_.records != RecordKind::text) {
      rules_ = instruction_rules(spec_.records, config_, tokenizer_, options_.context, spec_.key);
      const InstructionEncoder refuses(*rules_, tokenizer_);
    }
    for (const FoundFile& file : files_) {
      if (file.kind != FileKind::tokens && !tokenizer_.reads_text())
        throw text_refusal(spec_, file, tokenizer_.description());
      token_files_.push_back(file.kind == FileKind::tokens ? open_source_tokens(spec_, file) : nullptr);
      // Of a run whoever starts it has refused what is to be (source_check.h); it goes on with what it has begun with.
      if (file.kind == FileKind::tokens)
        check_tokenizer(
            spec_, *token_files_.back(), tokenizer_, [this] { return is_option(spec_); }, options_.report);
    }
    content_.key = spec_.key;
    content_.path = spec_.path;
    content_.stamps = stamps_hash(paths_of(files_, token_files_));
    if (!take_known()) verify();
  }

  const std::vector<std::uint64_t>& files() const override { return content_.holds; }

  OpenedSource open(const std::vector<std::vector<std::size_t>>& parts) override {
    if (!record_ && !open_known_texts(parts)) verify();
    if (record_) open_texts(parts);
    std::vector<std::uint64_t> identities;
    std::vector<OpenedPart> opened;
    content_.tokens = 0;
    left_out_ = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) opened.push_back(open_part(parts[i], i, identities));
    if (content_.tokens == 0 && left_out_ > 0)
      throw InputError(fmt::format(
          "{}: {}: no answer of its {} begins within model.context {}, so that nothing is learned; raise the context",
          path_key(spec_), spec_.path, grouped_count(left_out_, "record"), options_.context));
    if (content_.tokens == 0 && spec_.part)
      throw InputError(
          fmt::format("{}: {}: no document falls to the {:g} % that are {}; choose another share, or name more {}",
                      split_key(spec_), spec_.path,
                      100.0 * (spec_.part->is_held_out ? spec_.part->held_out : 1.0 - spec_.part->held_out),
                      spec_.part->is_held_out ? "held out" : "trained on",
                      has_whole_texts() ? "documents: without a separator a file of text is one" : "records"));
    if (content_.tokens == 0)
      throw InputError(fmt::format("{}: {}: there is nothing to read: no document", spec_.key, spec_.path));
    if (record_) {
      if (identities.size() > 1) identities.push_back(kGrowingRules);
      content_.identity = identities.size() == 1 ? identities[0] : hash_bytes(std::as_bytes(std::span(identities)));
    }
    return {std::move(opened), std::move(content_)};
  }

 private:
  // Files of text that are a document each.
  bool has_whole_texts() const {
    return !spec_.separator &&
           std::any_of(files_.begin(), files_.end(), [](const FoundFile& file) { return file.kind == FileKind::text; });
  }

  // Without reading: another process of this host has, and the files are the same ones. False if it has not.
  bool take_known() {
    const auto known = std::find_if(options_.known.begin(), options_.known.end(), [this](const SourceContent& content) {
      return content.key == spec_.key && content.path == spec_.path && content.stamps == content_.stamps &&
             content.holds.size() == files_.size();
    });
    if (known == options_.known.end()) return false;
    content_ = *known;
    return true;
  }

  // Reads what has to be read, which is then known by record_.
  void verify() {
    std::vector<fs::path> folders = cache_folders(config_.cache);
    if (!options_.caches_anywhere && !folders.empty()) folders.resize(1);
    record_.emplace(ContentRecord::Options{
        .source = spec_.path, .folders = std::move(folders), .check = config_.verify, .report = options_.report});
    content_.holds.assign(files_.size(), 0);
    content_.files.clear();
    content_.has_all_files = true;
    identities_.assign(files_.size(), 0);
    texts_.assign(files_.size(), {});
    verify_tokens();
    verify_text();
    record_->save();  // what comes now may take hours
  }

  void verify_tokens() {
    Hasher all_bytes;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (!token_files_[i]) continue;
      TokenFile& tokens = *token_files_[i];
      const std::vector<fs::path> paths = tokens.files();
      identities_[i] = record_->hash_of(ContentKind::tokens, paths, tokens.bytes_to_verify(), [&tokens] {
        tokens.verify();
        return tokens.identity();
      });
      const std::array<std::uint64_t, 2> numbers = {static_cast<std::uint64_t>(tokens.num_tokens()), identities_[i]};
      content_.holds[i] = hash_bytes(std::as_bytes(std::span(numbers)));
      FileContent content{files_[i].path, stamp_of(paths.front()).bytes, identities_[i]};
      if (config_.verify == DataCheck::all) {
        std::uint64_t bytes = 0;
        for (const fs::path& file : paths) bytes += stamp_of(file).bytes;
        content.hash = record_->hash_of(ContentKind::bytes, paths, bytes, [&paths] { return hash_of_files(paths); });
        all_bytes.update(std::as_bytes(std::span(&content.hash, 1)));
        content_.all_bytes = all_bytes.digest();
      }
      content_.files.push_back(std::move(content));
    }
  }

  void verify_text() {
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < files_.size(); ++i)
      if (!token_files_[i]) places.push_back(i);
    if (places.empty()) return;
    const TextSource text = text_of(places);
    const std::vector<FileContent> contents = contents_of(text, *record_);
    for (std::size_t k = 0; k < places.size(); ++k) {
      texts_[places[k]] = contents[k];
      content_.holds[places[k]] = text_identity(text, k, contents[k], tokenizer_);
    }
    content_.files.insert(content_.files.end(), contents.begin(), contents.end());
  }

  TextSource text_of(const std::vector<std::size_t>& places) const {
    TextSource text{.files = {},
                    .field = spec_.field,
                    .separator = spec_.separator,
                    .on_bad_record = config_.on_bad_record,
                    .instructions = rules_,
                    .part = spec_.part,
                    .skip_setting = is_option(spec_) ? "" : TextSource().skip_setting};
    for (const std::size_t i : places)
      if (!token_files_[i]) text.files.push_back(text_file(files_[i]));
    return text;
  }

  // False if one is not there as the other process has left it.
  bool open_known_texts(const std::vector<std::vector<std::size_t>>& parts) {
    caches_.clear();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      caches_.emplace_back();
      if (text_of(parts[i]).files.empty()) continue;
      if (content_.caches.size() == parts.size())
        caches_[i] = open_verified_cache(content_.caches[i].path, content_.caches[i].identity);
      if (!caches_[i]) return false;
    }
    return true;
  }

  void open_texts(const std::vector<std::vector<std::size_t>>& parts) {
    caches_.clear();
    content_.caches.clear();
    for (const std::vector<std::size_t>& part : parts) {
      caches_.emplace_back();
      content_.caches.emplace_back();
      const TextSource text = text_of(part);
      if (text.files.empty()) continue;
      std::vector<FileContent> contents;
      for (const std::size_t i : part)
        if (!token_files_[i]) contents.push_back(texts_[i]);
      const CacheRequest request{text,
                                 contents,
                                 tokenizer_,
                                 *record_,
                                 options_.report,
                                 spec_.key + ": " + spec_.path,
                                 options_.threads,
                                 options_.progress,
                                 jsonl_remedy(spec_)};
      caches_.back() = options_.caches_anywhere ? open_token_cache_anywhere(request, cache_folders(config_.cache))
                                                : open_token_cache(request, cache_folder(config_.cache));
      content_.caches.back() = {caches_.back()->path().string(), caches_.back()->identity()};
    }
    record_->save();
  }

  // In order: the token files, and the cache of all text where the first text file stands.
  OpenedPart open_part(const std::vector<std::size_t>& places, std::size_t part,
                       std::vector<std::uint64_t>& identities) {
    OpenedPart opened;
    std::vector<std::uint64_t> numbers;  // of contents and order
    std::vector<std::unique_ptr<TokenFile>> files;
    const auto add = [&](std::unique_ptr<TokenFile> file, std::uint64_t identity) {
      if (const auto* packed = dynamic_cast<const PackedFile*>(file.get())) left_out_ += packed->counts().left_out;
      if (file->num_tokens() == 0) return;
      content_.tokens = checked_add(content_.tokens, file->num_tokens());
      numbers.push_back(static_cast<std::uint64_t>(file->num_tokens()));
      numbers.push_back(identity);
      files.push_back(std::move(file));
    };
    for (const std::size_t i : places) {
      opened.files.push_back(content_.holds[i]);
      if (token_files_[i]) {
        add(std::move(token_files_[i]), record_ ? identities_[i] : 0);
      } else if (caches_[part]) {
        add(std::move(caches_[part]), content_.caches[part].identity);
      }
    }
    if (numbers.size() > 2) numbers.push_back(kJoiningRules);
    identities.push_back(hash_bytes(std::as_bytes(std::span(numbers))));
    if (files.empty()) return opened;
    if (rules_) {
      SCALETRAIN_CHECK_EQ(files.size(), std::size_t{1});
      opened.packed.reset(dynamic_cast<PackedFile*>(files.front().release()));
      SCALETRAIN_CHECK(opened.packed != nullptr);
      return opened;
    }
    opened.tokens = std::make_unique<JoinedTokens>(std::move(files));
    const TokenFile* unknown = opened.tokens->first_without_index();
    if (config_.documents.need_ends() && !tokenizer_.end_of_document() && unknown != nullptr)
      throw hidden_documents_refusal(spec_, config_.documents, *unknown);
    return opened;
  }

  SourceSpec spec_;
  const Tokenizer& tokenizer_;
  const DataConfig& config_;
  const DataOptions& options_;
  std::vector<FoundFile> files_;
  std::vector<std::unique_ptr<TokenFile>> token_files_;  // of each file; nothing: it is text
  std::optional<InstructionRules> rules_;                // of a source of instructions
  SourceContent content_;
  std::uint64_t left_out_ = 0;  // records of instructions that the context cuts before their answers
  // Only where this process has read the files itself; then also, of each file:
  std::optional<ContentRecord> record_;
  std::vector<std::uint64_t> identities_;  // TokenFile::identity()
  std::vector<FileContent> texts_;
  std::vector<std::unique_ptr<TokenFile>> caches_;  // of each part
};

}  // namespace

std::unique_ptr<FoundSource> find_source(const SourceSpec& spec, const Tokenizer& tokenizer, const DataConfig& config,
                                         const DataOptions& options) {
  return std::make_unique<OpenFoundSource>(spec, tokenizer, config, options);
}

}  // namespace scaletrain
