#include "host/launcher.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/text.h"

namespace scaletrain {
namespace {

using Lookup = std::function<std::optional<std::string>(const std::string&)>;

// How one kind of launcher spells a place. Every variable of `required` must be there; an empty name means that the
// kind does not tell.
struct Dialect {
  std::string launcher;
  std::string rank;
  std::string world;
  std::string local_rank;
  std::string local_world;
  std::vector<std::string> required;
  std::vector<std::string> job;  // joined by dots, if all are there
  bool is_per_node = false;
};

const std::vector<Dialect>& dialects() {
  static const std::vector<Dialect> all = {
      {"SCALETRAIN_NODE",
       "SCALETRAIN_NODE",
       "SCALETRAIN_NODES",
       "",
       "",
       {"SCALETRAIN_NODE", "SCALETRAIN_NODES"},
       {"SCALETRAIN_JOB"},
       true},
      {"torchrun",
       "RANK",
       "WORLD_SIZE",
       "LOCAL_RANK",
       "LOCAL_WORLD_SIZE",
       {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
       {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}},
      {"PyTorchJob", "RANK", "WORLD_SIZE", "", "", {"RANK", "WORLD_SIZE", "MASTER_ADDR"}, {}},
      {"Open MPI",
       "OMPI_COMM_WORLD_RANK",
       "OMPI_COMM_WORLD_SIZE",
       "OMPI_COMM_WORLD_LOCAL_RANK",
       "OMPI_COMM_WORLD_LOCAL_SIZE",
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
       {"PMIX_NAMESPACE"}},
      {"MPI (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", {"PMI_RANK", "PMI_SIZE"}, {}},
  };
  return all;
}

std::optional<std::int64_t> number_in(const Lookup& variable, const std::string& name) {
  const auto text = variable(name);
  if (!text || text->empty()) return std::nullopt;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < 0)
    throw UserError(
        fmt::format("the environment's {} is {}: expected a whole number that is not negative; it is read "
                    "because a launcher sets it, unset it to start without one",
                    name, quoted(*text)));
  return value;
}

bool is_set(const Lookup& variable, const std::string& name) {
  const auto text = variable(name);
  return text && !text->empty();
}

std::string joined(const std::vector<std::string>& words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : std::string(separator)) + word;
  return text;
}

std::string job_of(const Lookup& variable, const std::vector<std::string>& names) {
  std::vector<std::string> parts;
  for (const std::string& name : names) {
    const auto text = variable(name);
    // torchrun's run id where nobody gave one
    if (!text || text->empty() || *text == "none") return {};
    parts.push_back(*text);
  }
  return joined(parts, ".");
}

void require_possible(const LauncherPlace& place, const std::string& rank, const std::string& world) {
  const auto refuse = [&](std::string_view what) {
    throw UserError(
        fmt::format("{}: the environment says what cannot be: {} (from {} = {}, {} = {}, local rank {} of "
                    "{}); unset these variables to start without a launcher",
                    place.launcher, what, rank, place.rank, world, place.world, place.local_rank, place.local_world));
  };
  if (place.world < 1) refuse("a world without ranks");
  if (place.rank >= place.world) refuse("the rank is not below the world");
  if (place.local_world < 1 || place.local_world > place.world) refuse("the host has none or more than all ranks");
  if (place.local_rank >= place.local_world) refuse("the local rank is not below the host's number of ranks");
}

// "2(x3),1" on node 3: 1. Nothing if the text is none of SLURM's lists.
std::optional<std::int64_t> tasks_of_node(std::string_view list, std::int64_t node) {
  for (const std::string& group : split_text(list, ',')) {
    std::int64_t tasks = 0;
    std::int64_t repeats = 1;
    const char* const end = group.data() + group.size();
    const auto first = std::from_chars(group.data(), end, tasks);
    if (first.ec != std::errc()) return std::nullopt;
    if (first.ptr != end) {
      const std::string_view rest(first.ptr, static_cast<std::size_t>(end - first.ptr));
      if (!rest.starts_with("(x") || !rest.ends_with(")")) return std::nullopt;
      const auto second = std::from_chars(rest.data() + 2, rest.data() + rest.size() - 1, repeats);
      if (second.ec != std::errc() || second.ptr != rest.data() + rest.size() - 1) return std::nullopt;
    }
    if (node < repeats) return tasks;
    node -= repeats;
  }
  return std::nullopt;
}

std::string slurm_job(const Lookup& variable) {
  const auto job = variable("SLURM_JOB_ID");
  if (!job) return {};
  return fmt::format("{}.{}.{}", *job, variable("SLURM_STEP_ID").value_or(""),
                     variable("SLURM_RESTART_COUNT").value_or("0"));
}

// Nothing outside of a step, and in a step of one task: an allocation's other variables are in batch scripts too.
std::optional<LauncherPlace> slurm_place(const Lookup& variable) {
  if (!is_set(variable, "SLURM_STEP_ID")) return std::nullopt;
  const char* const world_name = is_set(variable, "SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  const auto world = number_in(variable, world_name);
  if (world && *world == 1) return std::nullopt;
  const auto rank = number_in(variable, "SLURM_PROCID");
  const auto local_rank = number_in(variable, "SLURM_LOCALID");
  if (!world || !rank || !local_rank)
    throw UserError(
        "SLURM: the environment of a step lacks some of SLURM_STEP_NUM_TASKS (or SLURM_NTASKS), SLURM_PROCID and "
        "SLURM_LOCALID; start with srun, or unset SLURM_STEP_ID to start without it");
  LauncherPlace place{.launcher = "SLURM",
                      .rank = *rank,
                      .world = *world,
                      .local_rank = *local_rank,
                      .local_world = *local_rank + 1,
                      .knows_local_world = false,
                      .job = slurm_job(variable)};
  const auto node = number_in(variable, "SLURM_NODEID");
  if (const auto list = variable("SLURM_STEP_TASKS_PER_NODE"); list && node)
    if (const auto tasks = tasks_of_node(*list, *node)) {
      place.local_world = *tasks;
      place.knows_local_world = true;
    }
  require_possible(place, "SLURM_PROCID", world_name);
  const auto nodes =
      number_in(variable, is_set(variable, "SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES");
  place.is_per_node = nodes == world;
  return place;
}

bool is_complete(const Dialect& dialect, const Lookup& variable) {
  for (const std::string& name : dialect.required)
    if (!is_set(variable, name)) return false;
  return true;
}

LauncherPlace read_place(const Dialect& dialect, const Lookup& variable) {
  LauncherPlace place;
  place.launcher = dialect.launcher;
  place.rank = number_in(variable, dialect.rank).value_or(0);
  place.world = number_in(variable, dialect.world).value_or(1);
  const auto local_rank = dialect.local_rank.empty() ? std::nullopt : number_in(variable, dialect.local_rank);
  const auto local_world = dialect.local_world.empty() ? std::nullopt : number_in(variable, dialect.local_world);
  place.local_rank = local_rank.value_or(0);
  // Without a word about the host, there are at least the ranks up to this one.
  place.local_world = local_world.value_or(place.local_rank + 1);
  place.knows_local_world = local_world || dialect.launcher == "PyTorchJob";
  place.job = job_of(variable, dialect.job);
  place.is_per_node = dialect.is_per_node;
  require_possible(place, dialect.rank, dialect.world);
  if (!local_rank && dialect.launcher == "MPI (PMI)" && is_set(variable, "SLURM_STEP_ID")) {
    if (const auto slurm = slurm_place(variable); slurm && slurm->rank == place.rank && slurm->world == place.world)
      return *slurm;
  }
  return place;
}

// A kind of which only some variables are there: something went wrong on the way here, and to train alone, as rank 0 of
// one, would be a surprise.
void refuse_partial(const Lookup& variable) {
  for (const Dialect& dialect : dialects()) {
    if (dialect.launcher == "PyTorchJob") continue;  // it shares its variables with torchrun
    std::vector<std::string> found;
    std::vector<std::string> missing;
    for (const std::string& name : dialect.required) (is_set(variable, name) ? found : missing).push_back(name);
    if (found.empty()) continue;
    throw UserError(
        fmt::format("{}: the environment has {} but not {}; start with the launcher, or unset {} to start without one",
                    dialect.launcher, joined(found, ", "), joined(missing, ", "), joined(found, ", ")));
  }
}

}  // namespace

std::optional<LauncherPlace> detect_launcher(const Lookup& variable) {
  for (const Dialect& dialect : dialects()) {
    if (!is_complete(dialect, variable)) continue;
    LauncherPlace place = read_place(dialect, variable);
    if (place.world == 1) return std::nullopt;
    return place;
  }
  if (auto place = slurm_place(variable)) return place;
  refuse_partial(variable);
  return std::nullopt;
}

std::optional<LauncherPlace> detect_launcher() {
  return detect_launcher([](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

std::vector<std::string> launcher_variables() {
  std::vector<std::string> names = {"LOCAL_WORLD_SIZE", "MASTER_ADDR",    "MASTER_PORT",   "SLURM_STEP_ID",
                                    "SLURM_STEPID",     "SLURM_PROCID",   "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS",
                                    "MPI_LOCALRANKID",  "MPI_LOCALNRANKS"};
  for (const Dialect& dialect : dialects()) names.insert(names.end(), dialect.required.begin(), dialect.required.end());
  return names;
}

}  // namespace scaletrain
