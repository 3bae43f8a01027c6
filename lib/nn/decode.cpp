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

// Rows of a step that are multiplied at once: so few that the cpu backend computes each by itself (max_dot_rows in
// backend/cpu/matmul.cpp), so that a sequence's numbers do not depend on the others.
constexpr std::int64_t step_rows = 4;

// Of a layer with a window: how many tokens more than it sees stay when others go, so that a few may be taken back.
constexpr std::int64_t kept_behind = max_piece;

// A cached row: G·D of key, G·D of value.
std::int64_t cache_features(const ModelSpec& spec) {
  return 2 * spec.kv_heads * spec.head_size;
}

// Tokens before the next one that a layer with this window sees.
std::int64_t seen_before(std::int64_t window) {
  return window - 1;
}

// Tokens that a layer keeps of a sequence. With a window they lie in a row and not in a ring: a piece has room behind
// those that it sees, and once there is none, what is kept moves to the front, which is seldom enough to cost nothing.
std::int64_t kept_tokens(const ModelSpec& spec, std::int64_t layer, std::int64_t context) {
  const std::int64_t window = layer_spec(spec, layer).window;
  if (window == 0) return context;
  return std::min(context, seen_before(window) + kept_behind + 2 * max_piece);
}

std::size_t layer_cache_bytes(const ModelSpec& spec, DType compute, std::int64_t tokens, std::int64_t sequences) {
  const auto rows = checked_mul(tokens, sequences);
  return align_up(static_cast<std::size_t>(checked_mul(rows, cache_features(spec))) * size_of(compute));
}

// Where a layer's keys and values lie.
struct LayerCache {
  std::size_t offset = 0;
  std::int64_t tokens = 0;          // of each sequence
  std::vector<std::int64_t> first;  // of each sequence: which of its tokens is the first that is kept
};

// Tokens of one sequence that follow each other, in the rows [first_row, first_row + rows) of what goes through the
// model at once.
struct TokenRun {
  std::int64_t sequence = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
};

NormTensors rows_of(const NormTensors& norm, std::int64_t first, std::int64_t count) {
  return {.output = norm.output.rows(first, count),
          .mean = norm.mean ? norm.mean.rows(first, count) : View(),
          .rstd = norm.rstd.rows(first, count)};
}

// Without log_sum_exp, whose rows are heads.
BlockTensors rows_of(const BlockTensors& t, const ModelSpec& spec, std::int64_t first, std::int64_t count) {
  BlockTensors rows;
  rows.attention_norm = rows_of(t.attention_norm, first, count);
  rows.qkv = t.qkv.rows(first, count);
  if (t.query_key) {
    rows.query_key = t.query_key.rows(first, count);
    rows.query_rstd = t.query_rstd.rows(first * spec.heads, count * spec.heads);
    rows.key_rstd = t.key_rstd.rows(first * spec.kv_heads, count * spec.kv_heads);
  }
  rows.attention = t.attention.rows(first, count);
  if (t.ffn_output) {
    rows.attention_output = t.attention_output.rows(first, count);
    rows.attention_post_rstd = t.attention_post_rstd.rows(first, count);
    rows.ffn_output = t.ffn_output.rows(first, count);
    rows.ffn_post_rstd = t.ffn_post_rstd.rows(first, count);
  }
  rows.middle = t.middle.rows(first, count);
  rows.ffn_norm = rows_of(t.ffn_norm, first, count);
  rows.pre_activation = t.pre_activation.rows(first, count);
  rows.activation = t.activation.rows(first, count);
  return rows;
}

}  // namespace

struct Decoder::Impl {
  Impl(const Transformer& transformer, Backend& used_backend, Stream& used_stream, ParamStore& used_store,
       std::int64_t max_tokens, std::int64_t num_sequences)
      : spec(transformer.spec()),
        backend(used_backend),
        stream(used_stream),
        store(used_store),
        context(max_tokens),
        piece(std::min(max_tokens, max_piece)),
        lengths(static_cast<std::size_t>(num_sequences), 0),
        compute(used_backend.compute_type()),
        tokens_told(used_backend, static_cast<std::size_t>(2 * most_rows()) * sizeof(std::int32_t)),
        logits_told(used_backend, static_cast<std::size_t>(checked_mul(sequences(), spec.vocab)) * size_of(compute)) {
    SCALETRAIN_CHECK(context >= 1 && num_sequences >= 1);
    SCALETRAIN_CHECK_EQ(transformer.part().degree, std::int64_t{1});
    if (spec.position == PositionKind::learned) SCALETRAIN_CHECK_LE(context, spec.context);
    RegionAllocator counter = RegionAllocator::counting();
    carve_rows(counter, most_rows());
    buffer = backend.allocate(counter.used());
    std::size_t bytes = 0;
    for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
      const std::int64_t tokens = kept_tokens(spec, layer, context);
      layers.push_back({.offset = bytes, .tokens = tokens, .first = std::vector<std::int64_t>(lengths.size(), 0)});
      bytes = checked_add(bytes, layer_cache_bytes(spec, compute, tokens, sequences()));
    }
    cache = backend.allocate(bytes);
    logits.resize(static_cast<std::size_t>(sequences() * spec.vocab));
  }

  std::int64_t sequences() const { return static_cast<std::int64_t>(lengths.size()); }
  std::int64_t most_rows() const { return std::max(piece, sequences()); }
  std::int64_t& length(std::int64_t sequence) {
    SCALETRAIN_CHECK(sequence >= 0 && sequence < sequences());
    return lengths[static_cast<std::size_t>(sequence)];
  }

  // Memory of n rows: n differs from call to call, the region does not.
  struct RowTensors {
    View hidden, next;  // [n,C], input and output of a block, by turns
    BlockTensors block;
    NormTensors norm;  // of rows that logits are wanted of
  };
  RowTensors carve_rows(RegionAllocator& region, std::int64_t n) const {
    RowTensors t;
    t.hidden = region.allocate(compute, {n, spec.hidden});
    t.next = region.allocate(compute, {n, spec.hidden});
    t.block = carve_block(region, {spec, {}, {1, n}, compute});
    t.norm = carve_norm(region, spec, std::min(n, sequences()), compute);
    return t;
  }

  // [tokens that are kept, 2·G·D]
  View layer_cache(std::int64_t layer, std::int64_t sequence) const {
    const LayerCache& at = layers[static_cast<std::size_t>(layer)];
    const std::size_t rows = static_cast<std::size_t>(sequence * at.tokens * cache_features(spec)) * size_of(compute);
    return cache.view(at.offset + rows, compute, {at.tokens, cache_features(spec)});
  }
  std::int64_t& first_kept(std::int64_t layer, std::int64_t sequence) {
    return layers[static_cast<std::size_t>(layer)].first[static_cast<std::size_t>(sequence)];
  }

  // Lets go of what no token from the next one on sees, if the next ones find no room otherwise.
  void make_room(std::int64_t layer, const TokenRun& run, std::int64_t window) {
    const std::int64_t past = length(run.sequence);
    const View cached = layer_cache(layer, run.sequence);
    std::int64_t& first = first_kept(layer, run.sequence);
    if (past + run.rows - first <= cached.shape()[0]) return;
    const std::int64_t next = past - seen_before(window) - kept_behind;
    const std::int64_t step = next - first;
    SCALETRAIN_CHECK(step > 0 && past + run.rows - next <= cached.shape()[0]);
    // A part at a time, which does not overlap with where it goes.
    for (std::int64_t row = 0; row < past - next; row += step) {
      const std::int64_t count = std::min(step, past - next - row);
      backend.copy(stream, cached.rows(row + step, count), cached.rows(row, count));
    }
    first = next;
  }

  // How many of a sequence's tokens may be left, at most `length`, for those behind them to see all that they should.
  std::int64_t longest_prefix(std::int64_t sequence, std::int64_t length) {
    for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
      const std::int64_t window = layer_spec(spec, layer).window;
      const std::int64_t first = first_kept(layer, sequence);
      if (window > 0 && first > 0 && length - seen_before(window) < first) return 0;
    }
    return length;
  }

  // [2,n]: ids and positions, as kernels read them.
  View device_tokens(std::int64_t n) const { return tokens_told.device(0, DType::i32, {2, n}); }
  View positions(std::int64_t n) const { return device_tokens(n).rows(1, 1).reshape({n}); }

  void tell(std::span<const std::int32_t> tokens, std::span<const TokenRun> runs) {
    const auto n = static_cast<std::int64_t>(tokens.size());
    tokens_read.wait();
    const View host = tokens_told.host(0, DType::i32, {2, n});
    auto* const ids = host.rows(0, 1).as<std::int32_t>();
    auto* const places = host.rows(1, 1).as<std::int32_t>();
    for (std::int64_t i = 0; i < n; ++i) {
      ids[i] = tokens[static_cast<std::size_t>(i)];
      SCALETRAIN_CHECK(ids[i] >= 0 && ids[i] < spec.vocab);
    }
    for (const TokenRun& run : runs)
      for (std::int64_t i = 0; i < run.rows; ++i)
        places[run.first_row + i] = narrow<std::int32_t>(length(run.sequence) + i);
    tokens_told.to_device(stream, device_tokens(n));
  }

  void embed(std::int64_t n, const RowTensors& t) {
    const UnitWeights& weights = store.acquire(stream, 0);
    backend.run(stream, EmbeddingForward{.table = weights.find("token.weight").values,
                                         .position_table = weights.find("position.weight").values,
                                         .ids = device_tokens(n).rows(0, 1).reshape({n}),
                                         .positions = positions(n),
                                         .output = t.hidden});
    if (spec.scale_embeddings)
      backend.run(stream, Scale{.input = t.hidden, .output = t.hidden, .factor = embedding_scale(spec, compute)});
    store.release(0);
  }

  // rows: of one run. first_row: of the target.
  void append_to_cache(const BlockTensors& rows, const View& target, std::int64_t first_row) {
    const std::int64_t queries = spec.heads * spec.head_size;
    const std::int64_t keys = spec.kv_heads * spec.head_size;
    const auto copy = [&](const View& matrix, std::int64_t row, std::int64_t first, std::int64_t count,
                          std::int64_t place) {
      backend.run(stream, Copy{.input = part(matrix, row * matrix.shape()[1] + first, {count}),
                               .output = part(target, (first_row + row) * cache_features(spec) + place, {count})});
    };
    for (std::int64_t i = 0; i < rows.qkv.shape()[0]; ++i) {
      if (!rows.query_key) {
        copy(rows.qkv, i, queries, 2 * keys, 0);
        continue;
      }
      copy(rows.query_key, i, queries, keys, 0);
      copy(rows.qkv, i, queries + keys, keys, keys);
    }
  }

  void attention(std::int64_t layer, const ModelSpec& of_layer, const TokenRun& run, const BlockTensors& t) {
    const std::int64_t past = length(run.sequence);
    const BlockTensors rows = rows_of(t, spec, run.first_row, run.rows);
    make_room(layer, run, of_layer.window);
    const View cached = layer_cache(layer, run.sequence);
    const std::int64_t first = first_kept(layer, run.sequence);
    append_to_cache(rows, cached, past - first);
    const Shape keys{1, past + run.rows - first, spec.kv_heads, spec.head_size};
    const std::int64_t key_features = spec.kv_heads * spec.head_size;
    const QkvHeads heads = split_qkv(rows.qkv, rows.query_key, spec, {1, run.rows});
    backend.run(stream, AttentionForward{.shape = {.batch = 1,
                                                   .num_queries = run.rows,
                                                   .num_keys = past + run.rows - first,
                                                   .heads = spec.heads,
                                                   .kv_heads = spec.kv_heads,
                                                   .head_size = spec.head_size,
                                                   .first_query = past,
                                                   .first_key = first,
                                                   .scale = attention_scale(spec),
                                                   .window = of_layer.window,
                                                   .softcap = spec.attention_softcap},
                                         .query = {heads.query.values, heads.query.row_stride},
                                         .key = {part(cached, 0, keys), cache_features(spec)},
                                         .value = {part(cached, key_features, keys), cache_features(spec)},
                                         .document_start = {},
                                         .output = {rows.attention, spec.heads * spec.head_size},
                                         .log_sum_exp = {}});
  }

  // rows_at_once: of the parts that know nothing of sequences.
  void block(std::int64_t layer, std::span<const TokenRun> runs, std::int64_t rows_at_once, const RowTensors& t) {
    const std::int64_t n = t.hidden.shape()[0];
    const int unit = narrow<int>(layer + 1);
    const ModelSpec of_layer = layer_spec(spec, layer);
    const UnitOps ops(backend, stream, of_layer, store.acquire(stream, unit), nullptr);
    for (std::int64_t first = 0; first < n; first += rows_at_once) {
      const std::int64_t count = std::min(rows_at_once, n - first);
      block_forward_qkv(ops, of_layer, t.hidden.rows(first, count), positions(n).rows(first, count),
                        rows_of(t.block, spec, first, count));
    }
    for (const TokenRun& run : runs) attention(layer, of_layer, run, t.block);
    for (std::int64_t first = 0; first < n; first += rows_at_once) {
      const std::int64_t count = std::min(rows_at_once, n - first);
      const BlockTensors rows = rows_of(t.block, spec, first, count);
      block_forward_middle(ops, of_layer, t.hidden.rows(first, count), rows);
      block_forward_output(ops, of_layer, t.next.rows(first, count), rows);
    }
    store.release(unit);
  }

  // Of some rows [n,C], at most as many as there are sequences.
  std::span<const float> compute_logits(const View& rows, const RowTensors& t) {
    const std::int64_t n = rows.shape()[0];
    const int unit = narrow<int>(spec.layers + 1);
    const UnitWeights& weights = store.acquire(stream, unit);
    const UnitOps ops(backend, stream, spec, weights, nullptr);
    const View output = logits_told.device(0, compute, {n, spec.vocab});
    for (std::int64_t first = 0; first < n; first += step_rows) {
      const std::int64_t count = std::min(step_rows, n - first);
      const NormTensors norm = rows_of(t.norm, first, count);
      ops.norm_forward("norm", rows.rows(first, count), norm);
      backend.run(stream, LinearForward{.weight = weights.find("weight"),
                                        .bias = {},
                                        .input = norm.output,
                                        .addend = {},
                                        .output = output.rows(first, count)});
    }
    if (spec.logit_softcap > 0)
      backend.run(stream, SoftCap{.input = output, .output = output, .cap = spec.logit_softcap});
    store.release(unit);
    logits_told.to_host(stream, output);
    stream.synchronize();
    const auto count = static_cast<std::size_t>(n * spec.vocab);
    convert_floats(compute, logits_told.host(0, compute, {n, spec.vocab}).bytes(), DType::f32, logits.data(), count);
    return std::span(logits).first(count);
  }

  // All layers; what leaves the last one is then in `hidden`.
  void run_layers(std::span<const std::int32_t> tokens, std::span<const TokenRun> runs, std::int64_t rows_at_once,
                  RowTensors& t) {
    tell(tokens, runs);
    embed(static_cast<std::int64_t>(tokens.size()), t);
    for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
      block(layer, runs, rows_at_once, t);
      std::swap(t.hidden, t.next);
    }
    tokens_read = stream.record();
    for (const TokenRun& run : runs) length(run.sequence) += run.rows;
  }

  void append_piece(std::int64_t sequence, std::span<const std::int32_t> tokens, bool wants_logits) {
    const auto n = static_cast<std::int64_t>(tokens.size());
    RegionAllocator region(buffer.region());
    RowTensors t = carve_rows(region, n);
    const TokenRun run{.sequence = sequence, .first_row = 0, .rows = n};
    run_layers(tokens, std::span(&run, 1), n, t);
    if (wants_logits) compute_logits(t.hidden.rows(n - 1, 1), t);
  }

  std::span<const float> step(std::span<const Step> steps) {
    const auto n = static_cast<std::int64_t>(steps.size());
    std::vector<std::int32_t> tokens;
    std::vector<TokenRun> runs;
    std::vector<bool> seen(lengths.size(), false);
    for (const Step& step : steps) {
      SCALETRAIN_CHECK_LT(length(step.sequence), context);
      SCALETRAIN_CHECK(!seen[static_cast<std::size_t>(step.sequence)]);
      seen[static_cast<std::size_t>(step.sequence)] = true;
      runs.push_back({.sequence = step.sequence, .first_row = static_cast<std::int64_t>(runs.size()), .rows = 1});
      tokens.push_back(step.token);
    }
    RegionAllocator region(buffer.region());
    RowTensors t = carve_rows(region, n);
    run_layers(tokens, runs, step_rows, t);
    return compute_logits(t.hidden, t);
  }

  void copy_sequence(std::int64_t from, std::int64_t to) {
    const std::int64_t tokens = length(from);
    if (from == to) return;
    length(to) = tokens;
    if (tokens == 0) return;
    for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
      const std::int64_t first = first_kept(layer, from);
      first_kept(layer, to) = first;
      backend.copy(stream, layer_cache(layer, from).rows(0, tokens - first),
                   layer_cache(layer, to).rows(0, tokens - first));
    }
  }

  std::int64_t truncate(std::int64_t sequence, std::int64_t most) {
    SCALETRAIN_CHECK(most >= 0);
    SCALETRAIN_CHECK_LE(most, length(sequence));
    length(sequence) = longest_prefix(sequence, most);
    if (length(sequence) == 0)
      for (std::int64_t layer = 0; layer < spec.layers; ++layer) first_kept(layer, sequence) = 0;
    return length(sequence);
  }

  const ModelSpec spec;
  Backend& backend;
  Stream& stream;
  ParamStore& store;
  std::int64_t context;
  std::int64_t piece;
  std::vector<std::int64_t> lengths;  // of each sequence
  DType compute;
  Buffer buffer;
  Buffer cache;  // of each layer: of each sequence layer_cache()
  std::vector<LayerCache> layers;
  MirroredBuffer tokens_told;  // ids and positions of what goes through at once
  Event tokens_read;           // by all that reads them
  MirroredBuffer logits_told;  // [sequences,V]
  std::vector<float> logits;
};

Decoder::Decoder(const Transformer& model, Backend& backend, Stream& stream, ParamStore& store, std::int64_t context,
                 std::int64_t sequences)
    : impl_(std::make_unique<Impl>(model, backend, stream, store, context, sequences)) {}

Decoder::~Decoder() = default;

std::size_t Decoder::cache_bytes(const ModelSpec& spec, DType compute, std::int64_t context, std::int64_t sequences) {
  std::size_t bytes = 0;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer)
    bytes = checked_add(bytes, layer_cache_bytes(spec, compute, kept_tokens(spec, layer, context), sequences));
  return bytes;
}

std::span<const float> Decoder::append(std::int64_t sequence, std::span<const std::int32_t> tokens) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  SCALETRAIN_CHECK(count >= 1);
  SCALETRAIN_CHECK_LE(impl_->length(sequence) + count, impl_->context);
  for (std::int64_t first = 0; first < count; first += impl_->piece) {
    const std::int64_t n = std::min(impl_->piece, count - first);
    impl_->append_piece(sequence, tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n)),
                        first + n == count);
  }
  return std::span(impl_->logits).first(static_cast<std::size_t>(impl_->spec.vocab));
}

std::span<const float> Decoder::step(std::span<const Step> steps) {
  SCALETRAIN_CHECK(!steps.empty());
  return impl_->step(steps);
}

void Decoder::copy_sequence(std::int64_t from, std::int64_t to) {
  impl_->copy_sequence(from, to);
}

std::int64_t Decoder::truncate(std::int64_t sequence, std::int64_t length) {
  return impl_->truncate(sequence, length);
}

std::int64_t Decoder::length(std::int64_t sequence) const {
  return impl_->length(sequence);
}

}  // namespace scaletrain
