// The main job: the quickstart's config on real text ends below what any table of byte pairs could reach.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>

#include "process/tiny_run.h"
#include "support/near.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// The conditional entropy of a byte given the one before it, in nats, from the counts of the same text: the least loss
// that a model which sees one byte of context can have on it, even if it was made from that very text.
double bigram_entropy(const std::vector<std::string>& documents) {
  std::vector<std::uint64_t> pairs(256 * 256);
  std::array<std::uint64_t, 256> firsts{};
  std::uint64_t total = 0;
  for (const std::string& document : documents) {
    for (std::size_t i = 1; i < document.size(); ++i) {
      const auto before = static_cast<unsigned char>(document[i - 1]);
      const auto byte = static_cast<unsigned char>(document[i]);
      ++pairs[before * 256u + byte];
      ++firsts[before];
      ++total;
    }
  }
  double entropy = 0.0;
  for (std::size_t before = 0; before < 256; ++before) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const auto count = static_cast<double>(pairs[before * 256 + byte]);
      if (count > 0)
        entropy -= count / static_cast<double>(total) * std::log(count / static_cast<double>(firsts[before]));
    }
  }
  return entropy;
}

TEST_CASE("bigram_entropy_of_texts_with_known_entropy") {
  CHECK(bigram_entropy({"abababababab"}) == Near(0.0));
  // Behind each byte come a and b equally often: aa, ab, bb, ba.
  CHECK(bigram_entropy({"aabba"}) == Near(std::log(2.0)));
}

// Trains and evaluates the quickstart with so many of its steps (0: all), and holds its loss on the held-out text below
// the bound.
void check_quickstart_beats_byte_pairs(int steps) {
  const fs::path source = SCALETRAIN_SOURCE_FOLDER;
  const fs::path held_out = source / "build" / "quickstart-data" / "held-out";
  REQUIRE_MESSAGE(fs::exists(held_out), held_out.string(), " is missing; scripts/test.sh makes it");
  std::vector<std::string> documents;
  std::size_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(held_out)) {
    documents.push_back(read_file(entry.path()));
    bytes += documents.back().size();
  }
  REQUIRE(bytes > 100000);
  const std::string run = (workspace() / ("quickstart-" + std::to_string(steps))).string();
  std::vector<std::string> arguments{"run", (source / "configs" / "quickstart.yaml").string(), "--set",
                                     "run.directory=" + run};
  // The loss is that of all held-out text below; the run's own evaluation need not be.
  if (steps > 0) {
    arguments.insert(arguments.end(), {"--set", "train.steps=" + std::to_string(steps), "--set", "evaluate.batches=2"});
  }
  const Ended trained = workspace().run(arguments, 800.0);
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.errors);
  const Ended evaluated = workspace().run({"evaluate", run, "--json"}, 100.0);
  REQUIRE_MESSAGE(evaluated.exit_code == 0, evaluated.errors);
  const nlohmann::json answer = nlohmann::json::parse(evaluated.output);
  REQUIRE(answer.size() == 1);
  const double loss = answer.at(0).at("loss");
  const double bound = bigram_entropy(documents);
  MESSAGE("held-out loss ", loss, " nats per byte, bigram entropy ", bound, ", trained in ", trained.seconds, " s");
  CHECK(loss < bound);
  // Nearly every byte is a target: all but the first of the set.
  CHECK(answer.at(0).at("tokens").get<double>() == Near(static_cast<double>(bytes)).epsilon(0.01));
}

TEST_CASE("a_third_of_the_quickstart_ends_below_the_bigram_entropy_of_its_held_out_text") {
  check_quickstart_beats_byte_pairs(100);
}

TEST_CASE("the_quickstart_ends_below_the_bigram_entropy_of_its_held_out_text") {
  check_quickstart_beats_byte_pairs(0);
}

}  // namespace
}  // namespace scaletrain
