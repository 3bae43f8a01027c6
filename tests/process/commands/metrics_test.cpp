// scaletrain metrics: a run's numbers, as a shell takes them.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/text.h"
#include "process/tiny_run.h"

namespace scaletrain {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines = split_text(text, '\n');
  REQUIRE((!lines.empty() && lines.back().empty()));
  lines.pop_back();
  return lines;
}

// Steps 1 to 3, of which the last two were made again after a restart; the last line is torn.
std::string restarted_metrics() {
  const auto step = [](int number, const std::string& loss) {
    return R"({"kind":"step","step":)" + std::to_string(number) + R"(,"tokens":8,"loss":)" + loss +
           R"(,"learning_rate":0.5,"grad_norm":1,"step_seconds":1,"tokens_per_second":8,"mfu":0.25})" + "\n";
  };
  return step(1, "5.5") + step(2, "4.5") + step(3, "3.5") +
         R"({"kind":"evaluation","step":3,"dataset":"web","loss":9,"tokens":8})" + "\n" +
         R"({"kind":"restart","step":1,"generation":1,"checkpoint":"","fingerprint_changed":false,"wall_time":""})" +
         "\n" + step(2, "4.25") + R"({"kind":"evaluation","step":2,"dataset":"web","loss":4.125,"tokens":8})" + "\n" +
         step(3, "3.25").substr(0, 40);
}

}  // namespace

TEST_CASE("metrics_prints_a_finished_run_step_by_step_with_the_numbers_of_its_file") {
  const std::string run = undisturbed_run().string();
  const Trajectory expected = trajectory_of(undisturbed_run());
  const Ended end = workspace().run({"metrics", run, "--csv", "--keys", "loss,learning_rate,grad_norm"});
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(end.errors.empty());
  const std::vector<std::string> lines = lines_of(end.output);
  REQUIRE(lines.size() == tiny_steps + 1);
  CHECK(lines[0] == "step,loss,learning_rate,grad_norm");
  for (int step = 1; step <= tiny_steps; ++step) {
    std::string line = lines[static_cast<std::size_t>(step)];
    for (char& c : line) c = c == ',' ? ' ' : c;
    CHECK(line == std::to_string(step) + " " + expected.steps.at(step));
  }
  const Ended json = workspace().run({"metrics", run + "/metrics.jsonl", "--json", "--last", "2"});
  const std::vector<std::string> last = lines_of(json.output);
  REQUIRE(last.size() == 2);
  CHECK(nlohmann::json::parse(last[1]).at("step") == tiny_steps);
  CHECK(nlohmann::json::parse(last[1]).contains("validation/held/loss"));
  for (const std::string& line : lines_of(workspace().run({"metrics", run}).output)) CHECK(line.size() <= 120);
}

TEST_CASE("metrics_leaves_out_what_a_restart_made_void_and_a_torn_line") {
  const auto file = workspace().write("restarted.jsonl", restarted_metrics());
  const Ended end = workspace().run({"metrics", file.string(), "--csv", "--keys=loss,validation/web/loss"});
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(end.output == "step,loss,validation/web/loss\n1,5.5,\n2,4.25,4.125\n");
}

TEST_CASE("metrics_refuses_by_name_what_it_cannot_print") {
  const auto file = workspace().write("restarted.jsonl", restarted_metrics());
  const auto refused = [&file](const std::vector<std::string>& options, int code, const std::string& words) {
    std::vector<std::string> arguments = {"metrics", file.string()};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Ended end = workspace().run(arguments);
    CAPTURE(end.errors);
    CHECK(end.exit_code == code);
    CHECK(end.output.empty());
    CHECK(end.says(words));
  };
  refused({"--keys", "loss,grad_nrm"}, 2, "did you mean grad_norm?");
  refused({"--keys", "loss,"}, 2, "--keys loss,: a name is empty");
  refused({"--keys", ""}, 2, "a name is empty");
  refused({"--csv", "--json"}, 2, "--csv");
  refused({"--last", "0"}, 2, "must be at least 1");
  CHECK(workspace().run({"metrics", "no-such-run"}).exit_code == 3);
  CHECK(workspace().run({"metrics", "no-such-run"}).says("no such run folder"));
  const auto empty = workspace().write("empty.jsonl", "");
  const Ended nothing = workspace().run({"metrics", empty.string(), "--csv"});
  CHECK((nothing.exit_code == 0 && nothing.output == "step\n" && nothing.says("no step has been done yet")));
}

}  // namespace scaletrain
