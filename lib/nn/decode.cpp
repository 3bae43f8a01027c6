#include "nn/decode.h"

#include <algorithm>
#include <cmath>

#include "backend/mirrored_buffer.h"
#include "base/numbers/checked.h"
#include "nn/block_tensors.h"

namespace scaletrain {

namespace {

// Tokens of a long prompt that go through the model at once: enough for full matrix products, and a bound on the
// buffers.
constexpr std::int64_t max_piece = 256;

}  // namespace

struct Decoder::Impl {
  Impl(const Transformer& transformer, Backend& used_backend, Stream& used_stream, ParamStore& used_store,
       std::int64_t max_tokens)
      : spec(transformer.spec()),
        backend(used_backend),
        stream(used_stream),
        store(used_store),
        context(max_tokens),
        piece(std::min(max_tokens, max_piece)),
        compute(used_backend.compute_type()),
        tokens_told(used_backend, static_cast<std::size_t>(2 * piece) * sizeof(std::int32_t)),
        logits_told(used_backend, static_cast<std::size_t>(spec.vocab) * size_of(compute)) {
    SCALETRAIN_CHECK(context >= 1);
    SCALETRAIN_CHECK_EQ(transformer.part().degree, std::int64_t{1});
    if (spec.position == PositionKind::learned) SCALETRAIN_CHECK_LE(context, spec.context);
    RegionAllocator counter = RegionAllocator::counting();
    carve_piece(counter, piece);
    buffer = backend.allocate(counter.used());
    const auto layers = static_cast<std::size_t>(spec.layers);
    layer_bytes = align_up(static_cast<std::size_t>(checked_mul(context, cache_features())) * size_of(compute));
    cache = backend.allocate(checked_mul(layer_bytes, layers));
    logits.resize(static_cast<std::size_t>(spec.vocab));
  }

  // Memory of one piece of n tokens: n differs from call to call, the region does not.
  struct PieceTensors {
    View hidden, next;  // [n,C], input and output of a block, by turns
    BlockTensors block;
    NormTensors norm;  // of the last row
  };
  PieceTensors carve_piece(RegionAllocator& region, std::int64_t n) const {
    PieceTensors t;
    t.hidden = region.allocate(compute, {n, spec.hidden});
    t.next = region.allocate(compute, {n, spec.hidden});
    t.block = carve_block(region, {spec, {}, {1, n}, compute});
    t.norm = carve_norm(region, spec, 1, compute);
    return t;
  }

  // A cached row: G·D of key, G·D of value.
  std::int64_t cache_features() const { return 2 * spec.kv_heads * spec.head_size; }
  View layer_cache(std::int64_t layer) const {
    return cache.view(static_cast<std::size_t>(layer) * layer_bytes, compute, {context, cache_features()});
  }

  // [2,n]: ids and positions, as kernels read them.
  View device_tokens(std::int64_t n) const { return tokens_told.device(0, DType::i32, {2, n}); }
  View positions(std::int64_t n) const { return device_tokens(n).rows(1, 1).reshape({n}); }

  void tell(std::span<const std::int32_t> tokens) {
    const auto n = static_cast<std::int64_t>(tokens.size());
    tokens_read.wait();
    const View host = tokens_told.host(0, DType::i32, {2, n});
    auto* const ids = host.rows(0, 1).as<std::int32_t>();
    auto* const places = host.rows(1, 1).as<std::int32_t>();
    for (std::int64_t i = 0; i < n; ++i) {
      ids[i] = tokens[static_cast<std::size_t>(i)];
      SCALETRAIN_CHECK(ids[i] >= 0 && ids[i] < spec.vocab);
      places[i] = narrow<std::int32_t>(length + i);
    }
    tokens_told.to_device(stream, device_tokens(n));
  }

  void embed(std::int64_t n, const PieceTensors& t) {
    const UnitWeights& weights = store.acquire(stream, 0);
    backend.run(stream, EmbeddingForward{.table = weights.find("token.weight").values,
                                         .position_table = weights.find("position.weight").values,
                                         .ids = device_tokens(n).rows(0, 1).reshape({n}),
                                         .positions = positions(n),
                                         .output = t.hidden});
    store.release(0);
  }

  void append_to_cache(const BlockTensors& t, std::int64_t layer) {
    const View target = layer_cache(layer);
    const std::int64_t n = t.qkv.shape()[0];
    const std::int64_t queries = spec.heads * spec.head_size;
    const std::int64_t keys = spec.kv_heads * spec.head_size;
    const auto copy = [&](const View& matrix, std::int64_t row, std::int64_t first, std::int64_t count,
                          std::int64_t place) {
      backend.run(stream, Copy{.input = part(matrix, row * matrix.shape()[1] + first, {count}),
                               .output = part(target, (length + row) * cache_features() + place, {count})});
    };
    for (std::int64_t i = 0; i < n; ++i) {
      if (!t.query_key) {
        copy(t.qkv, i, queries, 2 * keys, 0);
        continue;
      }
      copy(t.query_key, i, queries, keys, 0);
      copy(t.qkv, i, queries + keys, keys, keys);
    }
  }

  void block(std::int64_t layer, const View& input, const View& output, const PieceTensors& t) {
    const std::int64_t n = input.shape()[0];
    const int unit = narrow<int>(layer + 1);
    const UnitOps ops(backend, stream, spec, store.acquire(stream, unit), nullptr);
    block_forward_qkv(ops, spec, input, positions(n), t.block);
    append_to_cache(t.block, layer);
    const Shape keys{1, length + n, spec.kv_heads, spec.head_size};
    const std::int64_t key_features = spec.kv_heads * spec.head_size;
    const View cached = layer_cache(layer);
    const QkvHeads heads = split_qkv(t.block.qkv, t.block.query_key, spec, {1, n});
    backend.run(stream, AttentionForward{.shape = {.batch = 1,
                                                   .num_queries = n,
                                                   .num_keys = length + n,
                                                   .heads = spec.heads,
                                                   .kv_heads = spec.kv_heads,
                                                   .head_size = spec.head_size,
                                                   .first_query = length,
                                                   .first_key = 0,
                                                   .scale = 1.0 / std::sqrt(static_cast<double>(spec.head_size))},
                                         .query = {heads.query.values, heads.query.row_stride},
                                         .key = {part(cached, 0, keys), cache_features()},
                                         .value = {part(cached, key_features, keys), cache_features()},
                                         .document_start = {},
                                         .output = {t.block.attention, spec.heads * spec.head_size},
                                         .log_sum_exp = t.block.log_sum_exp});
    block_forward_middle(ops, spec, input, t.block);
    block_forward_output(ops, output, t.block);
    store.release(unit);
  }

  void compute_logits(const View& last_row, const PieceTensors& t) {
    const int unit = narrow<int>(spec.layers + 1);
    const UnitWeights& weights = store.acquire(stream, unit);
    UnitOps(backend, stream, spec, weights, nullptr).norm_forward("norm", last_row, t.norm);
    const Shape row{1, spec.vocab};
    backend.run(stream, LinearForward{.weight = weights.find("weight"),
                                      .bias = {},
                                      .input = t.norm.output,
                                      .addend = {},
                                      .output = logits_told.device(0, compute, row)});
    store.release(unit);
    logits_told.to_host(stream);
    stream.synchronize();
    convert_floats(compute, logits_told.host(0, compute, row).bytes(), DType::f32, logits.data(), logits.size());
  }

  void append(std::span<const std::int32_t> tokens, bool wants_logits) {
    const auto n = static_cast<std::int64_t>(tokens.size());
    RegionAllocator region(buffer.region());
    PieceTensors t = carve_piece(region, n);
    tell(tokens);
    embed(n, t);
    for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
      block(layer, t.hidden, t.next, t);
      std::swap(t.hidden, t.next);
    }
    tokens_read = stream.record();
    length += n;
    if (wants_logits) compute_logits(t.hidden.rows(n - 1, 1), t);
  }

  const ModelSpec spec;
  Backend& backend;
  Stream& stream;
  ParamStore& store;
  std::int64_t context;
  std::int64_t piece;
  DType compute;
  Buffer buffer;
  Buffer cache;
  std::size_t layer_bytes = 0;
  std::int64_t length = 0;
  MirroredBuffer tokens_told;  // ids and positions of a piece
  Event tokens_read;           // by all that reads them
  MirroredBuffer logits_told;  // [1,V]
  std::vector<float> logits;
};

Decoder::Decoder(const Transformer& model, Backend& backend, Stream& stream, ParamStore& store, std::int64_t context)
    : impl_(std::make_unique<Impl>(model, backend, stream, store, context)) {}

Decoder::~Decoder() = default;

std::span<const float> Decoder::append(std::span<const std::int32_t> tokens) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  SCALETRAIN_CHECK(count >= 1);
  SCALETRAIN_CHECK_LE(impl_->length + count, impl_->context);
  for (std::int64_t first = 0; first < count; first += impl_->piece) {
    const std::int64_t n = std::min(impl_->piece, count - first);
    impl_->append(tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n)), first + n == count);
  }
  return impl_->logits;
}

std::int64_t Decoder::length() const {
  return impl_->length;
}

void Decoder::reset() {
  impl_->length = 0;
}

}  // namespace scaletrain
