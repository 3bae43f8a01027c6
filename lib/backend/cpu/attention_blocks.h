// What attention in f32 and in halves have in common: where heads lie, and which keys queries see.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cpu/kernels.h"
#include "backend/operations.h"

namespace scaletrain::cpu {

// With few queries a product of matrices does not pay: generation reads each key once, by dot products.
inline constexpr std::int64_t max_decode_queries = 4;

// Where one head of one batch lies: rows of D elements.
template <class S, class View>
auto* head_data(const View& heads, std::int64_t tokens, std::int64_t batch, std::int64_t head, std::int64_t head_size) {
  return heads.values.template as<S>() + batch * tokens * heads.row_stride + head * head_size;
}

template <class T>
RowsOf<T> rows_of(T* data, std::int64_t stride) {
  return {data, static_cast<std::ptrdiff_t>(stride)};
}

// Which keys queries see: an interval each, by index.
class Visibility {
 public:
  Visibility(const AttentionShape& shape, const ConstView& document_start)
      : shape_(shape), document_start_(document_start ? document_start.as<std::int32_t>() : nullptr) {}

  std::int64_t first(std::int64_t batch, std::int64_t query) const {
    std::int64_t first = 0;
    if (document_start_ != nullptr) first = document_start_[batch * shape_.num_queries + query] - shape_.first_key;
    if (shape_.window > 0) first = std::max(first, shape_.first_query + query - shape_.first_key + 1 - shape_.window);
    return std::clamp<std::int64_t>(first, 0, shape_.num_keys);
  }
  std::int64_t last(std::int64_t query) const {
    return std::clamp<std::int64_t>(shape_.first_query + query - shape_.first_key + 1, 0, shape_.num_keys);
  }
  // The smallest key that any query of [begin, end) sees.
  std::int64_t first_of(std::int64_t batch, std::int64_t begin, std::int64_t end) const {
    std::int64_t result = shape_.num_keys;
    for (std::int64_t query = begin; query < end; ++query) result = std::min(result, first(batch, query));
    return result;
  }
  // The intervals of queries [begin, end) inside the block of keys that starts at `key` and has `count`.
  void block(std::int64_t batch, std::int64_t begin, std::int64_t end, std::int64_t key, std::int64_t count,
             std::int32_t* firsts, std::int32_t* lasts) const {
    for (std::int64_t query = begin; query < end; ++query) {
      firsts[query - begin] = static_cast<std::int32_t>(std::clamp<std::int64_t>(first(batch, query) - key, 0, count));
      lasts[query - begin] = static_cast<std::int32_t>(std::clamp<std::int64_t>(last(query) - key, 0, count));
    }
  }

 private:
  const AttentionShape& shape_;
  const std::int32_t* document_start_;
};

// How the items of a backward are cut. By heads, a key/value head of one batch with all query heads that read it: five
// products. By blocks of keys and then by blocks of queries, at the price of computing the scores and their gradients
// twice, seven products: where heads leave threads idle.
inline bool backward_by_heads(const AttentionShape& shape, int threads) {
  const std::int64_t heads = shape.batch * shape.kv_heads;
  const std::int64_t rounds = (heads + threads - 1) / threads;
  return 5 * rounds * threads <= 7 * heads;
}

}  // namespace scaletrain::cpu
