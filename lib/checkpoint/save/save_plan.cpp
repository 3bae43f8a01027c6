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

// visit(range, parameter, state) for all that the rank writes, in the order of its files; state -1 for masters.
template <class Visit>
void for_each_saved(const ParamTable& table, const ShardLayout& layout, int num_states, Visit visit) {
  const MeshPosition& position = layout.position();
  const std::int64_t tensor_degree = layout.mesh().degree(Axis::tensor);
  const std::vector<ParamRange> ranges = layout.piece_ranges(position.data);
  for (int state = -1; state < num_states; ++state) {
    for (const ParamRange& range : ranges) {
      const Parameter& parameter = table.parameters()[static_cast<std::size_t>(range.parameter)];
      if (parameter.in_base || parameter.tied_to || (state >= 0 && !parameter.has_state(state)) || range.count == 0)
        continue;
      if (ParamTable::is_first_replica(parameter, tensor_degree, position.tensor)) visit(range, parameter, state);
    }
  }
}

std::size_t element_bytes(const Parameter& parameter, DType dtype) {
  return size_of(parameter.role == ParamRole::trained ? dtype : parameter.dtype);
}

}  // namespace

std::vector<SavePiece> make_save_plan(const ParamTable& table, const ShardLayout& layout,
                                      std::span<const std::string> state_names, DType dtype,
                                      std::uint64_t max_file_bytes) {
  std::vector<SavePiece> plan;
  FileNames model = file_names("model", layout, max_file_bytes);
  FileNames optimizer = file_names("optimizer", layout, max_file_bytes);
  for_each_saved(
      table, layout, narrow<int>(state_names.size()),
      [&](const ParamRange& range, const Parameter& parameter, int state) {
        const ParamSpan* span = layout.find(range.parameter);
        SCALETRAIN_CHECK(span != nullptr);
        FileNames& files = state < 0 ? model : optimizer;
        const std::string name = state < 0
                                     ? parameter.name
                                     : state_tensor_name(parameter.name, state_names[static_cast<std::size_t>(state)]);
        const bool is_whole = range.count == parameter.shape.num_elements();
        int number = 0;
        for_each_box(*span, range, [&](const Box& box, const ParamRange& part) {
          SavePiece piece{
              .parameter = range.parameter, .state = state, .file = {}, .key = name, .box = box, .range = part};
          if (!is_whole) piece.key += fmt::format("@{}", number++);
          piece.file = files.place(static_cast<std::size_t>(part.count) * element_bytes(parameter, dtype));
          plan.push_back(std::move(piece));
        });
      });
  return plan;
}

std::uint64_t saved_bytes(const ParamTable& table, const ShardLayout& layout, std::size_t num_states, DType dtype) {
  std::uint64_t bytes = 0;
  for_each_saved(table, layout, narrow<int>(num_states), [&](const ParamRange& range, const Parameter& parameter, int) {
    bytes += static_cast<std::uint64_t>(range.count) * element_bytes(parameter, dtype);
  });
  return bytes;
}

std::uint64_t checkpoint_bytes(const ParamTable& table, std::size_t num_states, DType dtype) {
  std::uint64_t bytes = 0;
  for (const Parameter& parameter : table.parameters()) {
    if (parameter.tied_to || parameter.in_base) continue;
    std::uint64_t copies = 1;
    for (std::size_t state = 0; state < num_states; ++state) copies += parameter.has_state(narrow<int>(state)) ? 1 : 0;
    bytes += copies * static_cast<std::uint64_t>(parameter.shape.num_elements()) * element_bytes(parameter, dtype);
  }
  return bytes;
}

View stored_values(const ParamStore& store, const SavePiece& piece) {
  const StateKind kind = piece.state < 0 ? StateKind::master : StateKind::optimizer;
  return store.values(kind, piece.range, static_cast<std::size_t>(std::max(piece.state, 0)));
}

}  // namespace scaletrain
