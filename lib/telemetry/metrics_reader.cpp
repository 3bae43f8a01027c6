#include "telemetry/metrics_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace scaletrain {
namespace {

using nlohmann::json;

constexpr std::uint64_t largest_file = 4ull << 30;

// Typed members of one line.
class Fields {
 public:
  Fields(const json& object, const std::string& where) : object_(object), where_(where) {}

  std::int64_t integer(std::string_view key) const { return json_integer(object_, key, where_); }
  std::uint64_t natural(std::string_view key) const { return json_unsigned(object_, key, where_); }
  std::string text(std::string_view key) const { return json_string(object_, key, where_); }
  bool flag(std::string_view key) const { return json_bool(object_, key, where_); }
  double number(std::string_view key) const {
    if (json_member(object_, key, where_).is_null()) return std::numeric_limits<double>::quiet_NaN();
    return json_number(object_, key, where_);
  }
  std::string text_or_empty(std::string_view key) const { return object_.contains(key) ? text(key) : std::string(); }
  std::int64_t integer_or_zero(std::string_view key) const { return object_.contains(key) ? integer(key) : 0; }
  bool flag_or_false(std::string_view key) const { return object_.contains(key) && flag(key); }
  double number_or_zero(std::string_view key) const { return object_.contains(key) ? number(key) : 0.0; }
  std::optional<double> number_if_any(std::string_view key) const {
    return object_.contains(key) ? std::optional(number(key)) : std::nullopt;
  }
  std::optional<std::int64_t> integer_if_any(std::string_view key) const {
    return object_.contains(key) ? std::optional(integer(key)) : std::nullopt;
  }
  std::optional<std::uint64_t> natural_if_any(std::string_view key) const {
    return object_.contains(key) ? std::optional(natural(key)) : std::nullopt;
  }
  // Lines of older programs have none.
  DeviceRecord device() const {
    return {.name = text_or_empty("device"),
            .compute = text_or_empty("compute"),
            .peak_flops = number_if_any("peak_flops"),
            .gpus = static_cast<std::int64_t>(natural_if_any("gpus").value_or(0))};
  }
  LayoutRecord layout() const {
    if (!object_.contains("layout")) return {};
    const Fields in(object_.at("layout"), where_);
    return {.world = in.integer("world"),
            .data = in.integer("data"),
            .tensor = in.integer("tensor"),
            .pipeline = in.integer("pipeline"),
            .sequence = in.flag("sequence"),
            .schedule = in.text("schedule"),
            .chunks = in.integer("chunks"),
            .zero = in.integer("zero"),
            .zero_group = in.integer_or_zero("zero_group"),
            .micro_batch = in.integer("micro_batch"),
            .micro_batches = in.integer("micro_batches"),
            .threads = in.integer("threads")};
  }
  std::optional<NoiseRecord> noise() const {
    if (!object_.contains("noise_square")) return std::nullopt;
    return NoiseRecord{.square = number("noise_square"),
                       .variance = number("noise_variance"),
                       .scale = number_if_any("noise_scale"),
                       .batch_small = integer("noise_batch_small"),
                       .batch_big = integer("noise_batch_big")};
  }
  std::vector<SourceRecord> sources() const {
    std::vector<SourceRecord> out;
    if (!object_.contains("sources")) return out;
    const json& list = object_.at("sources");
    if (!list.is_array()) throw InputError(fmt::format("{}: \"sources\" is not a list", where_));
    for (const json& source : list) {
      const Fields in(source, where_);
      out.push_back({.key = in.text("key"),
                     .path = in.text("path"),
                     .documents = source.contains("documents") ? std::optional(in.integer("documents")) : std::nullopt,
                     .tokens = in.integer("tokens"),
                     .samples = in.integer("samples"),
                     .taken = in.integer("taken"),
                     .taken_at_end = in.integer("taken_at_end"),
                     .cap = source.contains("cap") ? std::optional(in.integer("cap")) : std::nullopt,
                     .epochs = in.number("epochs")});
    }
    return out;
  }
  std::vector<std::uint64_t> naturals(std::string_view key) const {
    const json& list = json_member(object_, key, where_);
    if (!list.is_array()) throw InputError(fmt::format("{}: \"{}\" is not a list", where_, key));
    std::vector<std::uint64_t> out;
    for (const json& value : list) {
      if (!value.is_number_unsigned()) throw InputError(fmt::format("{}: \"{}\" holds {}", where_, key, value.dump()));
      out.push_back(value.get<std::uint64_t>());
    }
    return out;
  }

  std::vector<std::pair<std::string, double>> numbers_by_name(std::string_view key) const {
    const json& members = json_member(object_, key, where_);
    if (!members.is_object()) throw InputError(fmt::format("{}: \"{}\" is not an object", where_, key));
    const Fields in(members, where_);
    std::vector<std::pair<std::string, double>> out;
    for (const auto& member : members.items()) out.emplace_back(member.key(), in.number(member.key()));
    return out;
  }

 private:
  const json& object_;
  const std::string& where_;
};

template <class Record>
void cut_beyond(std::vector<Record>& records, std::int64_t step) {
  std::erase_if(records, [step](const Record& record) { return record.step > step; });
}

void cancel_beyond(Metrics& metrics, std::int64_t step) {
  cut_beyond(metrics.steps, step);
  cut_beyond(metrics.evaluations, step);
  cut_beyond(metrics.tasks, step);
  cut_beyond(metrics.checkpoints, step);
  cut_beyond(metrics.skips, step);
  std::erase_if(metrics.spikes,
                [step](const SpikeRecord& record) { return record.step > step && record.action != "rollback"; });
  cut_beyond(metrics.phases, step);
  cut_beyond(metrics.early_stops, step);
  cut_beyond(metrics.ends, step);
}

// A start that died between an evaluation left over to it and its save leaves that to the next one again.
template <class Record>
void add_or_replace(std::vector<Record>& records, Record record, std::string Record::*name) {
  for (auto before = records.rbegin(); before != records.rend() && before->step == record.step; ++before) {
    if ((*before).*name != record.*name) continue;
    *before = std::move(record);
    return;
  }
  records.push_back(std::move(record));
}

void add_line(Metrics& metrics, std::string_view text, const std::string& where) {
  const json object = parse_json(text, where);
  const Fields in(object, where);
  const std::string kind = in.text("kind");
  if (kind == "start") {
    metrics.starts.push_back({.world = in.integer("world"),
                              .parameters = in.integer("parameters"),
                              .seed = in.natural("seed"),
                              .version = in.text("version"),
                              .wall_time = in.text("wall_time"),
                              .device = in.device(),
                              .layout = in.layout(),
                              .sources = in.sources()});
  } else if (kind == "step") {
    metrics.steps.push_back({.step = in.integer("step"),
                             .tokens = in.integer("tokens"),
                             .loss = in.number("loss"),
                             .learning_rate = in.number("learning_rate"),
                             .grad_norm = in.number("grad_norm"),
                             .step_seconds = in.number("step_seconds"),
                             .tokens_per_second = in.number("tokens_per_second"),
                             .mfu = in.number("mfu"),
                             .elapsed_seconds = in.number_or_zero("elapsed_seconds"),
                             .wall_time = in.text_or_empty("wall_time"),
                             .loss_scale = in.number_if_any("loss_scale"),
                             .gpu_memory_in_use = in.natural_if_any("gpu_memory_in_use"),
                             .batch = in.integer_if_any("batch"),
                             .noise = in.noise()});
  } else if (kind == "evaluation") {
    add_or_replace(metrics.evaluations,
                   {.step = in.integer("step"),
                    .dataset = in.text("dataset"),
                    .loss = in.number("loss"),
                    .tokens = in.integer("tokens")},
                   &EvaluationRecord::dataset);
  } else if (kind == "task") {
    add_or_replace(metrics.tasks,
                   {.step = in.integer("step"),
                    .task = in.text("task"),
                    .accuracy = in.number("accuracy"),
                    .accuracy_error = in.number_if_any("accuracy_error"),
                    .normalized_accuracy = in.number("normalized_accuracy"),
                    .normalized_accuracy_error = in.number_if_any("normalized_accuracy_error"),
                    .questions = in.integer("questions")},
                   &TaskRecord::task);
  } else if (kind == "checkpoint") {
    metrics.checkpoints.push_back({.step = in.integer("step"),
                                   .path = in.text("path"),
                                   .seconds = in.number("seconds"),
                                   .bytes = in.integer("bytes"),
                                   .background = in.flag_or_false("background"),
                                   .stall_seconds = in.number_or_zero("stall_seconds"),
                                   .waited_seconds = in.number_or_zero("waited_seconds"),
                                   .failure = in.text_or_empty("failure")});
  } else if (kind == "restart") {
    metrics.restarts.push_back({.step = in.integer("step"),
                                .generation = in.integer("generation"),
                                .checkpoint = in.text("checkpoint"),
                                .fingerprint_changed = in.flag("fingerprint_changed"),
                                .cause = in.text_or_empty("cause"),
                                .wall_time = in.text("wall_time"),
                                .device = in.device(),
                                .layout = in.layout(),
                                .sources = in.sources()});
    cancel_beyond(metrics, metrics.restarts.back().step);
  } else if (kind == "skip") {
    metrics.skips.push_back(
        {.step = in.integer("step"), .reason = in.text("reason"), .samples = in.naturals("samples")});
  } else if (kind == "spike") {
    metrics.spikes.push_back({.step = in.integer("step"),
                              .loss = in.number("loss"),
                              .mean = in.number("mean"),
                              .deviation = in.number("deviation"),
                              .zscore = in.number("zscore"),
                              .action = in.text("action"),
                              .samples = in.naturals("samples"),
                              .within_window = in.flag_or_false("within_window")});
  } else if (kind == "phase") {
    metrics.phases.push_back({.step = in.integer("step"),
                              .phase = in.integer("phase"),
                              .steps = in.integer("steps"),
                              .context = in.integer("context"),
                              .global_batch = in.integer("global_batch"),
                              .learning_rate_factor = in.number("learning_rate_factor"),
                              .weights = in.numbers_by_name("weights")});
  } else if (kind == "early_stop") {
    metrics.early_stops.push_back({.step = in.integer("step"),
                                   .metric = in.text("metric"),
                                   .value = in.number("value"),
                                   .reason = in.text("reason")});
  } else if (kind == "end") {
    metrics.ends.push_back({.step = in.integer("step"),
                            .code = in.integer_or_zero("code"),
                            .reason = in.text("reason"),
                            .wall_time = in.text_or_empty("wall_time"),
                            .tokens = in.integer_or_zero("tokens"),
                            .elapsed_seconds = in.number_or_zero("elapsed_seconds"),
                            .best_loss = in.number_or_zero("best_loss"),
                            .best_step = in.integer_or_zero("best_step"),
                            .restarts = in.integer_or_zero("restarts"),
                            .growths = in.integer_or_zero("growths"),
                            .resumes = in.integer_or_zero("resumes")});
  }
}

}  // namespace

Metrics parse_metrics(std::string_view text, const std::string& where, DamagedLines damaged) {
  Metrics metrics;
  for (std::int64_t line = 1; !text.empty(); ++line) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) {
      metrics.torn_last_line = true;
      break;
    }
    try {
      add_line(metrics, text.substr(0, end), fmt::format("{}:{}", where, line));
    } catch (const InputError& error) {
      if (damaged == DamagedLines::refuse) throw;
      if (metrics.damaged_lines++ == 0) metrics.first_damage = error.what();
    }
    ++metrics.whole_lines;
    text.remove_prefix(end + 1);
  }
  return metrics;
}

Metrics read_metrics(const std::filesystem::path& file, DamagedLines damaged) {
  return parse_metrics(read_text_file(file, largest_file), file.string(), damaged);
}

namespace {

bool is_kind(std::string_view line, std::string_view kind) {
  return line.starts_with(fmt::format("{{\"kind\":\"{}\"", kind));
}

// The last of these whole lines that tells a step; nothing if none does. since: an offset in `lines`.
std::optional<MetricsTail> last_told(std::string_view lines, std::uint64_t since, const std::string& where) {
  while (!lines.empty()) {
    const std::size_t before = lines.size() < 2 ? std::string_view::npos : lines.rfind('\n', lines.size() - 2);
    const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
    const std::string_view line = lines.substr(begin);
    lines = lines.substr(0, begin);
    if (is_kind(line, "start")) return MetricsTail();
    const bool is_end = is_kind(line, "end");
    const bool is_step = is_kind(line, "step");
    if (!is_end && !is_step && !is_kind(line, "restart")) continue;
    const json object = parse_json(line, where);
    const Fields in(object, where);
    return MetricsTail{.step = in.integer("step"),
                       .has_ended = is_end && begin >= since,
                       .tokens_per_second = is_step ? in.number("tokens_per_second") : 0.0,
                       .mfu = is_step ? in.number("mfu") : 0.0};
  }
  return std::nullopt;
}

}  // namespace

MetricsTail read_metrics_tail(const std::filesystem::path& file, std::uint64_t since) {
  constexpr std::uint64_t first_look = 64u << 10;
  const FileReader reader(file);
  for (std::uint64_t look = first_look;; look *= 16) {
    const std::uint64_t size = std::min(look, reader.size());
    std::uint64_t offset = reader.size() - size;
    std::string text(static_cast<std::size_t>(size), '\0');
    reader.read_at(offset, std::as_writable_bytes(std::span(text.data(), text.size())));
    std::string_view lines = text;
    lines = lines.substr(0, lines.rfind('\n') + 1);  // without a torn one; npos + 1 is 0
    const bool is_all = offset == 0;
    if (!is_all) {
      // The first one may be cut.
      const std::size_t cut = std::min(lines.find('\n'), lines.size() - 1) + 1;
      if (lines.empty()) continue;
      lines.remove_prefix(cut);
      offset += cut;
    }
    if (const auto tail = last_told(lines, since > offset ? since - offset : 0, file.string())) return *tail;
    if (is_all) return {};
  }
}

}  // namespace scaletrain
