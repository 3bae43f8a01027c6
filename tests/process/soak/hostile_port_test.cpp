// A job whose rendezvous port strangers have found: they are thrown out, and the job does not notice.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>

#include "comm/rendezvous/rendezvous_frame.h"
#include "torment/hostile_loop.h"
#include "torment/strangers.h"
#include "torment/tormented_run.h"

namespace scaletrain {
namespace {

constexpr int half_open_connections = 1000;

const SoakLayout& layout_of(const std::string& name) {
  return *std::find_if(soak_layouts().begin(), soak_layouts().end(),
                       [&name](const SoakLayout& layout) { return layout.name == name; });
}
// A learning rate that does not depend on how many steps there will be.
Settings settings_of(long steps) {
  Settings settings = soak_settings(soak_of_two_ranks(), false);
  settings.insert(settings.end(), {"train.steps=" + std::to_string(steps), "checkpoint.every=100", "evaluate.every=0",
                                   "train.lr_schedule={type: constant, warmup: 10}"});
  return settings;
}
// Enough for all that is done to it.
constexpr long many_steps = 100000;

std::vector<pid_t> workers_of(const Program& agent) {
  std::vector<pid_t> workers;
  wait_until([&] { return (workers = children_of(agent.pid())).size() == soak_of_two_ranks().world; }, ranks_patience);
  REQUIRE(workers.size() == soak_of_two_ranks().world);
  return workers;
}

void goes_on(const std::string& run, Program& agent) {
  const long step = newest_step(layout_folder(run));
  CHECK(wait_until([&] { return newest_step(layout_folder(run)) >= step + 5 || !agent.running(); }, ranks_patience));
  REQUIRE_MESSAGE(agent.running(), agent.errors());
}

std::string body_of(const std::string& bytes) {
  FrameReader reader(largest_frame);
  reader.append(bytes);
  std::string body;
  return reader.next(body) == FrameReader::Status::frame ? body : std::string();
}

std::string receive_body(const Stranger& stranger) {
  return body_of(stranger.receive(60.0, [](const std::string& bytes) { return !body_of(bytes).empty(); }));
}

}  // namespace

TEST_CASE("strangers_at_the_port_of_a_running_job_are_dropped_and_the_job_is_unaffected") {
  const std::string run = "besieged";
  Program agent(layout_launch(run, settings_of(many_steps)));
  goes_on(run, agent);
  const pid_t worker = workers_of(agent).front();
  const auto place = rendezvous_of(worker);
  REQUIRE(place.has_value());
  const std::string secret = secret_of(worker);
  REQUIRE(secret.size() >= 16);

  SUBCASE("garbage, impossible lengths and a frame of 4 GiB") {
    for (const std::string& text : hostile_texts()) {
      const Stranger stranger(*place);
      REQUIRE(stranger.connected());
      stranger.send(text);
      CHECK(stranger.is_dropped(60.0));
    }
  }
  SUBCASE("a wrong secret, and what another connection has said") {
    // A member's words, heard by somebody: its hello and its proof.
    const Nonce own = make_nonce();
    const std::string hello = make_frame(encode_hello(HelloSide::client, own));
    std::string proof;
    for (const bool is_right : {false, true}) {
      const Stranger stranger(*place);
      REQUIRE(stranger.connected());
      stranger.send(hello);
      const auto theirs = parse_hello(HelloSide::server, receive_body(stranger));
      REQUIRE(theirs.has_value());
      const std::string used = is_right ? secret : std::string(64, 'f');
      proof = make_frame(encode_proof(make_proof(ProverRole::client, used, own, *theirs)));
      stranger.send(proof);
      const auto verdict = parse_verdict(receive_body(stranger));
      REQUIRE(verdict.has_value());
      CHECK(verdict->accepted == is_right);
    }
    const Stranger echo(*place);
    REQUIRE(echo.connected());
    echo.send(hello + proof + make_frame(encode(StoreRequest{.kind = StoreRequest::Kind::set, .key = "mine"})));
    const std::string answer = echo.receive(60.0);
    // The server's hello, a refusal, and nothing behind it.
    const std::string refusal = make_frame(encode_verdict({}));
    CHECK(answer.size() > refusal.size());
    CHECK(answer.ends_with(refusal));
    CHECK(echo.is_dropped(60.0));
  }
  SUBCASE("a thousand half-open connections, and a rank that dies meanwhile") {
    const Siege siege(*place, half_open_connections);
    MESSAGE(siege.half_open() << " half-open connections");
    CHECK(siege.half_open() > half_open_connections / 2);
    goes_on(run, agent);
    ::kill(workers_of(agent).back(), SIGKILL);
    goes_on(run, agent);
  }
  goes_on(run, agent);
  agent.signal(SIGTERM);
  const Ended& end = agent.wait(ranks_patience);
  CHECK_MESSAGE(end.exit_code == 75, end.errors);
  // Nothing of the size that was announced.
  CHECK(end.peak_bytes < 500'000'000);
  check_no_process_left(run);
  const Trajectory found = trajectory_of(layout_folder(run));
  const std::string alone = "unbesieged";
  const Ended undisturbed = run_program(layout_launch(alone, settings_of(found.last_step())), ranks_patience);
  REQUIRE_MESSAGE(undisturbed.exit_code == 0, undisturbed.errors);
  CHECK(found.steps == trajectory_of(layout_folder(alone)).steps);
  std::filesystem::remove_all(layout_folder(run));
  std::filesystem::remove_all(layout_folder(alone));
}

TEST_CASE("strangers_at_every_port_of_a_run_from_its_start_to_its_end_leave_no_trace_in_it") {
  HostileLoop stranger;
  const SoakLayout& layout = layout_of("data-4-zero-3");
  const std::string run = "hostile-host";
  Settings settings = soak_settings(layout, true);
  Program agent(layout_launch(run, settings));
  stranger.attack(agent.pid());
  // The ranks meet again, under the same attack.
  CHECK(wait_until([&] { return newest_step(layout_folder(run)) >= 20 || !agent.running(); }, ranks_patience));
  REQUIRE_MESSAGE(agent.running(), agent.errors());
  ::kill(workers_by_rank(agent, layout.world).back(), SIGKILL);
  const Ended& end = agent.wait(ranks_patience);
  MESSAGE(stranger.intrusions() << " intrusions at " << stranger.ports().size() << " ports");
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  // The rendezvous of two starts, and those at which members meet, some of which are gone in a moment.
  CHECK(stranger.ports().size() > 2);
  CHECK(stranger.intrusions() > 1000);
  CHECK(beginnings_of(layout_folder(run)).count == 2);
  check_no_process_left(run);
  CHECK(trajectory_of(layout_folder(run)).steps == undisturbed_soak(layout).steps);
  std::filesystem::remove_all(layout_folder(run));
}

TEST_CASE("jobs_on_one_host_have_ports_of_their_own_and_one_that_is_asked_for_and_taken_is_named") {
  const Settings many = settings_of(many_steps);
  Program first(layout_launch("first-job", many));
  Program second(layout_launch("second-job", many));
  goes_on("first-job", first);
  goes_on("second-job", second);
  const auto place = rendezvous_of(workers_of(first).front());
  const auto other = rendezvous_of(workers_of(second).front());
  REQUIRE(place.has_value());
  REQUIRE(other.has_value());
  CHECK(place->port != other->port);
  // What was asked for is not silently replaced.
  Settings asking = settings_of(20);
  asking.push_back("launch.port=" + std::to_string(place->port));
  const Ended refused = run_program(layout_launch("third-job", asking), ranks_patience);
  CHECK_MESSAGE(refused.exit_code == 4, refused.errors);
  CHECK_MESSAGE(refused.says(":" + std::to_string(place->port) + ": Address already in use"), refused.errors);
  check_no_process_left("third-job");
  for (Program* job : {&first, &second}) {
    job->signal(SIGTERM);
    CHECK(job->wait(ranks_patience).exit_code == 75);
  }
  for (const char* run : {"first-job", "second-job", "third-job"}) std::filesystem::remove_all(layout_folder(run));
}

}  // namespace scaletrain
