// The traffic that a plan foretells is what its ranks ask of their communicators, to the element.
#include <doctest/doctest.h>

#include "support/rank_trainer.h"
#include "support/test_layout.h"

using namespace scaletrain;

namespace {

// Sizes that nothing divides, and a position table and biases, so that every kind of row is there.
Config traced_config() {
  Config config;
  config.run.seed = 5;
  config.model.layers = 4;
  config.model.hidden = 16;
  config.model.heads = 4;
  config.model.kv_heads = 2;
  config.model.ffn_hidden = 36;
  config.model.context = 7;
  config.model.vocab = 61;
  config.train.steps = 2;
  config.train.global_batch = 12;
  config.train.micro_batch = 1;
  return config;
}

struct Sums {
  std::int64_t calls = 0;
  std::int64_t elements = 0;
  std::uint64_t bytes = 0;
  bool operator==(const Sums&) const = default;
};

std::string text(const std::map<std::string, Sums>& sums) {
  std::string out;
  for (const auto& entry : sums)
    out += entry.first + ": " + std::to_string(entry.second.calls) + " calls, " +
           std::to_string(entry.second.elements) + " elements, " + std::to_string(entry.second.bytes) + " bytes; ";
  return out;
}

// By group.
std::map<std::string, Sums> traced(const Trace& trace) {
  std::map<std::string, Sums> sums;
  for (const TraceRecord& record : trace.records) {
    std::int64_t calls = 1;
    if (record.kind == CollectiveKind::exchange) {
      const auto is_sent = [](const auto& message) { return message.direction == Transfer::Direction::send; };
      calls = std::count_if(record.messages.begin(), record.messages.end(), is_sent);
      if (calls == 0) continue;
    }
    Sums& of = sums[record.group];
    of.calls += calls;
    of.elements += record.sent_elements;
    of.bytes += static_cast<std::uint64_t>(record.sent_elements) * size_of(record.dtype);
  }
  return sums;
}

std::map<std::string, Sums> planned(const PhasePlan& plan, Rank rank) {
  std::map<std::string, Sums> sums;
  for (const CommunicationVolume& volume : plan.communication(rank)) {
    Sums& of = sums[std::string(to_text(volume.kind))];
    of.calls += volume.calls;
    of.elements += volume.elements;
    of.bytes += volume.bytes;
  }
  return sums;
}

void check_traffic(const std::string& name, const Config& config) {
  LayoutRun run{.config = config};
  run.backend = TestBackend::reference_f32;
  run.traced = true;
  const LayoutOutcome outcome = run_layout(run);
  CHECK(outcome.problem.empty());
  for (std::size_t rank = 0; rank < outcome.traces.size(); ++rank) {
    const std::string expected = text(planned(outcome.plan, Rank(static_cast<std::int64_t>(rank))));
    const std::string found = text(traced(outcome.traces[rank]));
    CHECK_MESSAGE(expected == found, name << ", rank " << rank);
  }
}

Config laid_out(std::int64_t data, std::int64_t tensor, std::int64_t pipeline, std::int64_t zero) {
  Config config = traced_config();
  lay_out(config, {"", data, tensor, pipeline, zero});
  return config;
}

}  // namespace

TEST_CASE("traffic of every ZeRO stage is as planned, with and without a pipeline") {
  for (std::int64_t zero = 0; zero <= 3; ++zero) {
    check_traffic("data 3, zero " + std::to_string(zero), laid_out(3, 1, 1, zero));
    check_traffic("data 2, pipeline 2, zero " + std::to_string(zero), laid_out(2, 1, 2, zero));
    Config untied = laid_out(2, 2, 1, zero);
    untied.model.tie_embeddings = false;
    untied.model.bias = false;
    check_traffic("data 2, tensor 2, untied, zero " + std::to_string(zero), untied);
  }
}

TEST_CASE("traffic of tensor groups is as planned, with sequence shards and with fewer key/value heads than ranks") {
  for (const bool sequence : {false, true}) {
    for (const std::int64_t tensor : {2, 4}) {
      Config config = laid_out(1, tensor, 1, 1);
      config.parallel.sequence = sequence;
      check_traffic("tensor " + std::to_string(tensor), config);
      config.parallel.data = 2;
      config.parallel.zero = 2;
      check_traffic("data 2, zero 2, tensor " + std::to_string(tensor), config);
    }
  }
}

TEST_CASE("traffic of every schedule is as planned, with sequence shards and weights gathered for each use") {
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zb_h1}) {
    Config config = laid_out(2, 2, 2, 3);
    config.parallel.sequence = true;
    config.parallel.schedule = kind;
    if (kind == ScheduleKind::interleaved) config.parallel.chunks = 2;
    check_traffic("schedule " + std::to_string(static_cast<int>(kind)), config);
  }
  Config short_of = laid_out(2, 1, 4, 2);  // fewer micro-batches than stages
  short_of.train.micro_batch = 3;
  check_traffic("two micro-batches on four stages", short_of);
  Config chunks = laid_out(2, 1, 1, 3);
  chunks.parallel.schedule = ScheduleKind::interleaved;
  chunks.parallel.chunks = 2;
  check_traffic("two chunks on one stage", chunks);
}
