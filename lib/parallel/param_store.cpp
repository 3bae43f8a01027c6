#include "parallel/param_store.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/checked.h"
#include "base/error.h"

namespace scaletrain {

namespace {

// The name that layers use: without the unit's prefix.
std::string local_name(std::string_view name, std::string_view unit) {
  const bool is_prefixed = name.size() > unit.size() && name.starts_with(unit) && name[unit.size()] == '.';
  return std::string(is_prefixed ? name.substr(unit.size() + 1) : name);
}

Shape shape_of(const Box& box) {
  Shape shape;
  for (const std::int64_t extent : box.extent) shape.append(extent);
  return shape;
}

}  // namespace

Weight UnitWeights::find(std::string_view local_name) const {
  for (const Entry& entry : entries_) {
    if (entry.name == local_name) return entry.weight;
  }
  return {};
}

View UnitGradients::find(std::string_view local_name) const {
  for (const Entry& entry : entries_) {
    if (entry.name == local_name) return entry.gradient;
  }
  return {};
}

struct ParamStore::Impl {
  // The memory over one flat buffer. Gradient and slots are absent where the role has none.
  struct Memory {
    DType dtype = DType::f32;
    std::int64_t num_elements = 0;
    Buffer param;
    Buffer gradient;
    std::vector<Buffer> slots;
  };
  // One matrix (or vector) as layers see it: a row, or a fused group of rows.
  struct Matrix {
    std::string name;
    int buffer = 0;
    std::int64_t offset = 0;
    Shape shape;
    bool lookup_only = false;
  };
  struct Unit {
    std::vector<Matrix> matrices;
    UnitWeights weights;
    UnitGradients gradients;
    int acquired = 0;
    bool is_current = false;  // the handles point to compute forms of the current values
  };

  Impl(Backend& backend_in, const ParamTable& table_in, const ShardLayout& layout_in, Options options_in)
      : backend(backend_in), table(table_in), layout(layout_in), options(std::move(options_in)) {}

  View view(const Buffer& memory, const ParamSpan& span) const;
  void allocate();
  void collect_matrices(int unit);
  void refresh(Stream& stream, Unit& unit);
  const ParamSpan* find(std::string_view row_name) const;
  Unit& unit_at(int unit);

  Backend& backend;
  const ParamTable& table;
  const ShardLayout& layout;
  Options options;
  std::vector<Memory> memory;  // as layout.buffers()
  std::map<int, Unit> units;   // by index in the table
  std::vector<OptimizerRange> ranges;
  // Compute forms of the current values by place: two units that share a tied tensor share its form too.
  std::map<std::pair<int, std::int64_t>, std::unique_ptr<PackedWeight>> packed;
};

View ParamStore::Impl::view(const Buffer& bytes, const ParamSpan& span) const {
  if (bytes.data() == nullptr) return {};
  const DType dtype = memory[static_cast<std::size_t>(span.buffer)].dtype;
  return bytes.view(static_cast<std::size_t>(span.offset) * size_of(dtype), dtype, shape_of(span.box));
}

void ParamStore::Impl::allocate() {
  int index = 0;
  for (const FlatBuffer& flat : layout.buffers()) {
    Memory part;
    part.dtype = flat.dtype == DType::f32 ? options.dtype : flat.dtype;
    part.num_elements = flat.num_elements;
    const std::size_t bytes = static_cast<std::size_t>(flat.num_elements) * size_of(part.dtype);
    part.param = backend.allocate(bytes);
    const bool is_trained = flat.role == ParamRole::trained && options.gradients;
    if (is_trained) {
      part.gradient = backend.allocate(bytes);
      for (std::size_t slot = 0; slot < options.slot_names.size(); ++slot)
        part.slots.push_back(backend.allocate(bytes));
      OptimizerRange range;
      range.buffer = index;
      const Shape shape{flat.num_elements};
      range.param = part.param.view(0, part.dtype, shape);
      range.gradient = part.gradient.view(0, part.dtype, shape);
      for (const Buffer& slot : part.slots) range.slots.push_back(slot.view(0, part.dtype, shape));
      ranges.push_back(std::move(range));
    }
    memory.push_back(std::move(part));
    ++index;
  }
}

// Adjacent rows of a fused group become one matrix, stacked along dim 0.
void ParamStore::Impl::collect_matrices(int unit) {
  const ParamUnit& place = table.units()[static_cast<std::size_t>(unit)];
  Unit& out = units[unit];
  const std::string* open_group = nullptr;
  int row_index = place.first_row;
  for (const ParamRow& row : table.rows_of(unit)) {
    const ParamSpan* span = layout.find(row_index++);
    SCALETRAIN_CHECK(span != nullptr);
    const Shape shape = shape_of(span->box);
    if (!row.fused.empty() && open_group != nullptr && *open_group == row.fused) {
      Matrix& group = out.matrices.back();
      SCALETRAIN_CHECK_EQ(group.offset + group.shape.num_elements(), span->offset);
      SCALETRAIN_CHECK_EQ(group.shape.num_dims(), shape.num_dims());
      Shape stacked{group.shape[0] + shape[0]};
      for (int dim = 1; dim < shape.num_dims(); ++dim) {
        SCALETRAIN_CHECK_EQ(group.shape[dim], shape[dim]);
        stacked.append(shape[dim]);
      }
      group.shape = stacked;
      continue;
    }
    open_group = row.fused.empty() ? nullptr : &row.fused;
    out.matrices.push_back({.name = local_name(row.fused.empty() ? row.name : row.fused, place.name),
                            .buffer = span->buffer,
                            .offset = span->offset,
                            .shape = shape,
                            .lookup_only = row.lookup_only});
  }
  for (const Matrix& matrix : out.matrices) {
    const Memory& part = memory[static_cast<std::size_t>(matrix.buffer)];
    const std::size_t offset = static_cast<std::size_t>(matrix.offset) * size_of(part.dtype);
    out.weights.entries_.push_back(
        {matrix.name, Weight{.values = part.param.view(offset, part.dtype, matrix.shape), .packed = nullptr}});
    if (part.gradient.data() != nullptr)
      out.gradients.entries_.push_back({matrix.name, part.gradient.view(offset, part.dtype, matrix.shape)});
  }
}

void ParamStore::Impl::refresh(Stream& stream, Unit& unit) {
  for (std::size_t index = 0; index < unit.matrices.size(); ++index) {
    const Matrix& matrix = unit.matrices[index];
    Weight& weight = unit.weights.entries_[index].weight;
    if (matrix.lookup_only || matrix.shape.num_dims() != 2 || matrix.shape.num_elements() == 0) continue;
    auto& form = packed[{matrix.buffer, matrix.offset}];
    if (!form) form = backend.pack(stream, weight.values);
    weight.packed = form.get();
  }
  unit.is_current = true;
}

const ParamSpan* ParamStore::Impl::find(std::string_view row_name) const {
  const int row = table.index_of(row_name);
  return row < 0 ? nullptr : layout.find(row);
}

ParamStore::Impl::Unit& ParamStore::Impl::unit_at(int unit) {
  const auto found = units.find(unit);
  SCALETRAIN_CHECK(found != units.end());
  return found->second;
}

ParamStore::ParamStore(Backend& backend, const ParamTable& table, const ShardLayout& layout, Options options)
    : impl_(std::make_unique<Impl>(backend, table, layout, std::move(options))) {
  impl_->allocate();
  for (const int unit : layout.units()) impl_->collect_matrices(unit);
}

ParamStore::~ParamStore() = default;
ParamStore::ParamStore(ParamStore&&) noexcept = default;
ParamStore& ParamStore::operator=(ParamStore&&) noexcept = default;

const UnitWeights& ParamStore::acquire(Stream& stream, int unit) {
  Impl::Unit& entry = impl_->unit_at(unit);
  if (!entry.is_current) impl_->refresh(stream, entry);
  ++entry.acquired;
  return entry.weights;
}

void ParamStore::release(int unit) {
  Impl::Unit& entry = impl_->unit_at(unit);
  SCALETRAIN_CHECK_LT(0, entry.acquired);
  --entry.acquired;
}

const UnitGradients& ParamStore::gradients(int unit) const {
  return impl_->unit_at(unit).gradients;
}

void ParamStore::zero_gradients(Stream& stream) {
  for (const OptimizerRange& range : impl_->ranges) impl_->backend.run(stream, Fill{.output = range.gradient});
}

std::span<OptimizerRange> ParamStore::optimizer_ranges() {
  return impl_->ranges;
}

void ParamStore::values_changed() {
  for (auto& [index, unit] : impl_->units) {
    SCALETRAIN_CHECK_EQ(unit.acquired, 0);
    unit.is_current = false;
    for (auto& entry : unit.weights.entries_) entry.weight.packed = nullptr;
  }
  impl_->packed.clear();
}

View ParamStore::master(std::string_view row_name) const {
  const ParamSpan* span = impl_->find(row_name);
  if (span == nullptr) return {};
  return impl_->view(impl_->memory[static_cast<std::size_t>(span->buffer)].param, *span);
}

View ParamStore::gradient(std::string_view row_name) const {
  const ParamSpan* span = impl_->find(row_name);
  if (span == nullptr) return {};
  return impl_->view(impl_->memory[static_cast<std::size_t>(span->buffer)].gradient, *span);
}

View ParamStore::slot(std::string_view row_name, std::size_t slot) const {
  SCALETRAIN_CHECK_LT(slot, impl_->options.slot_names.size());
  const ParamSpan* span = impl_->find(row_name);
  if (span == nullptr) return {};
  const auto& slots = impl_->memory[static_cast<std::size_t>(span->buffer)].slots;
  return slots.empty() ? View() : impl_->view(slots[slot], *span);
}

const ParamTable& ParamStore::table() const {
  return impl_->table;
}
const ShardLayout& ParamStore::layout() const {
  return impl_->layout;
}
const ParamStore::Options& ParamStore::options() const {
  return impl_->options;
}

std::uint64_t ParamStore::bytes() const {
  std::uint64_t total = 0;
  for (const Impl::Memory& part : impl_->memory) {
    total += part.param.size() + part.gradient.size();
    for (const Buffer& slot : part.slots) total += slot.size();
  }
  return total;
}

std::uint64_t ParamStore::packed_bytes() const {
  std::uint64_t total = 0;
  for (const auto& [place, form] : impl_->packed) total += form ? form->num_bytes() : 0;
  return total;
}

}  // namespace scaletrain
