#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/text.h"
#include "config/rule_scope.h"

namespace scaletrain {

namespace {

class DataRules : private RuleScope {
 public:
  explicit DataRules(const RuleScope& scope) : RuleScope(scope) {}

  void run() {
    check_tokenizer();
    check_sources();
    check_validation_names();
    check_tasks();
    check_early_stop();
  }

 private:
  void check_tokenizer() {
    const TokenizerConfig& tokenizer = config_.data.tokenizer;
    if (!are_fine({"data.tokenizer.type"})) return;
    const bool is_ids = tokenizer.type == TokenizerKind::ids;
    if (tokenizer.path && (is_ids || tokenizer.type == TokenizerKind::bytes)) {
      refuse({"data.tokenizer.path", "data.tokenizer.type"},
             fmt::format("tokenizer {} has no files; leave path out", to_text(tokenizer.type)));
    }
    if (tokenizer.end_of_document && tokenizer.type == TokenizerKind::bytes) {
      refuse({"data.tokenizer.end_of_document", "data.tokenizer.type"},
             fmt::format("tokenizer {} has a token for it already; leave it out", to_text(tokenizer.type)));
    }
    const bool has_files = tokenizer.type == TokenizerKind::bpe || tokenizer.type == TokenizerKind::sentencepiece;
    if (has_files && !tokenizer.path && are_fine({"data.tokenizer.path"})) {
      refuse({"data.tokenizer.path", "data.tokenizer.type"},
             fmt::format("tokenizer {} needs it: a {}, or a folder that holds one", to_text(tokenizer.type),
                         tokenizer.type == TokenizerKind::bpe ? "tokenizer.json" : "tokenizer.model"));
    }
    const auto& vocab = config_.model.vocab;
    if (tokenizer.end_of_document && vocab && is_ids && *tokenizer.end_of_document >= *vocab) {
      refuse({"data.tokenizer.end_of_document", "model.vocab"},
             fmt::format("{} is outside of the vocabulary of {}", *tokenizer.end_of_document, *vocab));
    }
    if (is_ids && !vocab && origin_ == Origin::user && are_fine({"model.vocab", "model.preset"})) {
      refuse({"model.vocab", "data.tokenizer.type"},
             "auto needs a tokenizer that knows its size; with tokenizer ids write the number of token ids");
    }
  }

  template <class Source>
  void check_source(const std::string& path, const Source& source) {
    if (!are_fine({path + ".type"})) return;
    const bool is_ids = config_.data.tokenizer.type == TokenizerKind::ids && are_fine({"data.tokenizer.type"});
    if (is_ids && source.type != SourceKind::automatic && source.type != SourceKind::tokens) {
      refuse(
          {path + ".type", "data.tokenizer.type"},
          fmt::format("{} needs a tokenizer that reads text; tokenizer ids takes token files", to_text(source.type)));
    }
    // The resolved config spells out every default, so only a value that says something is refused there.
    const bool says_field = origin_ == Origin::user ? is_given(path + ".field") : source.field != Source().field;
    if (says_field && (source.type == SourceKind::text || source.type == SourceKind::tokens) &&
        source.field != Source().field)
      refuse({path + ".field", path + ".type"},
             fmt::format("only for jsonl and parquet; this source is {}", to_text(source.type)));
    if (source.separator && source.type != SourceKind::automatic && source.type != SourceKind::text)
      refuse({path + ".separator", path + ".type"},
             fmt::format("only for text; this source is {}", to_text(source.type)));
    if (source.records == RecordKind::text || !are_fine({path + ".records"})) return;
    if (is_ids)
      refuse({path + ".records", "data.tokenizer.type"},
             fmt::format("{} needs a tokenizer that reads text; tokenizer ids takes token files",
                         to_text(source.records)));
    if (source.type == SourceKind::text || source.type == SourceKind::tokens)
      refuse({path + ".records", path + ".type"},
             fmt::format("{} are lines of jsonl; this source is {}", to_text(source.records), to_text(source.type)));
    if (source.field != Source().field && are_fine({path + ".field"}))
      refuse({path + ".field", path + ".records"},
             fmt::format("only for records of text; those of this source are {}", to_text(source.records)));
  }

  void check_sources() {
    const DataConfig& data = config_.data;
    if (origin_ == Origin::user && data.train.empty() && are_fine({"data.train"}))
      refuse({"data.train"}, fmt::format("is {}; name at least one source, such as [{{path: data/text}}]",
                                         is_given("data.train") ? "empty" : "missing"));
    for (std::size_t i = 0; i < data.train.size(); ++i) check_source(fmt::format("data.train.{}", i), data.train[i]);
    for (std::size_t i = 0; i < data.validation.size(); ++i)
      if (!data.validation[i].held_out_of) check_source(validation_key(data, i), data.validation[i]);
    for (std::size_t i = 0; i < data.train.size(); ++i)
      if (data.train[i].split && data.train[i].type == SourceKind::tokens)
        refuse({fmt::format("data.train.{}.split", i), fmt::format("data.train.{}.type", i)},
               "documents are held out of text, not of token files: build them with `scaletrain data build --split "
               "99,1`, and name the parts in data.train and data.validation");
  }

  void check_validation_names() {
    std::set<std::string> seen;
    for (std::size_t i = 0; i < config_.data.validation.size(); ++i) {
      const std::string path = validation_key(config_.data, i) + ".name";
      const std::string& name = config_.data.validation[i].name;
      if (are_fine({path}) && !seen.insert(name).second)
        refuse({path}, fmt::format("{} names two validation sets; give each a name of its own", quoted(name)));
    }
  }

  void check_tasks() {
    if (!config_.evaluate.tasks.empty() && config_.data.tokenizer.type == TokenizerKind::ids &&
        are_fine({"evaluate.tasks", "data.tokenizer.type"}))
      refuse({"evaluate.tasks", "data.tokenizer.type"},
             "questions are text and need a tokenizer that reads it, which ids is not; remove the tasks, or name the "
             "tokenizer that made the ids");
    std::set<std::string> seen;
    for (std::size_t i = 0; i < config_.evaluate.tasks.size(); ++i) {
      const std::string path = fmt::format("evaluate.tasks.{}.name", i);
      const std::string& name = config_.evaluate.tasks[i].name;
      if (are_fine({path}) && !seen.insert(name).second)
        refuse({path}, fmt::format("{} names two tasks; give each a name of its own", quoted(name)));
    }
  }

  // What a run measures that early stopping may watch; nothing where a name is wrong.
  std::optional<std::vector<std::string>> watchable_metrics() const {
    std::vector<std::string> metrics;
    for (std::size_t i = 0; i < config_.data.validation.size(); ++i) {
      if (!are_fine({validation_key(config_.data, i) + ".name"})) return std::nullopt;
      metrics.push_back("validation/" + config_.data.validation[i].name + "/loss");
    }
    for (std::size_t i = 0; i < config_.evaluate.tasks.size(); ++i) {
      if (!are_fine({fmt::format("evaluate.tasks.{}.name", i)})) return std::nullopt;
      metrics.push_back("task/" + config_.evaluate.tasks[i].name + "/accuracy");
    }
    return metrics;
  }

  void check_early_stop() {
    if (!config_.early_stop || !are_fine({"early_stop.metric", "data.validation", "evaluate.tasks"})) return;
    const std::string& metric = config_.early_stop->metric;
    if (config_.data.validation.empty() && config_.evaluate.tasks.empty()) {
      refuse({"early_stop.metric", "early_stop", "data.validation"},
             "there is nothing to watch; add a set to data.validation or a task to evaluate.tasks");
      return;
    }
    const std::optional<std::vector<std::string>> metrics = watchable_metrics();
    if (!metrics) return;
    if (std::find(metrics->begin(), metrics->end(), metric) == metrics->end()) {
      std::string all;
      for (const std::string& known : *metrics) all += (all.empty() ? "" : ", ") + known;
      refuse({"early_stop.metric", "data.validation"},
             fmt::format("{} is no metric of this run; there is {}", quoted(metric), all));
    }
    const bool is_accuracy = metric.starts_with("task/");
    const std::optional<double>& target = config_.early_stop->target;
    if (is_accuracy && target && (*target <= 0 || *target > 1))
      refuse({"early_stop.target", "early_stop"}, "an accuracy lies between 0 and 1; write 0.9 for 90 %");
    if (is_accuracy && config_.early_stop->min_delta >= 1)
      refuse({"early_stop.min_delta", "early_stop"}, "an accuracy lies between 0 and 1, and cannot improve by so much");
    if (are_fine({"evaluate.every"}) && config_.evaluate.every == 0)
      refuse({"early_stop", "evaluate.every"}, "needs evaluations during the run, and evaluate.every is 0");
  }
};

}  // namespace

void check_data_rules(const RuleScope& scope) {
  DataRules(scope).run();
}

}  // namespace scaletrain
