#include "plan/save_size.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/numbers/checked.h"
#include "base/text.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/save/save.h"

namespace scaletrain {

namespace {

// Of the text: seen, rounded up.
constexpr std::uint64_t bytes_per_piece = 260;  // in the manifest
constexpr std::uint64_t bytes_per_tensor = 260;
constexpr std::uint64_t bytes_per_file = 90;
constexpr std::uint64_t bytes_per_block = 16;
// The config, and the history without the names of the data's files: 16 characters each, which nobody knows before the
// data is open. A million of them are 3 % of what the manifest may be (manifest_limit_bytes).
constexpr std::uint64_t bytes_besides = 16u << 10;
// Of the lists beside it (checkpoint/format/piece_list.h).
constexpr std::uint64_t bytes_of_suffix = 3;         // "@0" and its length
constexpr std::uint64_t bytes_per_listed_file = 36;  // "optimizer-00000-000.safetensors", its length, 4 for its size
constexpr std::uint64_t bytes_per_listed_block = 8;

// Of a number in a list: 7 bits a byte.
std::uint64_t number_bytes(std::int64_t value) {
  std::uint64_t bytes = 1;
  for (; value >= 128; value /= 128) ++bytes;
  return bytes;
}

struct BoxCount {
  std::int64_t boxes = 0;
  std::uint64_t bytes = 0;  // of their numbers in a list
};

// Counts the boxes that boxes_of_range() would return, from this dim on. outer: bytes of the numbers of those before.
void count_boxes(const Box& box, std::size_t dim, std::int64_t first, std::int64_t count, std::uint64_t outer,
                 BoxCount& out) {
  if (count == 0) return;
  const auto numbers = [&box](std::size_t of, std::int64_t index, std::int64_t extent) {
    return number_bytes(box.first[of] + index) + number_bytes(extent);
  };
  if (dim + 1 >= box.extent.size()) {
    ++out.boxes;
    out.bytes += outer + (box.extent.empty() ? 0 : numbers(dim, first, count));
    return;
  }
  std::int64_t inner = 1;
  for (std::size_t i = dim + 1; i < box.extent.size(); ++i) inner *= box.extent[i];
  const std::int64_t offset = first % inner;
  std::int64_t index = first / inner;
  if (offset != 0) {
    const std::int64_t head = std::min(count, inner - offset);
    count_boxes(box, dim + 1, offset, head, outer + numbers(dim, index, 1), out);
    count -= head;
    ++index;
  }
  if (count >= inner) {
    ++out.boxes;
    out.bytes += outer + numbers(dim, index, count / inner);
    for (std::size_t i = dim + 1; i < box.extent.size(); ++i) out.bytes += numbers(i, 0, box.extent[i]);
    index += count / inner;
  }
  count_boxes(box, dim + 1, 0, count % inner, outer + numbers(dim, index, 1), out);
}

class SaveCounter {
 public:
  explicit SaveCounter(const PhasePlan& phase)
      : phase_(phase), pieces_(phase.table.parameters().size()), number_bytes_(pieces_.size()) {}

  // All data ranks of a stage that hold this tensor part.
  void add(const ShardLayout& layout) {
    masters_.assign(static_cast<std::size_t>(phase_.mesh.degree(Axis::data)), 0);
    of_states_.assign(masters_.size(), 0);
    for (const ParamSpan& span : layout.spans()) add_span(layout, span);
    if (layout.position().tensor == 0) add_factors(layout);
    for (std::size_t rank = 0; rank < masters_.size(); ++rank) {
      add_files(masters_[rank]);
      add_files(of_states_[rank]);
    }
  }

  SaveSize size() const {
    SaveSize size;
    size.bytes = bytes_;
    size.files = files_;
    std::uint64_t tensors = 0;
    std::uint64_t numbers = 0;
    for (std::size_t index = 0; index < pieces_.size(); ++index) {
      const std::int64_t copies = 1 + tensors_of_states(index);
      size.pieces = checked_add(size.pieces, checked_mul(pieces_[index], copies));
      numbers += number_bytes_[index] * static_cast<std::uint64_t>(copies);
      if (pieces_[index] > 0) tensors += static_cast<std::uint64_t>(copies);
      if (pieces_[index] <= size.most_pieces) continue;
      size.most_pieces = pieces_[index];
      size.most_cut = phase_.table.parameters()[index].name;
    }
    size.pieces = checked_add(size.pieces, factor_tensors_);  // each is one piece
    tensors += static_cast<std::uint64_t>(factor_tensors_);
    const auto pieces = static_cast<std::uint64_t>(size.pieces);
    const bool are_listed = pieces > most_pieces_in_manifest;
    const auto files = static_cast<std::uint64_t>(files_);
    size.manifest_bytes = bytes_besides + tensors * bytes_per_tensor;
    if (are_listed) {
      size.list_bytes = numbers + pieces * (number_bytes(files_) + bytes_of_suffix) + files * bytes_per_listed_file +
                        blocks_ * bytes_per_listed_block;
    } else {
      size.manifest_bytes += files * bytes_per_file + blocks_ * bytes_per_block + pieces * bytes_per_piece;
    }
    return size;
  }

 private:
  // A state in blocks is two: codes and scales.
  std::int64_t tensors_of_states(std::size_t index) const {
    const Parameter& parameter = phase_.table.parameters()[index];
    std::int64_t count = 0;
    for (std::size_t state = 0; state < phase_.optimizer_states.size(); ++state)
      if (parameter.has_state(narrow<int>(state)))
        count += is_in_blocks(parameter.state_block, phase_.optimizer_states[state]) ? 2 : 1;
    return count;
  }
  std::uint64_t bytes_of_states(const Parameter& parameter, std::int64_t count) const {
    std::uint64_t bytes = 0;
    for (std::size_t state = 0; state < phase_.optimizer_states.size(); ++state) {
      const std::string& name = phase_.optimizer_states[state];
      if (!parameter.has_state(narrow<int>(state))) continue;
      const std::uint64_t element = size_of(saved_dtype(parameter, name, StatePart::values, phase_.masters()));
      bytes += static_cast<std::uint64_t>(count) * element;
      if (is_in_blocks(parameter.state_block, name))
        bytes += static_cast<std::uint64_t>(count / parameter.state_block) * size_of(phase_.masters());
    }
    return bytes;
  }

  void add_span(const ShardLayout& layout, const ParamSpan& span) {
    const Parameter& parameter = phase_.table.parameters()[static_cast<std::size_t>(span.parameter)];
    const std::int64_t degree = phase_.mesh.degree(Axis::tensor);
    if (span.count == 0 || parameter.tied_to || parameter.in_base ||
        !ParamTable::is_first_replica(parameter, degree, layout.position().tensor))
      return;
    const Bucket& bucket = layout.buckets()[static_cast<std::size_t>(layout.bucket_at(span.buffer, span.offset))];
    const bool trained = parameter.role == ParamRole::trained;
    const std::uint64_t element = size_of(trained ? phase_.masters() : parameter.dtype);
    BoxCount boxes;
    for (std::int64_t done = 0; done < span.count;) {
      const std::int64_t at = span.offset + done - bucket.first;
      const std::int64_t rank = at / bucket.piece_elements;
      const std::int64_t count = std::min(span.count - done, (rank + 1) * bucket.piece_elements - at);
      count_boxes(span.box, 0, done, count, 0, boxes);
      const std::uint64_t bytes = static_cast<std::uint64_t>(count) * element;
      masters_[static_cast<std::size_t>(rank)] += bytes;
      of_states_[static_cast<std::size_t>(rank)] += bytes_of_states(parameter, count);
      done += count;
    }
    pieces_[static_cast<std::size_t>(span.parameter)] += boxes.boxes;
    number_bytes_[static_cast<std::size_t>(span.parameter)] += boxes.bytes;
  }

  // By the first data rank.
  void add_factors(const ShardLayout& layout) {
    for (const FactorPlace& place : factor_places(phase_.table, layout)) {
      if (phase_.table.parameters()[static_cast<std::size_t>(place.parameter)].tied_to) continue;
      factor_tensors_ += 2;
      of_states_.front() += static_cast<std::uint64_t>(place.rows + place.columns) * size_of(phase_.masters());
    }
  }

  void add_files(std::uint64_t bytes) {
    if (bytes == 0) return;
    bytes_ += bytes;
    files_ += narrow<std::int64_t>(ceil_div(bytes, default_max_file_bytes));
    blocks_ += ceil_div(bytes, checksum_block_bytes);
  }

  const PhasePlan& phase_;
  std::vector<std::int64_t> pieces_;         // of each parameter's masters
  std::vector<std::uint64_t> number_bytes_;  // of their boxes in a list
  std::vector<std::uint64_t> masters_;       // bytes of each data rank of the layout at hand
  std::vector<std::uint64_t> of_states_;     // the same of optimizer states
  std::int64_t factor_tensors_ = 0;
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

std::uint64_t manifest_memory(const SaveSize& size) {
  // 354 were seen of 9.4 million (tests/bench/README.md): each is there twice, as it is made and as it is read back.
  constexpr std::uint64_t bytes_in_memory = 400;
  constexpr std::uint64_t least_told = std::uint64_t{64} << 20;
  const std::uint64_t bytes = static_cast<std::uint64_t>(size.pieces) * bytes_in_memory;
  return bytes < least_told ? 0 : bytes;
}

std::string save_text(const SaveSize& size) {
  const auto pieces = static_cast<std::uint64_t>(size.pieces);
  if (pieces <= most_pieces_in_manifest) return {};
  std::string text = fmt::format("{} in {} files; {} pieces of tensors, at most {} of one; manifest {}, pieces.list {}",
                                 bytes_text(size.bytes), grouped_digits(static_cast<std::uint64_t>(size.files)),
                                 grouped_digits(pieces), grouped_digits(static_cast<std::uint64_t>(size.most_pieces)),
                                 bytes_text(size.manifest_bytes), bytes_text(size.list_bytes));
  if (const std::uint64_t memory = manifest_memory(size); memory > 0)
    text += fmt::format("; to write it rank 0 needs {} more memory", bytes_text(memory));
  return text;
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
