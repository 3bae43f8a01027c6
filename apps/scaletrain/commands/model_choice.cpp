#include "model_choice.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/catalog.h"
#include "checkpoint/format/manifest.h"
#include "commands.h"
#include "config/load.h"
#include "telemetry/loss_text.h"
#include "train/run_state.h"

namespace scaletrain {

namespace {

namespace fs = std::filesystem;

// What the newest checkpoint of a run says of the best one.
struct BestSoFar {
  std::string save_id;
  std::string metric;          // empty: the run watches none any more
  std::optional<double> loss;  // of the evaluation at `loss_step`
  std::int64_t loss_step = 0;
  bool of_averages = false;  // the loss is that of the averages (evaluate.ema)
};

std::optional<BestSoFar> best_so_far(const fs::path& newest) {
  const std::string where = (newest / "manifest.json").string();
  const Manifest manifest = read_manifest(newest);
  const RunState state = read_state(manifest, where);
  if (!state.best_save_id) return std::nullopt;
  BestSoFar best{.save_id = *state.best_save_id,
                 .metric = {},
                 .loss = state.early_stop.best,
                 .loss_step = state.early_stop.best_step};
  const Config config = parse_resolved_config(manifest.config, where + ": config");
  if (config.early_stop) best.metric = config.early_stop->metric;
  best.of_averages = config.evaluate.ema;
  return best;
}

// " (validation/web/loss 2.3451)", as far as it is known. averages: they are taken.
std::string loss_of(const CatalogEntry& entry, const BestSoFar& best, bool averages) {
  // Where the save of a later, better state failed, the loss is of that one.
  const bool is_its_loss = best.loss && best.loss_step == entry.step && !best.metric.empty();
  const std::string of = best.of_averages && !averages ? ", measured on its averages: --ema takes them" : "";
  return is_its_loss ? fmt::format(" ({} {}{})", best.metric, loss_text(*best.loss), of) : "";
}

const CatalogEntry* find_save(const std::vector<CatalogEntry>& entries, const std::string& save_id) {
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const CatalogEntry& entry) { return entry.save_id == save_id; });
  return found == entries.end() ? nullptr : &*found;
}

void choose_best(const fs::path& run, const std::optional<BestSoFar>& known, bool averages, LocatedModel& located) {
  if (!known)
    throw InputError(
        fmt::format("--best: {}: no checkpoint is pinned as the best: that takes early_stop with checkpoint.best, and "
                    "an evaluation; without --best the newest is taken",
                    run.string()));
  const CatalogEntry* const best = find_save(located.checkpoints, known->save_id);
  if (best == nullptr)
    throw InputError(
        fmt::format("--best: {}: the best checkpoint (save {}) is not there any more, or cannot be used; "
                    "without --best the newest is taken",
                    run.string(), known->save_id));
  located.path = best->path;
  write_message(fmt::format("using {} (step {}), the best one{}{}", best->path.string(), best->step,
                            loss_of(*best, *known, averages), averages ? ", its averages" : ""));
}

// Which of the run's checkpoints to take in place of the chosen one; empty where there is none. By the manifests alone:
// reading a large checkpoint takes long, and whoever uses it does so.
std::string older_text(const LocatedModel& located) {
  if (located.source != ModelSource::checkpoint) return {};
  try {
    const std::vector<CatalogEntry> entries =
        located.checkpoints.empty() ? list_checkpoints(located.path.parent_path()) : located.checkpoints;
    const fs::path chosen = located.path.filename();
    auto entry = std::find_if(entries.begin(), entries.end(),
                              [&](const CatalogEntry& e) { return e.path.filename() == chosen; });
    if (entry == entries.end()) return {};
    // One whose manifest is broken stands last; what it was its name alone tells.
    if (!entry->problem.empty()) entry = entries.begin();
    entry = std::find_if(entry, entries.end(),
                         [&](const CatalogEntry& e) { return e.problem.empty() && e.path.filename() < chosen; });
    if (entry != entries.end())
      return fmt::format("\nThe next older one is step {} (not verified); to use it, give {} as the path", entry->step,
                         entry->path.string());
  } catch (const InputError&) {
    return {};
  }
  return {};
}

void tell_newest(const std::optional<BestSoFar>& known, bool averages, const LocatedModel& located) {
  const CatalogEntry& newest = located.checkpoints.front();
  const CatalogEntry* const best = known ? find_save(located.checkpoints, known->save_id) : nullptr;
  std::string text = fmt::format("using {} (step {}), the newest", newest.path.string(), newest.step);
  if (best == &newest) text += " and the best one";
  if (best != nullptr && best != &newest)
    text += fmt::format("; {}{} is pinned as the best: --best takes it", best->path.filename().string(),
                        loss_of(*best, *known, averages));
  if (averages) text += "; its averages";
  write_message(text);
}

}  // namespace

void declare_best(CLI::App& command, bool& best) {
  command.add_flag("--best", best, "Of a run folder the checkpoint that is pinned as the best, not the newest");
}

void declare_base(CLI::App& command, std::string& base) {
  command.add_option("--base", base, "Of adapters (finetune.lora) the folder of their model, where it has moved")
      ->type_name("FOLDER");
}

void declare_averages(CLI::App& command, bool& averages) {
  command.add_flag("--ema", averages, "The averages of the weights, of a run with train.ema, in place of the weights");
}

LocatedModel choose_model(const fs::path& path, bool best, bool averages) {
  LocatedModel located = locate_model(path);
  located.averages = averages;
  if (located.checkpoints.empty()) {
    if (best)
      throw UserError(
          fmt::format("--best: {} is no run folder: the option chooses among a run's checkpoints", path.string()));
    return located;
  }
  for (const CatalogEntry& entry : located.damaged)
    write_message(
        fmt::format("warning: a damaged checkpoint is passed over: {}: {}", entry.path.string(), entry.problem));
  std::optional<BestSoFar> known;
  try {
    known = best_so_far(located.path);
  } catch (const InputError& error) {
    if (best) throw;
    write_message(fmt::format("which checkpoint is the best is unknown: {}", error.what()));
  }
  if (best) {
    choose_best(path, known, averages, located);
  } else {
    tell_newest(known, averages, located);
  }
  return located;
}

void with_older_named(const LocatedModel& located, const std::function<void()>& use) {
  try {
    use();
  } catch (const FileAccessError&) {  // it may be whole
    throw;
  } catch (const BaseModelError&) {  // so is the older ones' base
    throw;
  } catch (const InputError& error) {
    throw InputError(error.what() + older_text(located));
  }
}

LocatedModel choose_checkpoint(const fs::path& path, bool best, bool averages) {
  LocatedModel located = choose_model(path, best, averages);
  if (located.source != ModelSource::checkpoint)
    throw InputError(fmt::format("{} is a Hugging Face folder, not a checkpoint of scaletrain", path.string()));
  return located;
}

LoadedModel load_model(const LocatedModel& located, Backend& backend, Stream& stream,
                       std::optional<TokenizerKind> hugging_face_tokenizer,
                       const LoadedModel::BeforeWeights& before_weights) {
  std::optional<LoadedModel> model;
  std::exception_ptr refused;
  const auto look_first = [&](LoadedModel& found) {
    try {
      before_weights(found);
    } catch (...) {
      refused = std::current_exception();
      throw;
    }
  };
  try {
    with_older_named(located, [&] { model.emplace(located, backend, stream, hugging_face_tokenizer, look_first); });
  } catch (const InputError&) {
    if (refused) std::rethrow_exception(refused);
    throw;
  }
  return std::move(*model);
}

}  // namespace scaletrain
