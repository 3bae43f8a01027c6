#include "plan/save_size.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/checked.h"
#include "base/text.h"
#include "checkpoint/format/manifest.h"

namespace scaletrain {

namespace {

// Of the text: seen, rounded up.
constexpr std::uint64_t bytes_per_piece = 260;  // in the manifest
constexpr std::uint64_t bytes_per_listed_piece = 24;
constexpr std::uint64_t bytes_per_tensor = 260;
constexpr std::uint64_t bytes_per_file = 90;
constexpr std::uint64_t bytes_per_block = 16;
constexpr std::uint64_t bytes_besides = 16u << 10;  // the config, the history

// How many boxes boxes_of_range() would return, from this dim on.
std::int64_t count_boxes(const Box& box, std::size_t dim, std::int64_t first, std::int64_t count) {
  if (count == 0) return 0;
  if (dim + 1 >= box.extent.size()) return 1;
  std::int64_t inner = 1;
  for (std::size_t i = dim + 1; i < box.extent.size(); ++i) inner *= box.extent[i];
  std::int64_t boxes = 0;
  const std::int64_t offset = first % inner;
  if (offset != 0) {
    const std::int64_t head = std::min(count, inner - offset);
    boxes += count_boxes(box, dim + 1, offset, head);
    count -= head;
  }
  if (count >= inner) ++boxes;
  return boxes + count_boxes(box, dim + 1, 0, count % inner);
}

class SaveCounter {
 public:
  explicit SaveCounter(const PhasePlan& phase)
      : phase_(phase), pieces_(phase.table.parameters().size()), states_(phase.optimizer_states.size()) {}

  // All data ranks of a stage that hold this tensor part.
  void add(const ShardLayout& layout) {
    masters_.assign(static_cast<std::size_t>(phase_.mesh.degree(Axis::data)), 0);
    trained_.assign(masters_.size(), 0);
    for (const ParamSpan& span : layout.spans()) add_span(layout, span);
    for (std::size_t rank = 0; rank < masters_.size(); ++rank) {
      add_files(masters_[rank]);
      add_files(trained_[rank] * states_);
    }
  }

  SaveSize size() const {
    SaveSize size;
    size.bytes = bytes_;
    size.files = files_;
    std::uint64_t tensors = 0;
    for (std::size_t index = 0; index < pieces_.size(); ++index) {
      const std::int64_t copies = 1 + (is_trained(index) ? narrow<std::int64_t>(states_) : 0);
      size.pieces = checked_add(size.pieces, checked_mul(pieces_[index], copies));
      if (pieces_[index] > 0) tensors += static_cast<std::uint64_t>(copies);
      if (pieces_[index] <= size.most_pieces) continue;
      size.most_pieces = pieces_[index];
      size.most_cut = phase_.table.parameters()[index].name;
    }
    const auto pieces = static_cast<std::uint64_t>(size.pieces);
    const bool are_listed = pieces > most_pieces_in_manifest;
    size.manifest_bytes = bytes_besides + tensors * bytes_per_tensor +
                          static_cast<std::uint64_t>(files_) * bytes_per_file + blocks_ * bytes_per_block +
                          (are_listed ? 0 : pieces * bytes_per_piece);
    size.list_bytes = are_listed ? pieces * bytes_per_listed_piece : 0;
    return size;
  }

 private:
  bool is_trained(std::size_t index) const { return phase_.table.parameters()[index].role == ParamRole::trained; }

  void add_span(const ShardLayout& layout, const ParamSpan& span) {
    const Parameter& parameter = phase_.table.parameters()[static_cast<std::size_t>(span.parameter)];
    const std::int64_t degree = phase_.mesh.degree(Axis::tensor);
    if (span.count == 0 || parameter.tied_to ||
        !ParamTable::is_first_replica(parameter, degree, layout.position().tensor))
      return;
    const Bucket& bucket = layout.buckets()[static_cast<std::size_t>(layout.bucket_at(span.buffer, span.offset))];
    const bool trained = parameter.role == ParamRole::trained;
    const std::uint64_t element = size_of(trained ? phase_.masters() : parameter.dtype);
    std::int64_t boxes = 0;
    for (std::int64_t done = 0; done < span.count;) {
      const std::int64_t at = span.offset + done - bucket.first;
      const std::int64_t rank = at / bucket.shard_elements;
      const std::int64_t count = std::min(span.count - done, (rank + 1) * bucket.shard_elements - at);
      boxes += count_boxes(span.box, 0, done, count);
      const std::uint64_t bytes = static_cast<std::uint64_t>(count) * element;
      masters_[static_cast<std::size_t>(rank)] += bytes;
      if (trained) trained_[static_cast<std::size_t>(rank)] += bytes;
      done += count;
    }
    pieces_[static_cast<std::size_t>(span.parameter)] += boxes;
  }

  void add_files(std::uint64_t bytes) {
    if (bytes == 0) return;
    bytes_ += bytes;
    files_ += narrow<std::int64_t>(ceil_div(bytes, default_max_file_bytes));
    blocks_ += ceil_div(bytes, checksum_block_bytes);
  }

  const PhasePlan& phase_;
  std::vector<std::int64_t> pieces_;  // of each parameter's masters
  std::size_t states_;
  std::vector<std::uint64_t> masters_;  // bytes of each data rank of the layout at hand
  std::vector<std::uint64_t> trained_;  // of them trained
  std::uint64_t bytes_ = 0;
  std::uint64_t blocks_ = 0;
  std::int64_t files_ = 0;
};

}  // namespace

SaveSize save_size(const PhasePlan& phase) {
  SaveCounter counter(phase);
  for (std::int64_t stage = 0; stage < phase.mesh.degree(Axis::pipeline); ++stage) {
    for (std::int64_t tensor = 0; tensor < phase.mesh.degree(Axis::tensor); ++tensor)
      counter.add(phase.layout(phase.mesh.rank_of({.tensor = tensor, .data = 0, .pipeline = stage})));
  }
  return counter.size();
}

std::string save_text(const SaveSize& size) {
  const auto pieces = static_cast<std::uint64_t>(size.pieces);
  if (pieces <= most_pieces_in_manifest) return {};
  return fmt::format("{} in {} files; {} pieces of tensors, at most {} of one; manifest {}, list of pieces {}",
                     bytes_text(size.bytes), grouped_digits(static_cast<std::uint64_t>(size.files)),
                     grouped_digits(pieces), grouped_digits(static_cast<std::uint64_t>(size.most_pieces)),
                     bytes_text(size.manifest_bytes), bytes_text(size.list_bytes));
}

std::string save_refusal(const SaveSize& size) {
  if (size.manifest_bytes <= manifest_limit_bytes) return {};
  return fmt::format(
      "a checkpoint of {} in {} files needs a manifest of about {}, and none of more than {} is read: "
      "fewer data ranks (parallel.data) make fewer files",
      bytes_text(size.bytes), grouped_digits(static_cast<std::uint64_t>(size.files)), bytes_text(size.manifest_bytes),
      bytes_text(manifest_limit_bytes));
}

}  // namespace scaletrain
