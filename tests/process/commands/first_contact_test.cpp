// What somebody who meets the program sees: what it is, whether a run fits, how a run tells of itself, and its picture.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include "base/text.h"
#include "process/tiny_run.h"
#include "refusal.h"
#include "support/near.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

std::vector<nlohmann::json> metrics_of(const fs::path& run, const std::string& kind) {
  std::vector<nlohmann::json> lines;
  const std::string text = read_file(run / "metrics.jsonl");
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    nlohmann::json line = nlohmann::json::parse(text.substr(begin, end - begin));
    if (line.at("kind") == kind) lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

bool says(const std::string& text, const std::string& pattern) {
  return std::regex_search(text, std::regex(pattern));
}

TEST_CASE("the_version_tells_the_build_its_libraries_and_the_kernels_of_this_machine") {
  const Ended end = workspace().run({"--version"});
  REQUIRE(end.exit_code == 0);
  CHECK(says(end.output, "^scaletrain [0-9]+\\.[0-9]+\\.[0-9]+( \\(commit [0-9a-f]{7,}( with local changes)?\\))?\n"));
  CHECK(says(end.output, "\nbuilt +by (GCC|Clang) [0-9]+\\.[0-9]+.*, (Release|Debug)\n"));
  for (const char* library :
       {"oneDNN", "Gloo", "libsodium", "xxHash", "yaml-cpp", "CLI11", "nlohmann/json", "fmt", "spdlog"})
    CHECK_MESSAGE(says(end.output, std::string(library) + "\\s+[0-9]+\\.[0-9]+"), library);
  CHECK(says(
      end.output,
      "\nkernels +(portable|avx2 \\(avx2, fma, f16c\\)|avx512 \\(avx512f,[a-z0-9,\\s]*\\));\\s+matrix\\s+products\\s+"
      "by\\s+oneDNN\\s+with\\s+[a-z]+[a-z0-9_]*\n"));
  CHECK(says(end.output, "\nprocessors +[1-9][0-9]* usable"));
  for (const std::string& line : split_text(end.output, '\n')) CHECK_MESSAGE(line.size() <= 80, line);
}

TEST_CASE("check_tells_about_how_many_steps_epochs_are_and_says_where_it_cannot") {
  const auto check = [](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"check", "config.yaml", "--set", "train.epochs=2.5"};
    words.insert(words.end(), more.begin(), more.end());
    const Ended end = workspace().run(words);
    CHECK_MESSAGE(end.exit_code == 0, end.errors);
    return end.output;
  };
  // A byte a token.
  const nlohmann::json plan = nlohmann::json::parse(check({"--json"}));
  const double context = plan.at("work").at("tokens").get<double>() / plan.at("work").at("samples").get<double>();
  const double samples = static_cast<double>(fs::file_size(workspace() / "train.txt")) / context;
  const double steps = 2.5 * samples / plan.at("global_batch").get<double>();
  CHECK(plan.at("steps").get<double>() >= steps);
  CHECK(plan.at("steps").get<double>() <= steps + 4);
  CHECK(plan.at("work").at("sources")[0].at("epochs").get<double>() == Near(2.5).epsilon(0.05));
  CHECK(says(check({}), "\nsteps +about [0-9,]+ \\(train.epochs 2.5, by the sizes of the files; a start\\s+counts\\)"));
  CHECK(says(check({}), "\nwork +about "));
  // Nobody knows how many bytes of an archive are a token.
  workspace().write("packed/a.txt.gz", read_file(workspace() / "train.txt"));
  const std::vector<std::string> packed = {"--set", "data.train=[{path: packed}]"};
  CHECK(says(check(packed), "\nsteps +counted at the start \\(train.epochs 2.5\\), of "));
  CHECK(says(check(packed), "\nwork +of a step: "));
  CHECK_FALSE(says(check(packed), " in all"));
  std::vector<std::string> json = packed;
  json.emplace_back("--json");
  const nlohmann::json unknown = nlohmann::json::parse(check(json));
  CHECK(unknown.at("steps").is_null());
  CHECK(unknown.at("steps_are") == "unknown");
  for (const char* key : {"samples", "tokens", "flops"}) CHECK(unknown.at("work").at(key).is_null());
  for (const char* key : {"seconds", "host_hours"}) CHECK(unknown.at("time").at(key).is_null());
  CHECK(unknown.at("time").at("step_seconds").get<double>() > 0);
  CHECK(plan.at("steps_are") == "estimated");
}

TEST_CASE("check_counts_what_the_choices_of_tasks_cost") {
  workspace().write("task.jsonl", R"({"question": "a", "choices": ["b", "c"], "answer": 0}
{"question": "d", "choices": ["e", "f", "g"], "answer": "g"}
)");
  const auto check = [](const std::string& task, std::vector<std::string> more) {
    more.insert(more.begin(), {"check", "config.yaml", "--set", "evaluate.tasks=[{name: t, path: " + task + "}]"});
    return workspace().run(more);
  };
  const nlohmann::json plan = nlohmann::json::parse(check("task.jsonl", {"--json"}).output);
  CHECK(plan.at("tasks").at("choices") == 5);
  const double steps = 5.0 / (3.0 * plan.at("global_batch").get<double>());
  CHECK(plan.at("tasks").at("as_steps").get<double>() == Near(steps));
  CHECK(plan.at("tasks").at("seconds").get<double>() == Near(steps * plan.at("time").at("step_seconds").get<double>()));
  CHECK(says(check("task.jsonl", {}).output,
             "\ntasks +5 choices of evaluate.tasks, each as long as the context: about as"));
  workspace().write("bad.jsonl", R"({"question": "a", "choices": ["b", "c"], "answer": 2})");
  const Ended bad = check("bad.jsonl", {});
  CHECK(bad.exit_code == 3);
  CHECK(bad.says("evaluate.tasks.0.path: "));
  CHECK(bad.says("bad.jsonl:1: \"answer\" is 2, but the choices are 0 to 1"));
}

TEST_CASE("check_counts_what_caps_of_epochs_leave") {
  const auto check = [](const std::string& epochs, const std::string& source) {
    const Ended end = workspace().run({"check", "config.yaml", "--set", "train.epochs=" + epochs, "--set",
                                       "data.train=[{path: train.txt" + source + "}]", "--json"});
    return std::pair(end, nlohmann::json::parse(end.output));
  };
  const nlohmann::json plan = check("1", "").second;
  const auto batch = plan.at("global_batch").get<std::int64_t>();
  const auto context = plan.at("work").at("tokens").get<double>() / plan.at("work").at("samples").get<double>();
  const double samples = std::ceil(static_cast<double>(fs::file_size(workspace() / "train.txt")) / context);
  // A last step that the caps leave no whole batch for is left out.
  for (const std::string epochs : {"1", "1.25", "1.5", "1.75"}) {
    CAPTURE(epochs);
    const auto wanted = static_cast<std::int64_t>(std::round(std::stod(epochs) * samples));
    CHECK(check(epochs, "").second.at("steps") == (wanted + batch - 1) / batch);
    const auto capped = check(epochs, ", epochs: " + epochs);
    CHECK_MESSAGE(capped.first.exit_code == 0, capped.first.errors);
    CHECK(capped.second.at("steps") == wanted / batch);
  }
  // Where they leave less, it is refused.
  const auto [end, short_of] = check("3", ", epochs: 1.5");
  CHECK(end.exit_code == 2);
  CHECK(end.says("data.train.0.epochs: "));
  CHECK(short_of.at("work").at("samples_that_caps_leave").get<double>() == Near(1.5 * samples).epsilon(0.01));
}

TEST_CASE("check_opens_with_a_verdict_for_this_machine_and_for_a_named_device") {
  const Ended here = workspace().run({"check", "config.yaml"});
  CHECK_MESSAGE(here.exit_code == 0, here.errors);
  CHECK(here.output.starts_with("fits "));
  CHECK(says(here.output, "\ntime +.* a step, .* tokens/s, "));
  // The workspace's text is a byte a token: its size is known without opening it.
  const auto bytes = static_cast<double>(fs::file_size(workspace() / "train.txt"));
  const Ended json = workspace().run({"check", "config.yaml", "--json"});
  const nlohmann::json plan = nlohmann::json::parse(json.output);
  REQUIRE(plan.at("work").at("sources").size() == 1);
  CHECK(plan.at("work").at("sources")[0].at("epochs").get<double>() ==
        Near(plan.at("work").at("tokens").get<double>() / bytes));

  const Ended gpu = workspace().run({"check", "config.yaml", "--set", "precision.compute=bf16", "--device", "H100"});
  CHECK(gpu.output.starts_with("fits "));
  CHECK_FALSE(gpu.says("not supported yet"));
  CHECK(gpu.output.find("H100 SXM 80 GB has 79.6 GiB") != std::string::npos);
  CHECK(gpu.output.find("(989") != std::string::npos);
  CHECK(gpu.output.find("weights in compute precision") != std::string::npos);
  CHECK(gpu.output.find("packed weights") == std::string::npos);  // tiles of this machine's processor
  // auto is what it is on that device: the same plan, and said.
  const std::string notice = "notice: precision.compute: auto is bf16 on GPUs, which this is planned for";
  CHECK_FALSE(gpu.says(notice));
  const Ended silent = workspace().run({"check", "config.yaml", "--device", "H100"});
  CHECK(silent.says(notice));
  CHECK(silent.output == gpu.output);
  CHECK(says(silent.output, "\ncompute +[^ ]+ FLOP per token, bf16\n"));
  CHECK(says(here.output, "\ncompute +[^ ]+ FLOP per token, fp32\n"));
  const Ended single = workspace().run({"check", "config.yaml", "--set", "precision.compute=fp32", "--device", "H100"});
  CHECK_FALSE(single.says(notice));
  CHECK(says(single.output, "\ncompute +[^ ]+ FLOP per token, fp32\n"));
  const Ended small = workspace().run({"check", "config.yaml", "--device-memory", "200KiB", "--json"});
  check_refused(small, 2, {"does not fit: the rank needs", "the device has 200 KiB"});
  const nlohmann::json verdict = nlohmann::json::parse(small.output).at("verdict");
  CHECK(verdict.at("fits") == false);
  CHECK(verdict.at("available") == 200 * 1024);
  CHECK(verdict.at("fits_with").size() + verdict.at("together").size() > 0);
  check_refused(workspace().run({"check", "config.yaml", "--device", "h10000"}), 2,
                {"unknown device \"h10000\"; use "});
  CHECK(workspace().run({"check", "config.yaml", "--device-memory", "much"}).exit_code == 2);
  const Ended bare = workspace().run({"check", "config.yaml", "--device-memory", "80"});
  check_refused(bare, 2, {"--device-memory: 80 is 80 bytes; write 80GiB"});
  CHECK(bare.output.empty());
}

TEST_CASE("check_says_what_to_set_where_a_device_lacks_the_precision") {
  const auto on_v100 = [](const std::string& precision) {
    return workspace().run(
        {"check", "config.yaml", "--set", "precision.compute=" + precision, "--device", "v100", "--json"});
  };
  const auto has_time = [](const Ended& end) { return !nlohmann::json::parse(end.output).at("time").is_null(); };
  for (const char* precision : {"auto", "bf16"}) {
    CAPTURE(precision);
    const Ended lacking = on_v100(precision);
    CHECK(lacking.says(
        "notice: --device v100: no bf16 in hardware: there is no time to tell; set precision.compute: fp16\n"));
    CHECK_FALSE(has_time(lacking));
  }
  for (const char* precision : {"fp16", "fp32"}) {
    CAPTURE(precision);
    const Ended known = on_v100(precision);
    CHECK_FALSE(known.says("in hardware"));
    CHECK(has_time(known));
  }
}

TEST_CASE("check_refuses_a_device_that_no_run_can_be_on") {
  const Ended old = workspace().run({"check", "config.yaml", "--device", "v100"});
  check_refused(old, 2,
                {"this is the plan, but it cannot be run so:",
                 "--device v100: GPUs of sm_70 are older than sm_80, the oldest that is supported; choose another"});
  CHECK(old.output.starts_with("fits"));
  CHECK(workspace().run({"check", "config.yaml", "--device", "a100"}).exit_code == 0);
}

TEST_CASE("steps_and_the_end_tell_time_tokens_the_best_loss_and_restarts_over_all_starts") {
  const fs::path run = workspace() / "told";
  const Ended first = workspace().run(workspace().training("told", {"train.steps=40"}));
  REQUIRE_MESSAGE(first.exit_code == 0, first.errors);
  // Piped: far fewer lines than steps, the first and the last among them.
  const auto lines = [](const Ended& end) {
    const std::regex step("(^|\n)step [0-9]+/");
    return std::distance(std::sregex_iterator(end.errors.begin(), end.errors.end(), step), std::sregex_iterator());
  };
  CHECK(lines(first) >= 3);
  CHECK(lines(first) <= 15);
  CHECK(first.says("step 1/40"));
  CHECK(first.says("step 40/40"));
  CHECK(says(first.errors, "finished at step 40; loss [0-9.]+, the lowest [0-9.]+ at step [0-9]+\n"));
  CHECK(says(first.errors, "[0-9,]+ tokens in .* of training, no restart\n"));

  const Ended second = workspace().run(workspace().training("told", {"train.steps=60", "log.every=1"}));
  REQUIRE_MESSAGE(second.exit_code == 0, second.errors);
  CHECK(lines(second) == 20);
  CHECK(says(second.errors, "[0-9,]+ tokens in .* of training, resumed once\n"));
  const auto steps = metrics_of(run, "step");
  REQUIRE(steps.size() == 60);
  double elapsed = 0.0;
  for (const nlohmann::json& line : steps) {
    CHECK(line.at("elapsed_seconds").get<double>() > elapsed);
    elapsed = line.at("elapsed_seconds");
    CHECK(says(line.at("wall_time"), "^20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"));
  }
  const auto lowest =
      std::min_element(steps.begin(), steps.end(), [](const nlohmann::json& a, const nlohmann::json& b) {
        return a.at("loss").get<double>() < b.at("loss").get<double>();
      });
  const auto ends = metrics_of(run, "end");
  REQUIRE(ends.size() == 2);
  CHECK(ends[0].at("restarts") == 0);
  CHECK(ends[1].at("restarts") == 0);
  CHECK(ends[1].at("resumes") == 1);
  CHECK(ends[1].at("best_loss") == lowest->at("loss"));
  CHECK(ends[1].at("best_step") == lowest->at("step"));
  CHECK(ends[1].at("tokens") == steps.back().at("tokens"));
  CHECK(ends[1].at("elapsed_seconds") == steps.back().at("elapsed_seconds"));
}

TEST_CASE("a_run_is_drawn_in_plain_characters_where_there_is_no_terminal") {
  const Ended drawn = workspace().run({"plot", undisturbed_run().string()});
  REQUIRE_MESSAGE(drawn.exit_code == 0, drawn.errors);
  CHECK(drawn.output.find("step 200") != std::string::npos);
  CHECK(std::count(drawn.output.begin(), drawn.output.end(), '*') > 40);
  CHECK(std::all_of(drawn.output.begin(), drawn.output.end(),
                    [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); }));
  CHECK(workspace().run({"plot", (undisturbed_run() / "metrics.jsonl").string()}).output == drawn.output);
  const Ended missing = workspace().run({"plot", "no-such-run"});
  CHECK(missing.exit_code == 3);
  CHECK(missing.says("no such run folder"));
}

TEST_CASE("plot_leaves_out_a_damaged_line_and_says_which") {
  const fs::path file = workspace() / "damaged.jsonl";
  const std::string step = R"({"kind":"step","step":%,"tokens":1,"loss":2.5,"learning_rate":0,"grad_norm":0,)"
                           R"("step_seconds":1,"tokens_per_second":1,"mfu":0})";
  const auto step_line = [&](const std::string& number) {
    return std::string(step).replace(step.find('%'), 1, number);
  };
  workspace().write("damaged.jsonl", step_line("1") + "\n" + step_line("2").substr(9) + "\n" + step_line("3") + "\n");
  const Ended drawn = workspace().run({"plot", file.string()});
  CHECK_MESSAGE(drawn.exit_code == 0, drawn.errors);
  CHECK(drawn.output.find("step 3") != std::string::npos);
  CHECK(drawn.says("notice: " + file.string() + ":2: "));
  CHECK(drawn.says("this line is left out"));
  workspace().write("damaged.jsonl", "no metrics\n");
  CHECK(workspace().run({"plot", file.string()}).exit_code == 3);
}

TEST_CASE("plot_says_why_a_folder_cannot_be_looked_at") {
  const fs::path loop = workspace() / "loop";
  fs::create_directory_symlink(loop, loop);
  const Ended looped = workspace().run({"plot", loop.string()});
  CHECK(looped.exit_code == 3);
  CHECK(looped.says("Too many levels of symbolic links"));
  const fs::path closed = workspace() / "closed";
  fs::create_directory(closed);
  fs::permissions(closed, fs::perms::none);
  const Ended refused = workspace().run({"plot", closed.string()});
  fs::permissions(closed, fs::perms::owner_all);
  CHECK(refused.exit_code == 3);
  if (::geteuid() != 0) CHECK(refused.says("Permission denied"));  // of root nothing is kept
}

}  // namespace
}  // namespace scaletrain
