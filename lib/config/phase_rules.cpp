// Rules across the keys of a run's phases.
#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <string>

#include "base/text.h"
#include "config/phases.h"
#include "config/rule_scope.h"

namespace scaletrain {

namespace {

class PhaseRules : private RuleScope {
 public:
  explicit PhaseRules(const RuleScope& scope) : RuleScope(scope) {}

  void run() {
    check_names();
    if (config_.train.phases.empty()) return;
    bool have_lengths = true;
    for (std::size_t i = 0; i < config_.train.phases.size(); ++i) have_lengths = check_phase(i) && have_lengths;
    check_run_length(have_lengths);
    check_ramp();
  }

 private:
  static std::string path_of(std::size_t phase) { return fmt::format("phases.{}", phase); }

  void check_names() {
    std::set<std::string> seen;
    for (std::size_t i = 0; i < config_.data.train.size(); ++i) {
      const std::string path = fmt::format("data.train.{}.name", i);
      const auto& name = config_.data.train[i].name;
      if (!name || !are_fine({path})) continue;
      if (std::all_of(name->begin(), name->end(), [](unsigned char c) { return std::isdigit(c) != 0; }))
        refuse({path}, fmt::format("{} is how phases call a source without a name, by its place; give it a word",
                                   quoted(*name)));
      else if (!seen.insert(*name).second)
        refuse({path}, fmt::format("{} names two sources; give each a name of its own", quoted(*name)));
    }
  }

  // Whether it has a length.
  bool check_phase(std::size_t i) {
    const PhaseConfig& phase = config_.train.phases[i];
    const std::string path = path_of(i);
    if (!are_fine({path})) return false;
    check_context(phase, path);
    check_batch(phase, path);
    check_weights(phase, path);
    if (!are_fine({path + ".steps", path + ".tokens"})) return false;
    if (phase.steps && phase.tokens)
      refuse({path + ".tokens", path + ".steps", path}, "steps and tokens are both set; keep one");
    if (!phase.steps && !phase.tokens) refuse({path + ".steps", path}, "is missing; set steps, or tokens such as 2B");
    return phase.steps.has_value() != phase.tokens.has_value();
  }

  void check_context(const PhaseConfig& phase, const std::string& path) {
    const std::string key = path + ".context";
    if (!are_fine({key, "model.context", "model.preset"})) return;
    const std::int64_t longest = config_.model.context;
    const std::int64_t context = phase.context.value_or(longest);
    if (context > longest) {
      refuse({key, path, "model.context", "model.preset"},
             fmt::format("{} is longer than model.context {}, which is the longest of all: memory, learned positions "
                         "and evaluations are for that; raise it",
                         context, longest));
    } else if (longest % context != 0) {
      refuse({key, path, "model.context", "model.preset"},
             fmt::format("{} does not divide model.context {}: a shorter sample is one of the equal pieces of a longer "
                         "one; write {}",
                         context, longest, nearest_divisor(longest, context)));
    } else if (context < longest && reads_instructions_to_train()) {
      refuse({key, path, "data.train"},
             "records of instructions are packed into samples of model.context, which are not cut into shorter ones "
             "yet; leave context out, or train on text");
    }
  }

  bool reads_instructions_to_train() const {
    const auto& train = config_.data.train;
    return std::any_of(train.begin(), train.end(),
                       [](const SourceConfig& source) { return source.records != RecordKind::text; });
  }

  // At least 2 and at most what was asked for, if there is one.
  static std::int64_t nearest_divisor(std::int64_t longest, std::int64_t context) {
    std::int64_t divisor = context;
    while (divisor > 2 && longest % divisor != 0) --divisor;
    return longest % divisor == 0 ? divisor : longest;
  }

  void check_batch(const PhaseConfig& phase, const std::string& path) {
    const std::string key = path + ".global_batch";
    if (!are_fine({key, "train.global_batch"})) return;
    const std::int64_t largest = config_.train.global_batch;
    if (phase.global_batch.value_or(largest) > largest)
      refuse({key, path, "train.global_batch"},
             fmt::format("{} is larger than train.global_batch {}, which is the largest of all: micro-batches are cut "
                         "for that; raise it, and give the other phases theirs",
                         *phase.global_batch, largest));
  }

  void check_weights(const PhaseConfig& phase, const std::string& path) {
    const std::string key = path + ".weights";
    if (!are_fine({key, "data.train"})) return;
    for (const auto& [name, weight] : phase.weights) {
      if (source_of_name(config_.data, name)) continue;
      std::string known;
      for (std::size_t i = 0; i < config_.data.train.size(); ++i)
        known += (known.empty() ? "" : ", ") + name_of_source(config_.data, i);
      refuse({key, path}, fmt::format("{} is no source of data.train; there {} {} (data.train[].name, or the place of "
                                      "one without a name)",
                                      quoted(name), config_.data.train.size() == 1 ? "is" : "are", known));
    }
  }

  void check_run_length(bool have_lengths) {
    const TrainConfig& train = config_.train;
    for (const char* const key : {"train.tokens", "train.epochs"}) {
      const bool is_set = key == std::string("train.tokens") ? train.tokens.has_value() : train.epochs.has_value();
      if (is_set && are_fine({key})) refuse({key, "phases"}, "the phases say how long the run is; remove the key");
    }
    if (!have_lengths || !are_fine({"train.steps", "train.global_batch", "model.context"})) return;
    const std::optional<std::int64_t> steps = steps_of_phases(train);
    if (!steps)
      refuse({"phases"}, "together they have more steps than 64 bits count");
    else if (train.steps && *train.steps != *steps)
      refuse({"train.steps", "phases"},
             fmt::format("{}, but the phases have {} steps together; remove the key, or change a phase's length",
                         *train.steps, *steps));
  }

  void check_ramp() {
    if (config_.train.adapts_batch && are_fine({"train.global_batch", "phases"}))
      refuse({"train.global_batch", "phases"},
             "auto has no say in a run of phases yet: give phases their global_batch, and the run the largest of them");
    else if (config_.log.gradient_noise && are_fine({"log.gradient_noise", "phases"}))
      refuse({"log.gradient_noise", "phases"}, "the noise is not measured in a run of phases yet; remove the key");
    if (config_.train.batch_ramp && are_fine({"train.batch_ramp", "phases"}))
      refuse({"train.batch_ramp", "phases"},
             "a batch cannot grow by a ramp and by phases; remove the key, and give phases their global_batch");
  }
};

}  // namespace

void check_phase_rules(const RuleScope& scope) {
  PhaseRules(scope).run();
}

}  // namespace scaletrain
