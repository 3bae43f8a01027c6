#include "slurm_scenes.h"

#include <doctest/doctest.h>

#include <fstream>

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

// Stands in for the program: says where the run would be, as it does, and then does that.
std::string does(const std::string& name, const std::string& what) {
  const fs::path program = workspace() / name;
  std::ofstream(program) << "#!/bin/bash\n"
                         << "case \"$*\" in *--print-directory) exec " << SCALETRAIN_PROGRAM << " \"$@\" ;; esac\n"
                         << what << "\n";
  fs::permissions(program, fs::perms::owner_all);
  return program.string();
}

// The first node's is the last to end.
std::string ends_with(int code) {
  return does("ends-with-" + std::to_string(code),
              "[ \"$SLURM_PROCID\" != 0 ] || sleep 2; exit " + std::to_string(code));
}

// Leaves with 75, from its second start with a checkpoint behind it.
std::string seldom_saves(const std::string& run) {
  const std::string saved = (layout_folder(run) / "checkpoints" / "step-00000020").string();
  return does("seldom-saves", "if [ \"$SLURM_RESTART_COUNT\" = 1 ]; then mkdir -p " + saved + "; touch " + saved +
                                  "/manifest.json; fi; exit 75");
}

// Whatever its program does, it never ends by itself nor saves, and SIGTERM alone does not end it.
std::string never_ends() {
  return does("never-ends", "trap '' TERM USR1; echo \"runs $SLURM_RESTART_COUNT\"; while :; do sleep 1; done");
}
const Settings endless = {"train.steps=1000000"};
const Settings elastic_settings = {"supervise={elastic: {min_data: 2}, heartbeat: 30s}"};
const Environment elastic = {{"SCALETRAIN_ELASTIC", "1"}};

}  // namespace

KeptNodes::KeptNodes()
    : early("slurm-early", on_nodes(6, 7), two_replicas),
      troubled("slurm-troubled", with(on_nodes(10, 10), {"--comment=mine"}), two_replicas,
               {{"SCALETRAIN", ends_with(4)}, {"SCALETRAIN_TROUBLES", "1"}}),
      // On two: srun ends the others when one has left.
      damaged("slurm-damaged", on_nodes(12, 13), two_replicas, {{"SCALETRAIN", ends_with(3)}}),
      stalled("slurm-stalled", with(on_nodes(11, 11), {"--comment=mine"}), two_replicas,
              {{"SCALETRAIN", seldom_saves("slurm-stalled")}, {"SCALETRAIN_STALLS", "2"}}) {
  early.wait_for_text("2 nodes", 60.0);
  ask("scancel", {"--batch", "--signal=USR1", early.id()});
  cancelled.emplace("slurm-cancelled", on_nodes(8, 9), with(two_replicas, endless));
  cancelled->wait_for_step(20);
  ask("scancel", {cancelled->id()});
  requeued.emplace("slurm-requeued", on_nodes(0, 1), two_replicas);
  requeued->wait_for_step(60);
  ask("scontrol", {"requeue", requeued->id()});
  first_killed.emplace("slurm-killed-0", on_nodes(2, 3), two_replicas);
  first_killed->wait_for_step(40);
  kill_agent(*first_killed, "SLURM_NODEID=0");
  other_killed.emplace("slurm-killed-1", on_nodes(4, 5), two_replicas);
  other_killed->wait_for_step(40);
  kill_agent(*other_killed, "SLURM_NODEID=1");
  wait_for_ends({&*requeued, &*first_killed, &*other_killed, &early, &*cancelled, &troubled, &damaged, &stalled},
                300.0);
}

Limited::Limited()
    : job("slurm-limited", with(on_nodes(12, 13), {"--time=00:02:00", "--signal=B:USR1@40"}),
          with(two_replicas, endless)) {
  if (job.wait_for_text(was_put_back, 180.0)) reached_at = trajectory_of(job.folder()).last_step();
  job.wait_for_start(180.0);
  job.wait_for_step(reached_at + 20);
  ask("scancel", {job.id()});
  job.wait_for_end(120.0);
}

Regrown::Regrown()
    : job("slurm-regrown", with(on_nodes(14, 16), {"--no-kill"}), with(with(two_replicas, elastic_settings), endless),
          elastic) {
  if (job.wait_for_step(40)) kill_agent(job, "SCALETRAIN_NODE=2");
  const std::size_t starts = wait_until_grown(2);
  testbed().kill_node("n16");
  testbed().start_node("n16");
  wait_until_grown(starts + 2);
  ask("scancel", {"--batch", "--signal=USR1", job.id()});
  job.wait_for_text(was_put_back, 120.0);
  ask("scancel", {job.id()});
  job.wait_for_end(120.0);
}

// How many starts there were then: so many at least, the last with all nodes.
std::size_t Regrown::wait_until_grown(std::size_t starts) const {
  std::vector<long> replicas;
  comes_true(
      [&] {
        replicas = replicas_of_starts(job);
        return replicas.size() >= starts && replicas.back() == 3;
      },
      240.0);
  return replicas.size();
}

LostNodes::LostNodes()
    : swept("slurm-swept", with(on_nodes(12, 12), {"--comment=mine"}), two_replicas,
            {{"SCALETRAIN", never_ends()}, {"SCALETRAIN_STALLS", "1"}}) {
  const Settings elastic_replicas = with(two_replicas, elastic_settings);
  shrunk.emplace("slurm-elastic", with(count_of_nodes(3, 7, 9), {"--no-kill"}), elastic_replicas, elastic);
  lose(*shrunk, 2);
  sweep("");
  headless.emplace("slurm-headless", with(count_of_nodes(3, 3, 6), {"--no-kill"}), elastic_replicas, elastic);
  lose(*headless, 0);
  bereft.emplace("slurm-bereft", count_of_nodes(2, 0, 2), two_replicas);
  lose(*bereft, 1);
  blinked.emplace("slurm-blinked", on_nodes(10, 11), with(two_replicas, {"supervise={heartbeat: 30s}"}),
                  Environment{{"SLURM_WAIT", "5"}});
  lose(*blinked, 1);
  testbed().start_node("n11");
  sweep("1");
  wait_for_ends({&*bereft, &*headless, &*shrunk, &*blinked, &swept}, 300.0);
  for (const std::string& node : lost_)
    if (node != "n11") testbed().start_node(node);
}

void LostNodes::lose(const Job& job, std::size_t index) {
  if (!job.wait_for_step(40) || job.nodes().size() <= index) return;
  lost_.push_back(job.nodes()[index]);
  testbed().kill_node(lost_.back());
}

// The number of the job's restarts before is not set in its first start.
void LostNodes::sweep(const std::string& restarts) {
  comes_true([&] { return swept.is_over() || swept.output().find("runs " + restarts + "\n") != std::string::npos; },
             120.0);
  ask("scontrol", {"requeue", swept.id()});
}

const Scenes& scenes() {
  static const Scenes all;
  return all;
}

bool is_there() {
  if (!Testbed::is_root()) {
    MESSAGE("skipped: only root can start a SLURM testbed");
    return false;
  }
  REQUIRE_MESSAGE(testbed().problem().empty(), testbed().problem());
  scenes();
  return true;
}

}  // namespace scaletrain
