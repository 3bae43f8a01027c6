#include "evaluation_sets.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "commands.h"
#include "host/machine.h"

namespace scaletrain {

void RecordsArgument::declare(CLI::App& command) {
  command
      .add_option("--records", records,
                  "What a line of --data holds, if it is no text: conversations and completions are measured each by "
                  "itself, on its answers as the model's config says")
      ->check(CLI::IsMember({"text", "messages", "prompt_completion"}))
      ->capture_default_str()
      ->needs("--data");
  command
      .add_option("--chat-template", chat_template,
                  "How messages are written, where neither the run's config nor the tokenizer says it")
      ->type_name("NAME")
      ->needs("--records");
}

void RecordsArgument::check() const {
  if (chat_template.empty() || records == "messages") return;
  throw UserError(fmt::format(
      "--chat-template: nothing uses it with --records {}; leave it out, or say --records messages", records));
}

SetRecords RecordsArgument::value() const {
  SetRecords value{.records = RecordKind::text, .chat_template = chat_template};
  if (records == "messages") value.records = RecordKind::messages;
  if (records == "prompt_completion") value.records = RecordKind::prompt_completion;
  return value;
}

DataConfig data_config_of(const SetRecords& records, const Config& config) {
  DataConfig data = config.data;
  if (records.records == RecordKind::text) return data;
  data.documents.attention = DocumentAttention::within;
  if (!records.chat_template.empty()) data.instructions.chat_template = records.chat_template;
  return data;
}

std::vector<NamedSet> open_sets(const std::vector<std::string>& paths, LoadedModel& model, const SetRecords& records) {
  const Config& config = model.config();
  const DataConfig data = data_config_of(records, config);
  const DataOptions options{.vocab = model.transformer().spec().vocab,
                            .context = model.transformer().spec().context,
                            .seed = 0,
                            .report = write_message,
                            // The one in the config is of the run, which may be somebody else's.
                            .caches_anywhere = true,
                            .threads = available_processors()};
  std::vector<ValidationConfig> sets;
  for (const std::string& path : paths) {
    if (path.empty()) throw UserError("--data: a path is expected");
    ValidationConfig& set = sets.emplace_back();
    set.name = path;
    set.path = std::filesystem::absolute(path).string();
    set.records = records.records;
  }
  const bool own = sets.empty();
  if (own) sets = config.data.validation;
  std::vector<NamedSet> opened;
  for (std::size_t i = 0; i < sets.size(); ++i)
    opened.push_back({sets[i].name, open_validation_set(sets[i], data, model.tokenizer(), options,
                                                        own ? validation_key(config.data, i) : "--data")});
  return opened;
}

std::int64_t samples_of_run(const Config& config, std::int64_t all) {
  const std::int64_t some = try_mul(config.evaluate.batches, config.train.global_batch).value_or(all);
  return some == 0 ? all : std::min(some, all);
}

}  // namespace scaletrain
