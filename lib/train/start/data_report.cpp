#include "train/start/data_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"

namespace scaletrain {

namespace {

constexpr std::size_t reported_sources = 12;  // the metrics have all

std::string counted(std::int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", grouped_digits(static_cast<std::uint64_t>(count)), what, count == 1 ? "" : "s");
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
    return read + counted(source.samples - source.taken % source.samples, "sample") + " of this epoch left";
  const std::int64_t left = std::max<std::int64_t>(0, *source.cap - source.taken);
  return read + counted(left, "sample") + " of its cap left";
}

}  // namespace

std::vector<SourceRecord> source_records(const TrainingData& data, const std::vector<SourceContent>& contents,
                                         const ConsumptionHistory& history, std::int64_t samples) {
  const Mixture& mixture = data.mixture();
  const std::int64_t next = history.next_sample();
  const std::vector<std::int64_t> taken = mixture.counts(next);
  const std::vector<std::int64_t> at_end = mixture.counts(checked_add(next, samples));
  const std::vector<std::int64_t> tokens = data.source_tokens();
  SCALETRAIN_CHECK(contents.size() >= taken.size());
  std::vector<SourceRecord> sources;
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const MixSource& source = mixture.mix().sources[i];
    sources.push_back({.key = contents[i].key,
                       .path = contents[i].path,
                       .tokens = tokens[i],
                       .samples = source.samples_per_epoch,
                       .taken = taken[i],
                       .taken_at_end = at_end[i],
                       .cap = source.cap,
                       .epochs = static_cast<double>(at_end[i]) / static_cast<double>(source.samples_per_epoch)});
  }
  return sources;
}

std::vector<std::string> source_lines(const std::vector<SourceRecord>& sources, bool is_resumed) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < std::min(sources.size(), reported_sources); ++i) {
    const SourceRecord& source = sources[i];
    lines.push_back(fmt::format("{}: {}: {} in {}; {}this run = {} epochs", source.key, source.path,
                                counted(source.tokens, "token"), counted(source.samples, "sample"),
                                is_resumed ? left_text(source) + "; " : "",
                                epochs_text(source.taken_at_end, source.samples)));
  }
  if (sources.size() > reported_sources)
    lines.push_back(fmt::format("data.train: and {}, all of them in metrics.jsonl",
                                counted(static_cast<std::int64_t>(sources.size() - reported_sources), "more source")));
  return lines;
}

}  // namespace scaletrain
