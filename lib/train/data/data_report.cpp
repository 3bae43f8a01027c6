#include "train/data/data_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "base/text.h"
#include "config/keys/keys.h"

namespace scaletrain {

namespace {

constexpr std::size_t reported_sources = 12;  // the metrics have all

std::string grouped(std::int64_t count, std::string_view noun) {
  return grouped_count(static_cast<std::uint64_t>(count), noun);
}

// 3.84, 1.00, 0.0031: three digits that say something.
std::string epochs_text(std::int64_t samples, std::int64_t samples_per_epoch) {
  const double epochs = static_cast<double>(samples) / static_cast<double>(samples_per_epoch);
  return epochs >= 0.1 || samples == 0 ? fmt::format("{:.2f}", epochs) : fmt::format("{:.2g}", epochs);
}

std::string left_text(const SourceRecord& source) {
  if (source.taken == 0) return "none of it read yet";
  const std::string read = fmt::format("{} epochs read, ", epochs_text(source.taken, source.samples));
  if (!source.cap)
    return read + grouped(source.samples - source.taken % source.samples, "sample") + " of this epoch left";
  const std::int64_t left = std::max<std::int64_t>(0, *source.cap - source.taken);
  return read + grouped(left, "sample") + " of its cap left";
}

std::string files_text(std::size_t count) {
  return grouped_count(count, "file");
}

std::vector<std::uint64_t> files_of(const MixSource& source) {
  std::vector<std::uint64_t> files;
  for (const MixPart& part : source.parts) files.insert(files.end(), part.files.begin(), part.files.end());
  std::sort(files.begin(), files.end());
  return files;
}

// How many files are missing here of the absent source that had most of these.
std::string lost_files(const MixSource& source, const std::vector<MixSource>& absent) {
  const std::vector<std::uint64_t> files = files_of(source);
  std::size_t most = 0;
  std::string text;
  for (const MixSource& other : absent) {
    const std::vector<std::uint64_t> before = files_of(other);
    std::vector<std::uint64_t> both;
    std::set_intersection(files.begin(), files.end(), before.begin(), before.end(), std::back_inserter(both));
    if (both.size() <= most) continue;
    most = both.size();
    text = fmt::format(" (of the {} that the run has read from, {} {} not there or changed)", files_text(before.size()),
                       before.size() - most, before.size() - most == 1 ? "is" : "are");
  }
  return text;
}

// The same sources in their order, with the same weights and caps, whatever files they have gained.
bool has_same_mix(const std::vector<MixSource>& sources, const std::vector<MixSource>& before) {
  return std::equal(
      sources.begin(), sources.end(), before.begin(), before.end(), [](const MixSource& a, const MixSource& b) {
        const auto epochs = [](const MixSource& source) {
          return source.cap
                     ? std::optional(static_cast<double>(*source.cap) / static_cast<double>(source.samples_per_epoch))
                     : std::nullopt;
        };
        const auto one = epochs(a);
        const auto other = epochs(b);
        const bool is_same_cap = one && other ? std::abs(*one - *other) < 1e-6 : !one && !other;
        return a.order == b.order && a.weight == b.weight && is_same_cap;
      });
}

double held_out_share(const SourceConfig& source) {
  return source.split ? source.split->validation : 0.0;
}

// What decides which documents a source gives, besides its files, and is another now: "KEY (was A, is B)".
std::vector<std::string> changed_settings(const SourceConfig& before, const SourceConfig& now,
                                          const DataChange& configs, const std::string& key) {
  std::vector<std::string> changed;
  const auto compare = [&changed](std::string_view name, std::string_view was, std::string_view is) {
    if (was != is) changed.push_back(fmt::format("{} (was {}, is {})", name, was, is));
  };
  const auto share_text = [](const SourceConfig& source) {
    return source.split ? fmt::format("{:g} %", 100.0 * source.split->validation) : std::string("none");
  };
  compare(key + ".split", share_text(before), share_text(now));
  compare(key + ".records", to_text(before.records), to_text(now.records));
  if (before.records != now.records) return changed;
  if (now.records != RecordKind::text) {
    const auto template_of = [](const DataConfig& data) {
      return data.instructions.chat_template.value_or("the tokenizer's own");
    };
    compare("data.instructions.loss", to_text(configs.before.instructions.loss),
            to_text(configs.now.instructions.loss));
    if (now.records == RecordKind::messages)
      compare("data.instructions.chat_template", template_of(configs.before), template_of(configs.now));
  } else {
    const auto separator_text = [](const SourceConfig& source) {
      return source.separator ? fmt::format("\"{}\"", *source.separator) : std::string("none");
    };
    compare(key + ".separator", separator_text(before), separator_text(now));
    compare(key + ".field", before.field, now.field);
  }
  if (now.type != SourceKind::text && now.type != SourceKind::tokens)
    compare("data.on_bad_record", to_text(configs.before.on_bad_record), to_text(configs.now.on_bad_record));
  return changed;
}

// Of a source that is read from its beginning though its path was known.
std::string other_source_text(const SourceContent& content, const std::vector<std::string>& changed,
                              const std::string& lost) {
  if (changed.empty())
    return fmt::format(
        "{}: {} holds other content than at the checkpoint{}, and is read from its beginning. To go on "
        "where it was, restore its files; others may join them",
        content.key, content.path, lost);
  return fmt::format(
      "{}: {} is read otherwise than at the checkpoint, and so from its beginning: {}. To go on where it "
      "was, set that back (and restore its files, if they have changed too)",
      content.key, content.path, fmt::join(changed, ", "));
}

}  // namespace

std::vector<std::string> joined_lines(const Mix& mix, const std::vector<MixSource>& before,
                                      const std::vector<SourceContent>& contents) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < mix.sources.size(); ++i) {
    const MixSource& source = mix.sources[i];
    const auto as = std::find_if(before.begin(), before.end(), [&](const auto& s) { return s.order == source.order; });
    if (as == before.end() || as->parts.empty() || as->parts.size() >= source.parts.size()) continue;
    const MixPart& joined = source.parts.back();
    lines.push_back(
        fmt::format("{}: {}: {} joined, whose {} {} read in the rest of this epoch; what was read of the "
                    "others stays read",
                    contents[i].key, contents[i].path, files_text(joined.files.size()),
                    grouped(joined.samples, "sample"), joined.samples == 1 ? "is" : "are"));
  }
  return lines;
}

std::vector<std::string> change_lines(const Mix& mix, const std::vector<MixSource>& before,
                                      const std::vector<SourceContent>& contents, const DataChange& configs) {
  SCALETRAIN_CHECK(configs.now.train.size() >= mix.sources.size());
  std::vector<std::string> lines;
  std::vector<std::string> leaks;
  for (std::size_t i = 0; i < mix.sources.size() && !mix.absent.empty(); ++i) {
    const SourceContent& content = contents[i];
    const auto& known = configs.before.train;
    const auto as = std::find_if(known.begin(), known.end(), [&](const auto& s) { return s.path == content.path; });
    if (mix.sources[i].taken > 0 || as == known.end()) continue;
    const SourceConfig& now = configs.now.train[i];
    lines.push_back(other_source_text(content, changed_settings(*as, now, configs, content.key),
                                      lost_files(mix.sources[i], mix.absent)));
    if (held_out_share(now) > held_out_share(*as))
      leaks.push_back(
          fmt::format("{}.split: the run may have trained on documents that are held out from here on: the loss of {} "
                      "is lower than on text that it has not seen",
                      content.key, now.split->name));
  }
  // The others were said to have become those.
  const std::size_t become = lines.size();
  lines.insert(lines.end(), leaks.begin(), leaks.end());
  if (mix.absent.size() > become) {
    const std::size_t left_out = mix.absent.size() - become;
    lines.push_back(
        fmt::format("data.train: {} that the run has read from {} not there now; what was read of {} stays counted, in "
                    "case the same content comes back",
                    left_out == 1 ? "a source" : fmt::format("{} sources", left_out), left_out == 1 ? "is" : "are",
                    left_out == 1 ? "it" : "them"));
  }
  if (lines.empty() && !has_same_mix(mix.sources, before))
    lines.emplace_back("data.train has changed: each source goes on where the run left it, new ones begin");
  return lines;
}

std::vector<SourceRecord> source_records(const TrainingData& data, const std::vector<SourceContent>& contents,
                                         const ConsumptionHistory& history, std::int64_t samples) {
  const Mixture& mixture = data.mixture();
  const std::int64_t next = history.next_sample();
  const std::vector<std::int64_t> taken = mixture.counts(next);
  const std::vector<std::int64_t> at_end = mixture.counts(checked_add(next, samples));
  const std::vector<std::int64_t> tokens = data.source_tokens();
  const std::vector<std::optional<std::int64_t>> documents = data.source_documents();
  SCALETRAIN_CHECK(contents.size() >= taken.size());
  std::vector<SourceRecord> sources;
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const MixSource& source = mixture.mix().sources[i];
    sources.push_back({.key = contents[i].key,
                       .path = contents[i].path,
                       .documents = documents[i],
                       .tokens = tokens[i],
                       .samples = source.samples_per_epoch,
                       .taken = taken[i],
                       .taken_at_end = at_end[i],
                       .cap = source.cap,
                       .epochs = static_cast<double>(at_end[i]) / static_cast<double>(source.samples_per_epoch)});
  }
  return sources;
}

void end_with(std::vector<SourceRecord>& sources, const std::vector<double>& epochs) {
  SCALETRAIN_CHECK_EQ(sources.size(), epochs.size());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    sources[i].epochs = epochs[i];
    sources[i].taken_at_end = std::llround(epochs[i] * static_cast<double>(sources[i].samples));
  }
}

std::vector<std::string> source_lines(const std::vector<SourceRecord>& sources, bool is_resumed) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < std::min(sources.size(), reported_sources); ++i) {
    const SourceRecord& source = sources[i];
    lines.push_back(fmt::format("{}: {}: {}{} in {}; {}this run = {} epochs", source.key, source.path,
                                source.documents ? grouped(*source.documents, "document") + ", " : "",
                                grouped(source.tokens, "token"), grouped(source.samples, "sample"),
                                is_resumed ? left_text(source) + "; " : "",
                                epochs_text(source.taken_at_end, source.samples)));
  }
  if (sources.size() > reported_sources)
    lines.push_back(fmt::format("data.train: and {}, all of them in metrics.jsonl",
                                grouped_count(sources.size() - reported_sources, "more source")));
  return lines;
}

}  // namespace scaletrain
