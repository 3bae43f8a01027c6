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

// What is written of a parameter: its masters, or a part of a state.
struct Stored {
  int state = -1;
  std::string_view name;  // of the state
  StatePart part = StatePart::values;
};

bool is_factors(StatePart part) {
  return part == StatePart::rows || part == StatePart::columns;
}

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
      visit(range, parameter, Stored{state, name});
      if (state >= 0 && is_in_blocks(parameter.state_block, name))
        visit(range, parameter, Stored{state, name, StatePart::scales});
    }
    if (state < 0 || position.data != 0 || position.tensor != 0) continue;
    for (const FactorPlace& place : factor_places(table, layout)) {
      const Parameter& parameter = table.parameters()[static_cast<std::size_t>(place.parameter)];
      if (parameter.tied_to || parameter.absent_state != state) continue;
      const ParamRange whole{.parameter = place.parameter};
      visit(whole, parameter, Stored{state, name, StatePart::rows});
      visit(whole, parameter, Stored{state, name, StatePart::columns});
    }
  }
}

// Of `count` elements of a parameter.
std::uint64_t bytes_of(const Parameter& parameter, const Stored& stored, DType dtype, std::int64_t count) {
  std::int64_t numbers = count;
  if (stored.part == StatePart::scales) numbers = div_exact(count, parameter.state_block);
  if (is_factors(stored.part)) numbers = saved_shape(parameter, stored.part).num_elements();
  return static_cast<std::uint64_t>(numbers) * size_of(saved_dtype(parameter, stored.name, stored.part, dtype));
}

// Of the scales of a box of whole blocks.
Box in_blocks(Box box, std::int64_t block) {
  box.first.back() = div_exact(box.first.back(), block);
  box.extent.back() = div_exact(box.extent.back(), block);
  return box;
}

}  // namespace

std::string saved_name(const Parameter& parameter, int state, std::string_view state_name, StatePart part) {
  if (state < 0) return parameter.name;
  std::string name = state_tensor_name(parameter.name, std::string(state_name));
  switch (part) {
    case StatePart::values:
      return name;
    case StatePart::scales:
      return name + scales_suffix;
    case StatePart::rows:
      return name + row_factors_suffix;
    case StatePart::columns:
      return name + column_factors_suffix;
  }
  SCALETRAIN_CHECK(false);
}

DType saved_dtype(const Parameter& parameter, std::string_view state_name, StatePart part, DType masters) {
  if (parameter.role != ParamRole::trained) return parameter.dtype;
  const bool is_codes =
      !state_name.empty() && part == StatePart::values && is_in_blocks(parameter.state_block, state_name);
  return is_codes ? DType::u8 : masters;
}

Shape saved_shape(const Parameter& parameter, StatePart part) {
  switch (part) {
    case StatePart::values:
      return parameter.shape;
    case StatePart::scales:
      return {parameter.shape[0], div_exact(parameter.shape[1], parameter.state_block)};
    case StatePart::rows:
      return {parameter.shape[0]};
    case StatePart::columns:
      return {parameter.shape[1]};
  }
  SCALETRAIN_CHECK(false);
}

std::vector<SavePiece> make_save_plan(const ParamTable& table, const ShardLayout& layout,
                                      std::span<const std::string> state_names, DType dtype,
                                      std::uint64_t max_file_bytes) {
  std::vector<SavePiece> plan;
  FileNames model = file_names("model", layout, max_file_bytes);
  FileNames optimizer = file_names("optimizer", layout, max_file_bytes);
  const auto add_piece = [&](const Parameter& parameter, const Stored& stored, SavePiece piece) {
    piece.parameter = piece.range.parameter;
    piece.state = stored.state;
    piece.part = stored.part;
    FileNames& files = stored.state < 0 ? model : optimizer;
    piece.file = files.place(bytes_of(parameter, stored, dtype, piece.range.count));
    plan.push_back(std::move(piece));
  };
  for_each_saved(table, layout, state_names,
                 [&](const ParamRange& range, const Parameter& parameter, const Stored& stored) {
                   const std::string name = saved_name(parameter, stored.state, stored.name, stored.part);
                   if (is_factors(stored.part)) {
                     const Box whole{.first = {0}, .extent = {saved_shape(parameter, stored.part)[0]}};
                     return add_piece(parameter, stored, {.file = {}, .key = name, .box = whole, .range = range});
                   }
                   const ParamSpan* span = layout.find(range.parameter);
                   SCALETRAIN_CHECK(span != nullptr);
                   const bool is_whole = range.count == parameter.shape.num_elements();
                   int number = 0;
                   for_each_box(*span, range, [&](const Box& box, const ParamRange& part) {
                     add_piece(parameter, stored,
                               {.file = {},
                                .key = is_whole ? name : fmt::format("{}@{}", name, number++),
                                .box = stored.part == StatePart::scales ? in_blocks(box, parameter.state_block) : box,
                                .range = part});
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
      bytes += bytes_of(parameter, {0, name}, dtype, count);
      if (is_in_blocks(parameter.state_block, name))
        bytes += bytes_of(parameter, {0, name, StatePart::scales}, dtype, count);
    }
    bytes += static_cast<std::uint64_t>(parameter.num_factors()) * size_of(dtype);
  }
  return bytes;
}

View stored_values(const ParamStore& store, const SavePiece& piece) {
  if (piece.part == StatePart::scales) return store.scales(piece.range, static_cast<std::size_t>(piece.state));
  if (is_factors(piece.part)) {
    const Parameter& parameter = store.table().parameters()[static_cast<std::size_t>(piece.parameter)];
    const bool of_rows = piece.part == StatePart::rows;
    return store.factors(piece.parameter).rows(of_rows ? 0 : parameter.shape[0], parameter.shape[of_rows ? 0 : 1]);
  }
  const StateKind kind = piece.state < 0 ? StateKind::master : StateKind::optimizer;
  return store.values(kind, piece.range, static_cast<std::size_t>(std::max(piece.state, 0)));
}

}  // namespace scaletrain
