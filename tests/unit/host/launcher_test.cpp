#include "host/launcher.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>

#include "base/error.h"
#include "support/text.h"

namespace scaletrain {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<LauncherPlace> detect(const Variables& variables) {
  return detect_launcher([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string refusal(const Variables& variables) {
  return message_of<UserError>([&] { detect(variables); });
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}
Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

const Variables torchrun = {{"RANK", "5"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"TORCHELASTIC_RUN_ID", "job7"},
                            {"TORCHELASTIC_RESTART_COUNT", "2"},
                            {"MASTER_ADDR", "node0"},
                            {"MASTER_PORT", "29500"}};
const Variables open_mpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables mpich = {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}};
// What sbatch gives its script, here of a job of eight tasks on two nodes.
const Variables batch = {{"SLURM_JOB_ID", "42"},
                         {"SLURM_NTASKS", "8"},
                         {"SLURM_PROCID", "0"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_NODEID", "0"}};
const Variables step = with(batch, {{"SLURM_STEP_ID", "1"},
                                    {"SLURM_STEP_NUM_TASKS", "8"},
                                    {"SLURM_PROCID", "6"},
                                    {"SLURM_LOCALID", "1"},
                                    {"SLURM_NODEID", "1"},
                                    {"SLURM_STEP_TASKS_PER_NODE", "5,3"},
                                    {"SLURM_RESTART_COUNT", "3"}});

}  // namespace

TEST_CASE("an environment without a launcher is an agent's") {
  CHECK_FALSE(detect({}));
  CHECK_FALSE(detect({{"PATH", "/bin"}, {"HOME", "/root"}, {"MASTER_ADDR", "node0"}, {"OMP_NUM_THREADS", "1"}}));
  CHECK_FALSE(detect({{"RANK", ""}, {"WORLD_SIZE", ""}}));
}

TEST_CASE("torchrun's variables give the place and the job with its restart count") {
  const auto place = detect(torchrun);
  REQUIRE(place);
  CHECK(place->launcher == "torchrun");
  CHECK(place->rank == 5);
  CHECK(place->world == 8);
  CHECK(place->local_rank == 1);
  CHECK(place->local_world == 4);
  CHECK(place->job == "job7.2");
  CHECK(detect(with(torchrun, {{"TORCHELASTIC_RUN_ID", "none"}}))->job.empty());
  CHECK(place->knows_local_world);
  const auto uncounted = detect(without(torchrun, "LOCAL_WORLD_SIZE"));
  CHECK(uncounted->local_rank == 1);
  CHECK_FALSE(uncounted->knows_local_world);
}

TEST_CASE("a PyTorchJob has one rank per host") {
  const auto place = detect({{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "job-master-0"}});
  REQUIRE(place);
  CHECK(place->rank == 3);
  CHECK(place->world == 4);
  CHECK(place->local_rank == 0);
  CHECK(place->local_world == 1);
  CHECK(place->knows_local_world);
}

TEST_CASE("mpirun's variables give the place") {
  const auto open = detect(open_mpi);
  REQUIRE(open);
  CHECK(open->launcher == "Open MPI");
  CHECK(open->rank == 3);
  CHECK(open->world == 4);
  CHECK(open->local_rank == 1);
  CHECK(open->local_world == 2);
  const auto pmi = detect(mpich);
  REQUIRE(pmi);
  CHECK(pmi->launcher == "MPI (PMI)");
  CHECK(pmi->rank == 2);
  CHECK(pmi->world == 4);
  CHECK(pmi->local_rank == 0);
  CHECK(pmi->local_world == 2);
  CHECK(pmi->knows_local_world);
  CHECK_FALSE(detect({{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}})->knows_local_world);
}

TEST_CASE("several tasks in a SLURM step are workers; the nodes' counts of tasks are understood") {
  const auto place = detect(step);
  REQUIRE(place);
  CHECK(place->launcher == "SLURM");
  CHECK(place->rank == 6);
  CHECK(place->world == 8);
  CHECK(place->local_rank == 1);
  CHECK(place->local_world == 3);
  CHECK(place->job == "42.1.3");
  const auto repeated = detect(with(step, {{"SLURM_STEP_TASKS_PER_NODE", "2(x3),1(x2)"}, {"SLURM_NODEID", "2"}}));
  REQUIRE(repeated);
  CHECK(repeated->local_world == 2);
  CHECK(repeated->knows_local_world);
  CHECK_FALSE(detect(without(step, "SLURM_STEP_TASKS_PER_NODE"))->knows_local_world);
  // Without the list there are at least the tasks up to this one.
  CHECK(detect(without(step, "SLURM_STEP_TASKS_PER_NODE"))->local_world == 2);
  CHECK(detect(with(step, {{"SLURM_STEP_TASKS_PER_NODE", "odd"}}))->local_world == 2);
  CHECK(detect(without(step, "SLURM_STEP_NUM_TASKS"))->world == 8);
}

TEST_CASE("one SLURM task per node is an agent; several per node, or on one node, are not") {
  const Variables one_each = with(step, {{"SLURM_STEP_NUM_TASKS", "2"},
                                         {"SLURM_STEP_NUM_NODES", "2"},
                                         {"SLURM_NNODES", "4"},
                                         {"SLURM_PROCID", "1"},
                                         {"SLURM_LOCALID", "0"},
                                         {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}});
  const auto agent = detect(one_each);
  REQUIRE(agent);
  CHECK(agent->is_per_node);
  CHECK(agent->rank == 1);
  CHECK(agent->world == 2);
  CHECK(agent->local_world == 1);
  CHECK(agent->job == "42.1.3");
  // Started with PMI, as SLURM does by default on some clusters.
  CHECK(detect(with(one_each, {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}))->is_per_node);
  // Without the step's own number the allocation's counts.
  CHECK(detect(with(without(one_each, "SLURM_STEP_NUM_NODES"), {{"SLURM_NNODES", "2"}}))->is_per_node);
  CHECK_FALSE(detect(without(one_each, "SLURM_STEP_NUM_NODES"))->is_per_node);
  CHECK_FALSE(detect(with(step, {{"SLURM_STEP_NUM_NODES", "2"}}))->is_per_node);
  CHECK_FALSE(detect(with(one_each, {{"SLURM_STEP_NUM_NODES", "1"}}))->is_per_node);
  CHECK_FALSE(detect(torchrun)->is_per_node);
}

TEST_CASE("agents without SLURM are told apart by variables of our own") {
  const Variables node = {{"SCALETRAIN_NODE", "2"}, {"SCALETRAIN_NODES", "3"}};
  const auto place = detect(with(node, step));
  REQUIRE(place);
  CHECK(place->is_per_node);
  CHECK(place->rank == 2);
  CHECK(place->world == 3);
  CHECK(place->job.empty());
  CHECK(detect(with(node, {{"SCALETRAIN_JOB", "j7"}}))->job == "j7");
  CHECK_FALSE(detect({{"SCALETRAIN_NODE", "0"}, {"SCALETRAIN_NODES", "1"}}));
  CHECK(contains(refusal({{"SCALETRAIN_NODE", "3"}, {"SCALETRAIN_NODES", "3"}}), "the rank is not below the world"));
  CHECK(contains(refusal({{"SCALETRAIN_NODE", "0"}}), "but not SCALETRAIN_NODES"));
}

TEST_CASE("a batch script and a step of one task are an agent's") {
  CHECK_FALSE(detect(batch));
  // One agent per node is started so, and the interactive shell of an allocation of many tasks looks like it.
  CHECK_FALSE(detect(with(step, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}})));
}

TEST_CASE("a world of one is an agent's") {
  CHECK_FALSE(detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}}));
  CHECK_FALSE(detect({{"OMPI_COMM_WORLD_RANK", "0"},
                      {"OMPI_COMM_WORLD_SIZE", "1"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}));
  CHECK_FALSE(detect({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}));
}

TEST_CASE("the first complete kind wins") {
  CHECK(detect(with(torchrun, step))->launcher == "torchrun");
  CHECK(detect(with(open_mpi, step))->launcher == "Open MPI");
  // mpirun inside a batch script
  CHECK(detect(with(open_mpi, batch))->launcher == "Open MPI");
  // What is there in part does not stand in the way of what is whole.
  CHECK(detect(with(step, {{"LOCAL_RANK", "1"}}))->launcher == "SLURM");
}

TEST_CASE("srun with PMI tells the host's share of the ranks by SLURM's own variables") {
  const auto place = detect(with(step, {{"PMI_RANK", "6"}, {"PMI_SIZE", "8"}}));
  REQUIRE(place);
  CHECK(place->rank == 6);
  CHECK(place->local_rank == 1);
  CHECK(place->local_world == 3);
  // mpirun inside a step that is something else
  const auto other = detect(with(step, {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}));
  REQUIRE(other);
  CHECK(other->launcher == "MPI (PMI)");
  CHECK(other->world == 2);
}

TEST_CASE("a kind that is there in part is refused, naming what is there and what is not") {
  const std::string torch = refusal({{"WORLD_SIZE", "4"}});
  CHECK(contains(torch, "the environment has WORLD_SIZE but not RANK, LOCAL_RANK"));
  const std::string open = refusal(without(open_mpi, "OMPI_COMM_WORLD_SIZE"));
  CHECK(contains(open, "but not OMPI_COMM_WORLD_SIZE"));
  CHECK(contains(refusal({{"PMI_RANK", "1"}}), "the environment has PMI_RANK but not PMI_SIZE"));
  CHECK(contains(refusal(without(step, "SLURM_PROCID")), "SLURM_PROCID"));
  CHECK(contains(refusal(without(step, "SLURM_LOCALID")), "SLURM_LOCALID"));
}

TEST_CASE("what cannot be is refused, naming the variables") {
  const std::string beyond = refusal(with(torchrun, {{"RANK", "8"}}));
  CHECK(contains(beyond, "the rank is not below the world"));
  CHECK(contains(beyond, "RANK = 8"));
  CHECK(contains(beyond, "WORLD_SIZE = 8"));
  CHECK(contains(refusal(with(torchrun, {{"WORLD_SIZE", "0"}})), "a world without ranks"));
  CHECK(contains(refusal(with(torchrun, {{"LOCAL_RANK", "4"}})), "the local rank is not below"));
  CHECK(contains(refusal(with(torchrun, {{"LOCAL_WORLD_SIZE", "9"}})), "more than all ranks"));
  CHECK(contains(refusal(with(step, {{"SLURM_PROCID", "8"}})), "SLURM_PROCID = 8"));
  for (const char* text : {"-1", "two", "1.5", "99999999999999999999", " 1"}) {
    CAPTURE(text);
    const std::string message = refusal(with(torchrun, {{"RANK", text}}));
    CHECK(contains(message, "RANK"));
    CHECK(contains(message, "whole number"));
  }
}

TEST_CASE("a child without the launcher's variables is no launcher's") {
  Variables all = with(with(with(torchrun, open_mpi), mpich), step);
  all = with(all, {{"SCALETRAIN_NODE", "0"}, {"SCALETRAIN_NODES", "2"}});
  for (const std::string& name : launcher_variables()) all.erase(name);
  CHECK_FALSE(detect(all));
}

}  // namespace scaletrain
