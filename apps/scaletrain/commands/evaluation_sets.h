// The data that a model is measured on: what the command line names, else the validation sets of its config.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "infer/model.h"

namespace CLI {
class App;
}

namespace scaletrain {

struct NamedSet {
  std::string name;
  std::unique_ptr<ValidationSet> set;
};

// What the files of --data hold.
struct SetRecords {
  RecordKind records = RecordKind::text;
  std::string chat_template{};  // of messages; empty: the model's
};

// What --records and --chat-template say of --data, which the command has declared before.
struct RecordsArgument {
  std::string records = "text";
  std::string chat_template{};

  void declare(CLI::App& command);
  void check() const;  // UserError for a template that nothing uses
  SetRecords value() const;
};

// How --data is read: as the model's config says, but that conversations are measured each by itself.
DataConfig data_config_of(const SetRecords& records, const Config& config);

// paths: of --data; empty: the config's own, of which there may be none. UserError for an empty path; InputError and
// UserError for data that cannot be read.
std::vector<NamedSet> open_sets(const std::vector<std::string>& paths, LoadedModel& model,
                                const SetRecords& records = {});

// Of a set of the config, how many of its samples the run's own evaluations measure.
std::int64_t samples_of_run(const Config& config, std::int64_t all);

}  // namespace scaletrain
