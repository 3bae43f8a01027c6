// What somebody who meets the program sees: what it is, whether a run fits, how a run tells of itself, and its picture.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include "tiny_run.h"

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
    CHECK_MESSAGE(says(end.output, std::string(library) + " [0-9]+\\.[0-9]+"), library);
  CHECK(says(end.output, "\nkernels +cpu (portable|avx2|avx512), "));
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
        doctest::Approx(plan.at("work").at("tokens").get<double>() / bytes));

  const Ended gpu = workspace().run({"check", "config.yaml", "--set", "precision.compute=bf16", "--device", "H100"});
  CHECK(gpu.output.starts_with("fits "));
  CHECK(gpu.output.find("H100 SXM 80 GB has 79.6 GiB") != std::string::npos);
  CHECK(gpu.output.find("(989") != std::string::npos);
  const Ended small = workspace().run({"check", "config.yaml", "--device-memory", "200KiB", "--json"});
  const nlohmann::json verdict = nlohmann::json::parse(small.output).at("verdict");
  CHECK(verdict.at("fits") == false);
  CHECK(verdict.at("available") == 200 * 1024);
  CHECK(verdict.at("fits_with").size() + verdict.at("together").size() > 0);
  CHECK(workspace().run({"check", "config.yaml", "--device", "h10000"}).exit_code == 2);
  CHECK(workspace().run({"check", "config.yaml", "--device-memory", "much"}).exit_code == 2);
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
  CHECK(second.says("1 restart"));
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
  CHECK(ends[1].at("restarts") == 1);
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

}  // namespace
}  // namespace scaletrain
