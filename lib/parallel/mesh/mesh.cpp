#include "parallel/mesh/mesh.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

std::string_view to_text(Axis axis) {
  switch (axis) {
    case Axis::tensor:
      return "tensor";
    case Axis::data:
      return "data";
    case Axis::pipeline:
      return "pipeline";
  }
  SCALETRAIN_CHECK(false);
}

Mesh::Mesh(std::int64_t data, std::int64_t tensor, std::int64_t pipeline) : Mesh(data, tensor, pipeline, data) {}

Mesh::Mesh(std::int64_t data, std::int64_t tensor, std::int64_t pipeline, std::int64_t shards)
    : data_(data), shards_(shards), tensor_(tensor), pipeline_(pipeline) {
  SCALETRAIN_CHECK(data >= 1 && tensor >= 1 && pipeline >= 1 && shards >= 1);
  SCALETRAIN_CHECK_EQ(data % shards, 0);
  checked_mul(checked_mul(data, tensor), pipeline);
}

std::int64_t Mesh::world() const {
  return data_ * tensor_ * pipeline_;
}

std::int64_t Mesh::degree(Axis axis) const {
  switch (axis) {
    case Axis::tensor:
      return tensor_;
    case Axis::data:
      return data_;
    case Axis::pipeline:
      return pipeline_;
  }
  SCALETRAIN_CHECK(false);
}

Rank Mesh::rank_of(const MeshPosition& position) const {
  SCALETRAIN_CHECK(position.tensor >= 0 && position.tensor < tensor_);
  SCALETRAIN_CHECK(position.data >= 0 && position.data < data_);
  SCALETRAIN_CHECK(position.pipeline >= 0 && position.pipeline < pipeline_);
  return Rank((position.pipeline * data_ + position.data) * tensor_ + position.tensor);
}

MeshPosition Mesh::position_of(Rank rank) const {
  SCALETRAIN_CHECK(rank.value() >= 0);
  SCALETRAIN_CHECK_LT(rank.value(), world());
  const std::int64_t above_tensor = rank.value() / tensor_;
  return {.tensor = rank.value() % tensor_, .data = above_tensor % data_, .pipeline = above_tensor / data_};
}

std::vector<Rank> Mesh::group(Axis axis, Rank rank) const {
  const MeshPosition own = position_of(rank);
  std::vector<Rank> ranks;
  ranks.reserve(static_cast<std::size_t>(degree(axis)));
  for (std::int64_t index = 0; index < degree(axis); ++index) {
    MeshPosition other = own;
    (axis == Axis::tensor ? other.tensor : axis == Axis::data ? other.data : other.pipeline) = index;
    ranks.push_back(rank_of(other));
  }
  return ranks;
}

std::string Mesh::text() const {
  const std::string division = is_hierarchical() ? fmt::format(" ({} copies of {} shards)", copies(), shards_) : "";
  return fmt::format("data {}{} x tensor {} x pipeline {}", data_, division, tensor_, pipeline_);
}

}  // namespace scaletrain
