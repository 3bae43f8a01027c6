#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "checkpoint/range_boxes.h"
#include "checkpoint/save.h"
#include "checkpoint/slot_name.h"

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

// visit(range, row, slot) for all that the rank writes, in the order of its files; slot -1 for masters.
template <class Visit>
void for_each_saved(const ParamTable& table, const ShardLayout& layout, int num_slots, Visit visit) {
  const MeshPosition& position = layout.position();
  const std::int64_t tensor_degree = layout.mesh().degree(Axis::tensor);
  const std::vector<RowRange> ranges = layout.shard_ranges(position.data);
  for (int slot = -1; slot < num_slots; ++slot) {
    for (const RowRange& range : ranges) {
      const ParamRow& row = table.rows()[static_cast<std::size_t>(range.row)];
      if (row.tied_to || (slot >= 0 && row.role != ParamRole::trained) || range.count == 0) continue;
      if (ParamTable::is_first_holder(row, tensor_degree, position.tensor)) visit(range, row, slot);
    }
  }
}

std::size_t element_bytes(const ParamRow& row, DType dtype) {
  return size_of(row.role == ParamRole::trained ? dtype : row.dtype);
}

}  // namespace

std::vector<SavePiece> make_save_plan(const ParamTable& table, const ShardLayout& layout,
                                      std::span<const std::string> slot_names, DType dtype,
                                      std::uint64_t max_file_bytes) {
  std::vector<SavePiece> plan;
  FileNames model = file_names("model", layout, max_file_bytes);
  FileNames optimizer = file_names("optimizer", layout, max_file_bytes);
  for_each_saved(
      table, layout, narrow<int>(slot_names.size()), [&](const RowRange& range, const ParamRow& row, int slot) {
        const ParamSpan* span = layout.find(range.row);
        SCALETRAIN_CHECK(span != nullptr);
        FileNames& files = slot < 0 ? model : optimizer;
        const std::string name =
            slot < 0 ? row.name : slot_tensor_name(row.name, slot_names[static_cast<std::size_t>(slot)]);
        const bool is_whole = range.count == row.shape.num_elements();
        int number = 0;
        for_each_box(*span, range, [&](const Box& box, const RowRange& part) {
          SavePiece piece{.row = range.row, .slot = slot, .file = {}, .key = name, .box = box, .range = part};
          if (!is_whole) piece.key += fmt::format("@{}", number++);
          piece.file = files.place(static_cast<std::size_t>(part.count) * element_bytes(row, dtype));
          plan.push_back(std::move(piece));
        });
      });
  return plan;
}

std::uint64_t saved_bytes(const ParamTable& table, const ShardLayout& layout, std::size_t num_slots, DType dtype) {
  std::uint64_t bytes = 0;
  for_each_saved(table, layout, narrow<int>(num_slots), [&](const RowRange& range, const ParamRow& row, int) {
    bytes += static_cast<std::uint64_t>(range.count) * element_bytes(row, dtype);
  });
  return bytes;
}

std::uint64_t checkpoint_bytes(const ParamTable& table, std::size_t num_slots, DType dtype) {
  std::uint64_t bytes = 0;
  for (const ParamRow& row : table.rows()) {
    if (row.tied_to) continue;
    const std::uint64_t copies = 1 + (row.role == ParamRole::trained ? num_slots : 0);
    bytes += copies * static_cast<std::uint64_t>(row.shape.num_elements()) * element_bytes(row, dtype);
  }
  return bytes;
}

View stored_values(const ParamStore& store, const SavePiece& piece) {
  const StateKind kind = piece.slot < 0 ? StateKind::master : StateKind::slot;
  return store.values(kind, piece.range, static_cast<std::size_t>(std::max(piece.slot, 0)));
}

}  // namespace scaletrain
