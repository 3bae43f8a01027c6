// Several ranks as real processes: whatever the layout, the losses are those of one rank.
#include <doctest/doctest.h>

#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ranks.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

struct Layout {
  std::string name;
  Settings settings;
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {"data-2", {"parallel.data=2"}},
      {"tensor-2", {"parallel.tensor=2"}},
      {"pipeline-2", {"parallel.pipeline=2"}},
      {"data-2-tensor-2-zero-2", {"parallel.data=2", "parallel.tensor=2", "parallel.zero=2"}},
      {"tensor-2-sequence-pipeline-2-gpipe",
       {"parallel.tensor=2", "parallel.sequence=true", "parallel.pipeline=2", "parallel.schedule=gpipe"}},
      {"data-2-tensor-2-pipeline-2-zero-1",
       {"parallel.data=2", "parallel.tensor=2", "parallel.pipeline=2", "parallel.zero=1"}},
      {"data-2-pipeline-2-zero-3-interleaved",
       {"parallel.data=2", "parallel.pipeline=2", "parallel.zero=3", "parallel.schedule=interleaved",
        "parallel.chunks=2"}},
      {"data-2-pipeline-2-zb-h1", {"parallel.data=2", "parallel.pipeline=2", "parallel.schedule=zb-h1"}},
  };
  return all;
}

}  // namespace

TEST_CASE("every_layout_of_processes_has_the_losses_of_one_rank") {
  for (const Layout& layout : layouts()) {
    CAPTURE(layout.name);
    const Ended end = run_program(layout_launch(layout.name, layout.settings), ranks_patience);
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    check_same_losses(layout.name);
    check_no_process_left(layout.name);
  }
}

TEST_CASE("a_checkpoint_of_one_layout_continues_on_another_with_the_same_losses") {
  const std::string name = "data-2-then-tensor-2-pipeline-2";
  const Ended first = run_program(layout_launch(name, {"parallel.data=2", "parallel.zero=3"}), ranks_patience);
  REQUIRE_MESSAGE(first.exit_code == 0, first.errors);
  for (int step = 10; step <= layout_steps(); step += 5) fs::remove_all(checkpoint(layout_folder(name), step));
  const Ended second =
      run_program(layout_launch(name, {"parallel.tensor=2", "parallel.pipeline=2", "parallel.zero=0"}), ranks_patience);
  REQUIRE_MESSAGE(second.exit_code == 0, second.errors);
  CHECK(second.says("(step 5)"));
  check_same_losses(name);
  check_no_process_left(name);
}

// Grouped keys are held by two ranks each, and every rank has a part of the gradients of their norms.
TEST_CASE("a_model_of_qwen3s_family_has_the_losses_of_one_rank_on_more_ranks_than_key_heads_and_resumes_elsewhere") {
  const Settings model = {"model.norm=rmsnorm",
                          "model.activation=swiglu",
                          "model.position=rope",
                          "model.bias=false",
                          "model.qk_norm=true",
                          "model.head_dim=24",
                          "model.heads=4",
                          "model.kv_heads=2",
                          "model.rope_scaling.type=llama3",
                          "model.rope_scaling.factor=8"};
  const auto with_model = [&](const Settings& settings) {
    Settings all = model;
    all.insert(all.end(), settings.begin(), settings.end());
    return all;
  };
  const auto run = [&](const std::string& name, const Settings& settings) {
    Ended end = run_program(layout_launch(name, with_model(settings)), ranks_patience);
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    check_no_process_left(name);
    return end;
  };
  run("qwen3-one-rank", {});
  const Trajectory expected = trajectory_of(layout_folder("qwen3-one-rank"));
  run("qwen3-tensor-4", {"parallel.tensor=4", "parallel.sequence=true", "train.recompute=selective"});
  check_same_losses("qwen3-tensor-4", expected, 1e-5);
  const std::string name = "qwen3-elsewhere";
  copy_run(layout_folder("qwen3-tensor-4"), name);
  for (int step = 10; step <= layout_steps(); step += 5) fs::remove_all(checkpoint(layout_folder(name), step));
  CHECK(run(name, {"parallel.data=2", "parallel.pipeline=2", "parallel.zero=1", "parallel.schedule=zb-h1"})
            .says("(step 5)"));
  check_same_losses(name, expected, 1e-5);
}

// The rows of its metrics' steps that say which loss scale they were made with: "step scale", by their numbers.
std::map<long, std::string> loss_scales_of(const std::string& run) {
  std::map<long, std::string> scales;
  const std::string key = "\"loss_scale\":";
  std::istringstream lines(read_file(layout_folder(run) / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find(key);
    if (!line.starts_with("{\"kind\":\"step\"") || at == std::string::npos) continue;
    const std::size_t step = line.find("\"step\":", 14) + 7;
    scales[std::stol(line.substr(step))] = line.substr(at + key.size(), line.size() - at - key.size() - 1);
  }
  return scales;
}

TEST_CASE("halves_resume_to_the_bit_also_on_another_layout_and_may_change_to_another_type_with_a_notice") {
  for (const std::string half : {"bf16", "fp16"}) {
    CAPTURE(half);
    const std::string other = half == "bf16" ? "fp32" : "bf16";
    Settings settings = {"parallel.data=2", "parallel.tensor=2", "parallel.zero=1", "precision.compute=" + half};
    if (half == "bf16") settings.insert(settings.begin(), "precision.reduce=bf16");
    const std::string calm_run = half + "-calm";
    const std::string resumed_run = half + "-resumed";
    const std::string changed_run = half + "-then-" + other;
    const std::string moved_run = half + "-on-another-layout";
    const Ended calm = run_program(layout_launch(calm_run, settings), ranks_patience);
    REQUIRE_MESSAGE(calm.exit_code == 0, calm.errors);
    CHECK(calm.says(", in " + half + ", products "));
    CHECK(calm.says(", loss scale 65536 (dynamic)") == (half == "fp16"));
    CHECK(calm.says(", gradients between replicas in bf16") == (half == "bf16"));
    const Trajectory expected = trajectory_of(layout_folder(calm_run));
    CHECK(expected.steps != one_rank().steps);
    const std::string good_steps = "loss_scale.good_steps";
    const nlohmann::json scalars = open_manifest(checkpoint(layout_folder(calm_run), 5)).at("scalars");
    CHECK(scalars.contains(good_steps) == (half == "fp16"));
    for (const std::string& name : {resumed_run, changed_run, moved_run}) {
      copy_run(layout_folder(calm_run), name);
      for (int step = 10; step <= layout_steps(); step += 5) fs::remove_all(checkpoint(layout_folder(name), step));
    }
    const Ended resumed = run_program(layout_launch(resumed_run, settings), ranks_patience);
    REQUIRE_MESSAGE(resumed.exit_code == 0, resumed.errors);
    CHECK(resumed.says("(step 5)"));
    CHECK(trajectory_of(layout_folder(resumed_run)).steps == expected.steps);
    CHECK(loss_scales_of(resumed_run) == loss_scales_of(calm_run));
    CHECK(loss_scales_of(calm_run).size() == (half == "fp16" ? static_cast<std::size_t>(layout_steps()) : 0));
    const auto scalars_at_end = [](const std::string& run) {
      return open_manifest(checkpoint(layout_folder(run), layout_steps())).at("scalars");
    };
    if (half == "fp16") CHECK(scalars_at_end(resumed_run).at(good_steps) == scalars_at_end(calm_run).at(good_steps));
    // Losses within 5e-3, what another layout may change in halves.
    Settings elsewhere = {"parallel.data=2", "parallel.pipeline=2", "parallel.zero=2", "precision.compute=" + half};
    if (half == "bf16") elsewhere.insert(elsewhere.begin(), "precision.reduce=bf16");
    const Ended moved = run_program(layout_launch(moved_run, elsewhere), ranks_patience);
    REQUIRE_MESSAGE(moved.exit_code == 0, moved.errors);
    CHECK(moved.says("(step 5)"));
    check_same_losses(moved_run, expected, 5e-3);
    settings.back() = "precision.compute=" + other;
    const Ended changed = run_program(layout_launch(changed_run, settings), ranks_patience);
    REQUIRE_MESSAGE(changed.exit_code == 0, changed.errors);
    CHECK(changed.says("notice: this resume changes precision.compute: " + half + " in the checkpoint, " + other +
                       " now"));
    CHECK(changed.says(", in " + other));
    CHECK(trajectory_of(layout_folder(changed_run)).last_step() == layout_steps());
    CHECK_FALSE(scalars_at_end(changed_run).contains(good_steps));
  }
}

TEST_CASE("a_resume_may_recompute_more_or_less_and_every_number_is_the_same") {
  Settings settings = {"parallel.pipeline=2", "parallel.schedule=zb-h1", "train.recompute=none"};
  const Ended calm = run_program(layout_launch("keeping", settings), ranks_patience);
  REQUIRE_MESSAGE(calm.exit_code == 0, calm.errors);
  const Trajectory expected = trajectory_of(layout_folder("keeping"));
  // Its first five steps, and the others with recomputation.
  copy_run(layout_folder("keeping"), "recomputing");
  for (const char* kind : {"full", "selective"}) {
    CAPTURE(kind);
    for (int step = 10; step <= layout_steps(); step += 5)
      fs::remove_all(checkpoint(layout_folder("recomputing"), step));
    settings.back() = std::string("train.recompute=") + kind;
    const Ended resumed = run_program(layout_launch("recomputing", settings), ranks_patience);
    REQUIRE_MESSAGE(resumed.exit_code == 0, resumed.errors);
    CHECK(resumed.says("(step 5)"));
    CHECK_FALSE(resumed.says("this resume changes"));
    const Trajectory found = trajectory_of(layout_folder("recomputing"));
    CHECK(found.steps == expected.steps);
    CHECK(found.evaluations == expected.evaluations);
  }
}

TEST_CASE("a_killed_rank_is_named_all_start_anew_and_every_number_is_the_same") {
  const Settings settings = {"parallel.data=2", "parallel.pipeline=2", "parallel.zero=1", "train.steps=100",
                             "checkpoint.every=10"};
  const Ended undisturbed = run_program(layout_launch("calm", settings), ranks_patience);
  REQUIRE_MESSAGE(undisturbed.exit_code == 0, undisturbed.errors);
  Program agent(layout_launch("stricken", settings));
  REQUIRE_MESSAGE(reaches_step(agent, "stricken", 12), agent.errors());
  const auto workers = workers_by_rank(agent, 4);
  REQUIRE(workers.size() == 4);
  ::kill(workers[2], SIGKILL);
  const Ended end = agent.wait(ranks_patience);
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(end.says("worker " + std::to_string(workers[2]) + " was killed by signal 9"));
  CHECK(end.says("restart 1 of"));
  const Trajectory expected = trajectory_of(layout_folder("calm"));
  const Trajectory found = trajectory_of(layout_folder("stricken"));
  CHECK(found.steps == expected.steps);
  CHECK(found.evaluations == expected.evaluations);
  check_no_process_left("stricken");
}

TEST_CASE("a_stopped_rank_is_found_and_replaced") {
  const Settings settings = {"parallel.tensor=2", "train.steps=150", "checkpoint.every=50", "supervise.heartbeat=4s"};
  Program agent(layout_launch("stopped-rank", settings));
  REQUIRE_MESSAGE(reaches_step(agent, "stopped-rank", 7), agent.errors());
  const auto workers = workers_by_rank(agent, 2);
  REQUIRE(workers.size() == 2);
  const pid_t worker = workers[1];
  ::kill(worker, SIGSTOP);
  const Ended end = agent.wait(ranks_patience);
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  // By the other rank's deadline, or by the agent.
  CHECK(end.says("rank 1"));
  CHECK(end.says("restart 1 of"));
  CHECK_FALSE(is_alive(worker));
  check_no_process_left("stopped-rank");
}

TEST_CASE("an_interruption_makes_all_ranks_save_one_checkpoint_and_the_run_goes_on_from_it") {
  const Settings settings = {"parallel.data=2", "parallel.tensor=2", "train.steps=100000", "checkpoint.every=100000"};
  Program agent(layout_launch("interrupted", settings));
  REQUIRE_MESSAGE(reaches_step(agent, "interrupted", 5), agent.errors());
  agent.signal(SIGTERM);
  const Ended end = agent.wait(ranks_patience);
  CHECK_MESSAGE(end.exit_code == 75, end.errors);
  const long reached = trajectory_of(layout_folder("interrupted")).last_step();
  CHECK(checkpoint_names(layout_folder("interrupted")).size() == 1);
  CHECK(fs::exists(checkpoint(layout_folder("interrupted"), static_cast<int>(reached))));
  check_no_process_left("interrupted");
}

TEST_CASE("a_killed_agent_takes_all_workers_along") {
  Program agent(layout_launch("orphans", {"parallel.data=2", "parallel.tensor=2", "train.steps=100000"}));
  REQUIRE_MESSAGE(reaches_step(agent, "orphans", 2), agent.errors());
  CHECK(children_of(agent.pid()).size() == 4);
  agent.signal(SIGKILL);
  agent.wait();
  check_no_process_left("orphans");
}

TEST_CASE("no_command_line_shows_the_secret") {
  Program agent(layout_launch("secret", {"parallel.data=2", "train.steps=100000"}));
  REQUIRE_MESSAGE(reaches_step(agent, "secret", 1), agent.errors());
  const auto workers = workers_by_rank(agent, 2);
  REQUIRE(workers.size() == 2);
  for (const pid_t worker : workers) {
    const std::string environment = read_file("/proc/" + std::to_string(worker) + "/environ");
    const std::string key = "SCALETRAIN_SECRET=";
    const std::size_t at = environment.find(key);
    REQUIRE(at != std::string::npos);
    const std::string secret = environment.substr(at + key.size(), 64);
    CHECK(read_file("/proc/" + std::to_string(worker) + "/cmdline").find(secret) == std::string::npos);
  }
}

}  // namespace scaletrain
