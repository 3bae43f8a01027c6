// Rules about what only some devices do, and what a config leaves to the device.
#include <doctest/doctest.h>

#include "config_helpers.h"

using namespace scaletrain;

TEST_CASE("NCCL is for ranks on GPUs") {
  CHECK(errors_of(kLeast + "run: {device: cuda}\nlaunch: {transport: nccl}\n") == "accepted");
  CHECK(errors_of(kLeast + "run: {device: cpu}\nlaunch: {transport: nccl}\n") ==
        "c.yaml:4:21: launch.transport: nccl is between GPUs, and this would compute on processors: use auto there");
}

TEST_CASE("tf32 is for what computes on a GPU, whoever has decided that it does") {
  const std::string refusal =
      "precision.compute: tf32 is for GPUs, and this would compute on processors: use fp32 there";
  const std::string asked = kLeast + "run: {device: cuda}\nprecision: {compute: tf32}\n";
  CHECK(errors_of(asked) == "accepted");
  CHECK(errors_of(asked, {"run.device=cpu"}) == "--set run.device=cpu: " + refusal);
  CHECK(errors_of(kLeast + "run: {device: cpu}\nprecision: {compute: tf32}\n") == "c.yaml:4:22: " + refusal);
  CHECK(override_errors({"precision.compute=tf32"}) == "--set precision.compute=tf32: " + refusal);
  for (const DeviceKind chosen : {DeviceKind::cuda, DeviceKind::cpu}) {
    const auto choose = [chosen](const Config&, std::vector<std::string>&) { return chosen; };
    const auto load = [&] {
      return load_text(kLeast, {"run.device=auto", "precision.compute=tf32"}, {}, {.choose_device = choose});
    };
    if (chosen == DeviceKind::cuda)
      CHECK(load().config.precision.compute == Precision::tf32);
    else
      CHECK_THROWS_AS(load(), UserError);
  }
  // For other machines than the run's.
  const Config planned = load_text(asked, {"run.device=cpu"}, {}, {.device = DeviceKind::cuda}).config;
  CHECK(planned.precision.compute == Precision::tf32);
  // What this program wrote is judged too.
  Config written = load_text(asked).config;
  CHECK(parse_resolved_config(resolved_yaml(written), "there").precision.compute == Precision::tf32);
  written.run.device = DeviceKind::cpu;
  CHECK_THROWS_AS(parse_resolved_config(resolved_yaml(written), "there"), InputError);
}

TEST_CASE("CUDA graphs are for GPUs, and change no bit of a resume") {
  const std::string asked = kLeast + "run: {device: cuda}\n";
  CHECK(errors_of(asked, {"run.cuda_graphs=true"}) == "accepted");
  CHECK(errors_of(asked, {"run.cuda_graphs=true", "run.device=cpu"}) ==
        "--set run.cuda_graphs=true: run.cuda_graphs: graphs are for GPUs, and this would compute on processors: use "
        "false there");
  CHECK(errors_of(kLeast, {"run.cuda_graphs=false"}) == "accepted");
  Config with = load_text(asked).config;
  with.run.cuda_graphs = true;
  const std::vector<KeyDifference> differences = compare_configs(load_text(asked).config, with);
  REQUIRE(differences.size() == 1);
  CHECK(differences[0].path == "run.cuda_graphs");
  CHECK(differences[0].rule == ResumeRule::freely);
  CHECK(parse_resolved_config(resolved_yaml(with), "there").run.cuda_graphs);
}

TEST_CASE("offload is for what computes on a GPU, and processors have nothing to offload to") {
  const std::string refusal =
      "train.optimizer.offload: host is for GPUs, and this would compute on processors, whose memory is the host's "
      "already: use none there";
  const std::string asked = kLeast + "run: {device: cuda}\n";
  CHECK(errors_of(asked, {"train.optimizer.offload=host"}) == "accepted");
  CHECK(errors_of(asked, {"train.optimizer.offload=host", "run.device=cpu"}) ==
        "--set train.optimizer.offload=host: " + refusal);
  CHECK(errors_of(kLeast, {"train.optimizer.offload=none"}) == "accepted");
  CHECK(contains(override_errors({"train.optimizer.offload=disk"}), "none, host"));
  // As on the machine that is planned for.
  const Config planned = load_text(kLeast, {"train.optimizer.offload=host"}, {}, {.device = DeviceKind::cuda}).config;
  CHECK(planned.train.optimizer.offload == OffloadKind::host);
  // A resume may change it, and says nothing of what changes no bit.
  Config offloaded = load_text(asked).config;
  offloaded.train.optimizer.offload = OffloadKind::host;
  const std::vector<KeyDifference> differences = compare_configs(load_text(asked).config, offloaded);
  REQUIRE(differences.size() == 1);
  CHECK(differences[0].path == "train.optimizer.offload");
  CHECK(differences[0].rule == ResumeRule::freely);
  CHECK(parse_resolved_config(resolved_yaml(offloaded), "there").train.optimizer.offload == OffloadKind::host);
}

TEST_CASE("precision.compute: auto is fp32 on CPUs and bf16 on GPUs, and the resolved config says which") {
  CHECK(default_precision(DeviceKind::automatic) == Precision::fp32);
  CHECK(default_precision(DeviceKind::cpu) == Precision::fp32);
  CHECK(default_precision(DeviceKind::cuda) == Precision::bf16);
  const Config silent = load_text(kLeast).config;
  CHECK(silent.precision.compute == Precision::fp32);
  CHECK(contains(resolved_yaml(silent), "  compute: fp32\n"));
  CHECK(compare_configs(silent, load_text(kLeast, {"precision.compute=auto"}).config).empty());
  CHECK(compare_configs(silent, load_text(kLeast, {"precision.compute=fp32"}).config).empty());
  const LoadedConfig gpu = load_text(kLeast, {"run.device=cuda"}, {}, {.allow_unsupported = true});
  CHECK(gpu.config.precision.compute == Precision::bf16);
  const LoadOptions planned_for_gpu = {.allow_unsupported = true, .device = DeviceKind::cuda};
  const LoadedConfig planned = load_text(kLeast, {}, {}, planned_for_gpu);
  CHECK(planned.config.precision.compute == Precision::bf16);
  REQUIRE(planned.notices.size() == 1);
  CHECK(contains(planned.notices[0], "precision.compute: auto is bf16 on GPUs"));
  // Nothing to tell where the run would have it so too, or where it is not auto.
  for (const char* setting : {"run.device=cuda", "precision.compute=fp32"})
    CHECK(load_text(kLeast, {setting}, {}, planned_for_gpu).notices.empty());
  CHECK(contains(override_errors({"precision.reduce=auto"}), "precision.reduce"));
}

TEST_CASE("run.device: auto is what whoever looks at the machine says, and the resolved config has it") {
  int asked = 0;
  LoadOptions options;
  options.choose_device = [&asked](const Config& config, std::vector<std::string>& notices) {
    ++asked;
    CHECK(config.parallel.tensor == 1);
    notices.emplace_back("there is one");
    return DeviceKind::cuda;
  };
  const LoadedConfig chosen = load_text(kLeast, {}, {}, options);
  CHECK(chosen.config.run.device == DeviceKind::cuda);
  CHECK(chosen.config.precision.compute == Precision::bf16);
  CHECK(chosen.compute_of_run == Precision::bf16);
  CHECK(chosen.notices == std::vector<std::string>{"there is one"});
  CHECK(contains(resolved_yaml(chosen.config), "  device: cuda\n"));
  CHECK(load_text(kLeast, {"precision.compute=fp32"}, {}, options).config.precision.compute == Precision::fp32);
  CHECK(asked == 2);
  for (const char* setting : {"run.device=cpu", "run.device=cuda"})
    CHECK(load_text(kLeast, {setting}, {}, options).notices.empty());
  CHECK(asked == 2);
  // Nobody looks.
  CHECK(load_text(kLeast).config.run.device == DeviceKind::automatic);
}
