#include "export_gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/gguf/gguf_export.h"
#include "host/machine.h"
#include "infer/evaluate.h"
#include "infer/exported_files.h"
#include "infer/gguf_vocabulary.h"
#include "model_choice.h"
#include "telemetry/count_progress.h"
#include "telemetry/progress.h"

namespace scaletrain {

namespace {

constexpr std::int64_t micro_batch = 8;

GgufType type_of(const std::string& dtype) {
  if (dtype == "int8") return GgufType::q8_0;
  if (dtype == "int4") return GgufType::q4_0;
  if (dtype == "fp16") return GgufType::f16;
  return dtype == "bf16" ? GgufType::bf16 : GgufType::f32;
}

// What is measured before and after.
struct Measured {
  const NamedSet* set = nullptr;
  std::int64_t samples = 0;
  EvaluationResult before{};
};

EvaluationResult measure(LoadedModel& model, const Measured& measured, const std::string& which) {
  const bool live = progress_options_for(stderr, 0, 1).live;
  CountProgress progress(stderr, {.what = measured.set->name + which, .unit = "samples", .live = live});
  return evaluate_model(model, *measured.set->set, measured.samples, micro_batch,
                        [&progress](std::int64_t done, std::int64_t all) { progress.update(done, all); });
}

std::int64_t samples_of(const GgufArguments& arguments, const Config& config, const NamedSet& set) {
  const std::int64_t all = set.set->num_samples();
  if (arguments.batches > 0) return std::min(all, arguments.batches * micro_batch);
  return arguments.data.empty() ? samples_of_run(config, all) : all;
}

// The masters become what the file holds.
void round_weights(LoadedModel& model, GgufType type) {
  ParamStore& store = model.store();
  for (const Parameter& parameter : store.table().parameters()) {
    if (parameter.tied_to) continue;
    const View master = store.master(parameter.name);
    round_as_gguf(parameter, type, {master.as<float>(), static_cast<std::size_t>(master.num_elements())});
  }
  store.values_changed(model.stream());
}

std::string text_of(const Measured& measured, const EvaluationResult& after, const std::string& dtype) {
  const EvaluationResult& before = measured.before;
  return fmt::format(
      "{}: loss {:.6g} nats per token in fp32, {:.6g} in {} ({:+.3g} %); perplexity {:.5g}, {:.5g}; over {} tokens\n",
      measured.set->name, before.loss, after.loss, dtype, 100 * (after.loss / before.loss - 1), std::exp(before.loss),
      std::exp(after.loss), grouped_digits(static_cast<std::uint64_t>(after.tokens)));
}

// Of these matrices the rows are no whole groups.
std::int64_t num_kept_apart(const ParamTable& table, GgufType type) {
  const auto parameters = table.parameters();
  return std::count_if(parameters.begin(), parameters.end(), [type](const Parameter& parameter) {
    return !parameter.tied_to && parameter.shape.num_dims() == 2 && !fits_gguf_blocks(type, parameter.shape[1]) &&
           gguf_type_of(parameter, type) == GgufType::f16;
  });
}

}  // namespace

ExitCode export_as_gguf(const LocatedModel& located, const GgufArguments& arguments) {
  const GgufType type = type_of(arguments.dtype);
  const bool rounds = type == GgufType::q8_0 || type == GgufType::q4_0;
  const auto backend = make_cpu_backend({.threads = available_processors()});
  const auto stream = backend->make_stream();
  GgufExport request{.file = arguments.file, .model = {}, .type = type, .vocabulary = {}};
  VocabularyOfGguf vocabulary;
  ExportedText exported;
  std::vector<NamedSet> sets;
  const auto look_first = [&](LoadedModel& found) {
    request.model = found.config().model;
    request.model.vocab = found.transformer().spec().vocab;
    check_gguf_export(request.model, request.file);
    exported = exported_text(found.text(), located);
    request.model.context = gguf_context(request.model, exported.context);
    check_gguf_export(request.model, request.file);
    vocabulary = gguf_vocabulary(found, exported);
    // What cannot be measured is known before anything is written.
    if (rounds) sets = open_sets(arguments.data, found, arguments.records);
  };
  LoadedModel model = load_model(located, *backend, *stream, std::nullopt, look_first);
  request.vocabulary = std::move(vocabulary.vocabulary);
  std::vector<Measured> measured;
  for (const NamedSet& set : sets) {
    measured.push_back({.set = &set, .samples = samples_of(arguments, model.config(), set)});
    measured.back().before = measure(model, measured.back(), ", fp32");
  }
  const TensorReader read = [&](const Parameter& parameter, View out) {
    backend->copy(*stream, model.store().master(parameter.name), out);
    stream->synchronize();
  };
  export_gguf(model.store().table(), read, request);
  std::string text = fmt::format("{}: a GGUF file, {}\n", arguments.file.string(), arguments.dtype);
  if (!measured.empty()) round_weights(model, type);
  for (const Measured& one : measured)
    text += text_of(one, measure(model, one, ", " + arguments.dtype), arguments.dtype);
  write_output(text);
  for (const std::string& notice : exported.notices) write_message("notice: " + notice);
  if (!vocabulary.notice.empty()) write_message("notice: " + vocabulary.notice);
  if (const std::int64_t apart = num_kept_apart(model.store().table(), type); apart > 0)
    write_message(
        fmt::format("notice: of the matrices {} stay fp16: their rows are no multiple of {}, the size of a group",
                    apart, kGgufBlock));
  if (rounds && measured.empty())
    write_message(
        "notice: the loss of quality was not measured: the model's config names no validation set; --data "
        "PATH measures it");
  return ExitCode::finished;
}

}  // namespace scaletrain
