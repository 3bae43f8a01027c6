#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "checkpoint/range_boxes.h"
#include "checkpoint/save/save.h"
#include "checkpoint/state_name.h"

namespace scaletrain {

namespace {

// Names files and starts the next one when one is full.
class FileNames {
 public:
  FileNames(std::string stem, int digits, std::uint64_t most) : stem_(std::move(stem)), digits_(digits), most_(most) {}
  std::string place(std::uint64_t bytes) {
    if (used_ > 0 && bytes > most_ - std::min(most_, used_)) {
      ++number_;
      used_ = 0;
    }
    used_ += bytes;
    return fmt::format("{}-{:0{}}.safetensors", stem_, number_, digits_);
  }

 private:
  std::string stem_;
  int digits_;
  std::uint64_t most_;
  std::uint64_t used_ = 0;
  int number_ = 0;
};

FileNames file_names(std::string_view kind, const ShardLayout& layout, std::uint64_t most) {
  const Mesh& mesh = layout.mesh();
  if (mesh.world() == 1) return FileNames(std::string(kind), 5, most);
  return FileNames(fmt::format("{}-{:05}", kind, mesh.rank_of(layout.position()).value()), 3, most);
}

// What is written of a parameter: its masters, a state, or the scales of one in blocks.
struct Stored {
  int state = -1;
  std::string_view name;  // of the state
  bool is_scales = false;
};

// visit(range, parameter, stored) for all that the rank writes, in the order of its files.
template <class Visit>
void for_each_saved(const ParamTable& table, const ShardLayout& layout, std::span<const std::string> state_names,
                    Visit visit) {
  const MeshPosition& position = layout.position();
  const std::int64_t tensor_degree = layout.mesh().degree(Axis::tensor);
  const std::vector<ParamRange> ranges = layout.piece_ranges(position.data);
  for (int state = -1; state < narrow<int>(state_names.size()); ++state) {
    const std::string_view name = state < 0 ? std::string_view() : state_names[static_cast<std::size_t>(state)];
    for (const ParamRange& range : ranges) {
      const Parameter& parameter = table.parameters()[static_cast<std::size_t>(range.parameter)];
      if (parameter.in_base || parameter.tied_to || (state >= 0 && !parameter.has_state(state)) || range.count == 0)
        continue;
      if (!ParamTable::is_first_replica(parameter, tensor_degree, position.tensor)) continue;
      visit(range, parameter, Stored{state, name, false});
      if (state >= 0 && is_in_blocks(parameter.state_block, name)) visit(range, parameter, Stored{state, name, true});
    }
  }
}

// Of `count` elements of a parameter.
std::uint64_t bytes_of(const Parameter& parameter, const Stored& stored, DType dtype, std::int64_t count) {
  const std::int64_t numbers = stored.is_scales ? div_exact(count, parameter.state_block) : count;
  return static_cast<std::uint64_t>(numbers) * size_of(saved_dtype(parameter, stored.name, stored.is_scales, dtype));
}

// Of the scales of a box of whole blocks.
Box in_blocks(Box box, std::int64_t block) {
  box.first.back() = div_exact(box.first.back(), block);
  box.extent.back() = div_exact(box.extent.back(), block);
  return box;
}

}  // namespace

DType saved_dtype(const Parameter& parameter, std::string_view state_name, bool is_scales, DType masters) {
  if (parameter.role != ParamRole::trained) return parameter.dtype;
  const bool is_codes = !state_name.empty() && !is_scales && is_in_blocks(parameter.state_block, state_name);
  return is_codes ? DType::u8 : masters;
}

Shape saved_shape(const Parameter& parameter, bool is_scales) {
  if (!is_scales) return parameter.shape;
  return {parameter.shape[0], div_exact(parameter.shape[1], parameter.state_block)};
}

std::vector<SavePiece> make_save_plan(const ParamTable& table, const ShardLayout& layout,
                                      std::span<const std::string> state_names, DType dtype,
                                      std::uint64_t max_file_bytes) {
  std::vector<SavePiece> plan;
  FileNames model = file_names("model", layout, max_file_bytes);
  FileNames optimizer = file_names("optimizer", layout, max_file_bytes);
  for_each_saved(table, layout, state_names,
                 [&](const ParamRange& range, const Parameter& parameter, const Stored& stored) {
                   const ParamSpan* span = layout.find(range.parameter);
                   SCALETRAIN_CHECK(span != nullptr);
                   FileNames& files = stored.state < 0 ? model : optimizer;
                   std::string name =
                       stored.state < 0 ? parameter.name : state_tensor_name(parameter.name, std::string(stored.name));
                   if (stored.is_scales) name += scales_suffix;
                   const bool is_whole = range.count == parameter.shape.num_elements();
                   int number = 0;
                   for_each_box(*span, range, [&](const Box& box, const ParamRange& part) {
                     SavePiece piece{.parameter = range.parameter,
                                     .state = stored.state,
                                     .is_scales = stored.is_scales,
                                     .file = {},
                                     .key = name,
                                     .box = stored.is_scales ? in_blocks(box, parameter.state_block) : box,
                                     .range = part};
                     if (!is_whole) piece.key += fmt::format("@{}", number++);
                     piece.file = files.place(bytes_of(parameter, stored, dtype, part.count));
                     plan.push_back(std::move(piece));
                   });
                 });
  return plan;
}

std::uint64_t saved_bytes(const ParamTable& table, const ShardLayout& layout, std::span<const std::string> state_names,
                          DType dtype) {
  std::uint64_t bytes = 0;
  for_each_saved(table, layout, state_names,
                 [&](const ParamRange& range, const Parameter& parameter, const Stored& stored) {
                   bytes += bytes_of(parameter, stored, dtype, range.count);
                 });
  return bytes;
}

std::uint64_t checkpoint_bytes(const ParamTable& table, std::span<const std::string> state_names, DType dtype) {
  std::uint64_t bytes = 0;
  for (const Parameter& parameter : table.parameters()) {
    if (parameter.tied_to || parameter.in_base) continue;
    const std::int64_t count = parameter.shape.num_elements();
    bytes += bytes_of(parameter, {}, dtype, count);
    for (std::size_t state = 0; state < state_names.size(); ++state) {
      const std::string& name = state_names[state];
      if (!parameter.has_state(narrow<int>(state))) continue;
      bytes += bytes_of(parameter, {0, name, false}, dtype, count);
      if (is_in_blocks(parameter.state_block, name)) bytes += bytes_of(parameter, {0, name, true}, dtype, count);
    }
  }
  return bytes;
}

View stored_values(const ParamStore& store, const SavePiece& piece) {
  if (piece.is_scales) return store.scales(piece.range, static_cast<std::size_t>(piece.state));
  const StateKind kind = piece.state < 0 ? StateKind::master : StateKind::optimizer;
  return store.values(kind, piece.range, static_cast<std::size_t>(std::max(piece.state, 0)));
}

}  // namespace scaletrain
