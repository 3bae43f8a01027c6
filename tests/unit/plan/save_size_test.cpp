#include "plan/save_size.h"

#include <map>
#include <set>
#include <tuple>

#include "base/text.h"
#include "checkpoint/format/piece_list.h"
#include "checkpoint/state_name.h"
#include "plan/describe/describe.h"
#include "plan_helpers.h"
#include "support/near.h"
#include "support/sanitizers.h"

using namespace scaletrain;

namespace {

struct CountedSave {
  std::int64_t pieces = 0;
  std::int64_t most_pieces = 0;
  std::uint64_t bytes = 0;
  std::int64_t files = 0;
};

// By making every rank's save plan.
CountedSave counted_save(const PhasePlan& phase) {
  CountedSave out;
  std::map<std::tuple<int, StatePart, int>, std::int64_t> pieces;
  std::set<std::string> files;
  for (std::int64_t rank = 0; rank < phase.mesh.world(); ++rank) {
    for (const SavePiece& piece : phase.save_plan(Rank(rank))) {
      ++out.pieces;
      out.most_pieces = std::max(out.most_pieces, ++pieces[{piece.state, piece.part, piece.parameter}]);
      out.bytes += static_cast<std::uint64_t>(piece.box.num_elements()) * size_of(phase.masters());
      files.insert(piece.file);
    }
  }
  out.files = static_cast<std::int64_t>(files.size());
  return out;
}

// As a save makes it, with hashes of nothing.
Manifest manifest_of(const PhasePlan& phase) {
  Manifest manifest;
  manifest.save_id = std::string(32, '0');
  manifest.history = "[]";
  std::map<std::pair<int, int>, std::vector<TensorPiece>> pieces;
  for (std::int64_t rank = 0; rank < phase.mesh.world(); ++rank) {
    std::map<std::string, std::uint64_t> files;
    for (SavePiece& piece : phase.save_plan(Rank(rank))) {
      files[piece.file] += static_cast<std::uint64_t>(piece.range.count) * size_of(phase.masters());
      pieces[{piece.state, piece.parameter}].push_back(
          {std::move(piece.file), std::move(piece.key), std::move(piece.box)});
    }
    for (const auto& [name, bytes] : files) {
      const std::uint64_t blocks = (bytes + checksum_block_bytes - 1) / checksum_block_bytes;
      manifest.files.push_back({name, bytes, std::vector<std::uint64_t>(blocks, ~std::uint64_t{0})});
    }
  }
  for (auto& [place, list] : pieces) {
    const auto [state, index] = place;
    const Parameter& parameter = phase.table.parameters()[static_cast<std::size_t>(index)];
    const std::string name =
        state < 0 ? parameter.name
                  : state_tensor_name(parameter.name, phase.optimizer_states[static_cast<std::size_t>(state)]);
    manifest.tensors.push_back(
        {name, state < 0 ? "trained" : "slot", phase.masters(), parameter.shape, std::move(list)});
  }
  return manifest;
}

}  // namespace

TEST_CASE("save_size_counts_what_the_save_plans_of_all_ranks_hold") {
  struct Degrees {
    std::int64_t data, tensor, pipeline;
  };
  for (const bool tied : {false, true}) {
    for (const Degrees& degrees :
         {Degrees{1, 1, 1}, {5, 1, 1}, {1, 2, 3}, {4, 2, 2}, {3, 4, 1}, {64, 1, 2}, {7, 4, 3}}) {
      Config config = planned_config();
      config.model.tie_embeddings = tied;
      config.parallel.data = degrees.data;
      config.parallel.tensor = degrees.tensor;
      config.parallel.pipeline = degrees.pipeline;
      config.train.global_batch = 192;
      if (degrees.tensor == 4) config.train.optimizer.type = OptimizerKind::adafactor;  // whose matrices have factors
      if (degrees.tensor == 2) config.train.optimizer.type = OptimizerKind::muon;       // whose matrices lack a state
      const PhasePlan phase = make_run_plan(config, 61, std::nullopt).phases.front();
      CAPTURE(phase.mesh.text());
      const SaveSize size = save_size(phase);
      const CountedSave counted = counted_save(phase);
      CHECK(size.pieces == counted.pieces);
      CHECK(size.most_pieces == counted.most_pieces);
      CHECK(size.bytes == counted.bytes);
      CHECK(size.files == counted.files);
    }
  }
}

TEST_CASE("the_manifest_and_its_lists_are_about_as_large_as_save_size_says") {
  for (const std::int64_t data : is_sanitized ? std::vector{2} : std::vector{2, 16}) {
    Config config = preset_config("llama-405b");
    config.parallel.data = data;
    config.parallel.tensor = 8;
    config.parallel.pipeline = 8;
    config.train.global_batch = 4096;
    config.train.micro_batch = 1;
    const PhasePlan phase = make_run_plan(config, 128256, std::nullopt).phases.front();
    CAPTURE(phase.mesh.text());
    const SaveSize size = save_size(phase);
    Manifest manifest = manifest_of(phase);
    const bool is_listed = static_cast<std::uint64_t>(size.pieces) > most_pieces_in_manifest;
    REQUIRE(is_listed);
    const auto list_bytes = static_cast<double>(list_pieces(manifest).size());
    CHECK(static_cast<double>(size.list_bytes) == Near(list_bytes).epsilon(0.1));
    const std::size_t manifest_bytes = manifest_text(manifest).size();
    CHECK(manifest_bytes <= size.manifest_bytes);
    CHECK(size.manifest_bytes <= 2 * manifest_bytes);
  }
}

TEST_CASE("a_checkpoint_of_llama_405b_on_65536_ranks_can_be_saved_and_check_says_of_how_many_pieces") {
  Config config = preset_config("llama-405b");
  config.parallel.data = 1024;
  config.parallel.tensor = 8;
  config.parallel.pipeline = 8;
  config.train.global_batch = 4096;
  config.train.micro_batch = 1;
  const RunPlan plan = make_run_plan(config, 128256, std::nullopt);
  const SaveSize size = save_size(plan.phases.front());
  // More than one tensor ever had: a tensor of the first or the last unit is cut by 8 tensor and 1,024 data ranks, and
  // a range that begins and ends within rows is three boxes.
  CHECK(size.most_pieces > 16'384);
  CHECK(size.most_pieces <= 3 * 8 * 1024);
  CHECK(size.files >= 2 * 65'536);
  CHECK(size.manifest_bytes < std::uint64_t{4} << 20);
  CHECK(save_refusal(size).empty());
  // Rank 0 was seen to take 3.1 GiB for as many.
  const std::uint64_t gibibyte = std::uint64_t{1} << 30;
  CHECK(manifest_memory(size) >= 31 * gibibyte / 10);
  CHECK(manifest_memory(size) <= 4 * gibibyte);
  const PlanDescription description = describe_plan(config, plan, {});
  CHECK(contains(save_text(size), "to write it rank 0 needs " + bytes_text(manifest_memory(size)) + " more memory"));
  CHECK(contains(description.text, " pieces of tensors, "));
  CHECK(contains(description.json, "\"most_pieces_of_a_tensor\""));
}

TEST_CASE("a_checkpoint_whose_manifest_nobody_could_read_is_refused_by_name") {
  SaveSize size;
  size.manifest_bytes = manifest_limit_bytes;
  CHECK(save_refusal(size).empty());
  ++size.manifest_bytes;
  CHECK(contains(save_refusal(size), "parallel.data"));
}

TEST_CASE("sizes_that_are_legal_each_and_beyond_64_bits_together_are_refused_by_key") {
  Config config = planned_config();
  config.model.layers = 256;
  config.model.hidden = 1 << 16;
  config.model.heads = config.model.kv_heads = 64;
  config.model.context = 1 << 25;
  config.train.micro_batch = 1 << 15;
  config.train.global_batch = 1 << 24;
  config.parallel.data = 512;
  const std::string text = message_of<UserError>([&] {
    const RunPlan plan = make_run_plan(config, 61, std::nullopt);
    describe_plan(config, plan, {});
  });
  for (const char* part : {"model.context 33554432", "train.global_batch 16777216", "model.hidden 65536", "64 bits"})
    CHECK_MESSAGE(contains(text, part), text);
}
