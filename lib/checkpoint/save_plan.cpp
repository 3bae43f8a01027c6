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

}  // namespace

std::vector<SavePiece> make_save_plan(const ParamTable& table, const ShardLayout& layout,
                                      std::span<const std::string> slot_names, DType dtype,
                                      std::uint64_t max_file_bytes) {
  std::vector<SavePiece> plan;
  FileNames model = file_names("model", layout, max_file_bytes);
  FileNames optimizer = file_names("optimizer", layout, max_file_bytes);
  const MeshPosition& position = layout.position();
  const std::int64_t tensor_degree = layout.mesh().degree(Axis::tensor);
  const std::vector<RowRange> ranges = layout.shard_ranges(position.data);
  const auto add = [&](const RowRange& range, int slot, FileNames& files) {
    const ParamRow& row = table.rows()[static_cast<std::size_t>(range.row)];
    const bool trained = row.role == ParamRole::trained;
    if (row.tied_to || (slot >= 0 && !trained) || range.count == 0) return;
    if (!ParamTable::is_first_holder(row, tensor_degree, position.tensor)) return;
    const ParamSpan* span = layout.find(range.row);
    SCALETRAIN_CHECK(span != nullptr);
    const std::string name =
        slot < 0 ? row.name : slot_tensor_name(row.name, slot_names[static_cast<std::size_t>(slot)]);
    const bool is_whole = range.count == row.shape.num_elements();
    const std::size_t element = size_of(trained ? dtype : row.dtype);
    int number = 0;
    for_each_box(*span, range, [&](const Box& box, const RowRange& part) {
      SavePiece piece{.row = range.row, .slot = slot, .file = {}, .key = name, .box = box, .range = part};
      if (!is_whole) piece.key += fmt::format("@{}", number++);
      piece.file = files.place(static_cast<std::size_t>(part.count) * element);
      plan.push_back(std::move(piece));
    });
  };
  for (const RowRange& range : ranges) add(range, -1, model);
  for (int slot = 0; slot < narrow<int>(slot_names.size()); ++slot) {
    for (const RowRange& range : ranges) add(range, slot, optimizer);
  }
  return plan;
}

}  // namespace scaletrain
