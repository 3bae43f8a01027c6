// The operations a backend implements, as plain descriptors. A few dozen coarse ones: this is not a tensor library and
// knows no automatic differentiation. Layers fill a descriptor with designated initialisers and pass it to a Backend.
//
// Legend: N rows (batch times tokens, flattened), B batch, T tokens, C hidden, H heads, G key/value heads, D head size,
// F ffn, V vocabulary, O and I a linear map's output and input features. All views are contiguous unless a row stride
// (in elements) is given. "Adds" means the result is added to what the memory holds; everything else is overwritten.
// Outputs must not overlap inputs unless a line allows it. Empty optional views are absent operands.
//
// Rows of logits may be longer than V, up to the next multiple of Backend::row_alignment(), and so the rows that linear
// maps make or read of them: W in place of O or V below. What lies beyond the classes is padding, which nothing reads.
//
// Element types. Compute type (f32, bf16 or f16; f64 in the f64 reference): activations, their gradients, logits, the
// weights that layers read, tables. Master type, f32 under every compute type (f64 in the f64 reference): gradients of
// parameters (d_weight, d_bias, d_table ...), statistics (mean, rstd, log_sum_exp, statistics of softmax), what the
// optimizers update and read. Ids and positions are i32. What else there is says so. Whatever the types, products are
// summed and functions computed in f32 or better; a result is rounded once, where it is stored. On a GPU, a linear map
// or product in halves may also round its sums of products before bias and addend, or its last classes' part, are added
// to them.
//
// Two descriptors are equal if they name the same memory and the same numbers, whatever that memory holds. Those that
// name memory of the caller (spans) are not compared.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <variant>

#include "backend/update_operations.h"
#include "base/numbers/philox.h"
#include "tensor/view.h"

namespace scaletrain {

// A weight in the backend's compute form (transposed, tile-packed ...), made by Backend::pack. Immutable.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  virtual std::size_t num_bytes() const = 0;
};

// A handle to a weight: its values and, where the backend made one, its packed form. Does not own; valid between
// ParamStore::acquire and release.
struct Weight {
  ConstView values;
  const PackedWeight* packed = nullptr;
  bool operator==(const Weight&) const = default;
};

enum class NormType { layernorm, rmsnorm };
enum class ActivationType { gelu, gelu_tanh, swiglu, geglu };
// Whether the activation's input holds a gate beside what it lets through.
constexpr bool is_gated(ActivationType type) {
  return type == ActivationType::swiglu || type == ActivationType::geglu;
}

// output[N,O] = input[N,I] · weight[O,I]ᵀ + bias[O] (+ addend[N,O]). The addend may be the output itself. If asked for,
// activated = activation(output), as ActivationForward makes it of what the output holds, to the bit: the output is
// then still in the cache. An output [N,W] has neither addend nor activation.
struct LinearForward {
  Weight weight;
  ConstView bias;
  ConstView input;
  ConstView addend;
  View output;
  ActivationType activation = ActivationType::gelu;
  View activated{};  // [N,O], or [N,O/2] of one with a gate; absent: no activation
  bool operator==(const LinearForward&) const = default;
};

// d_input[N,I] = d_output[N,W] · weight[O,I]
struct LinearBackwardInput {
  Weight weight;
  ConstView d_output;
  View d_input;
  bool operator==(const LinearBackwardInput&) const = default;
};

// Adds d_output[N,W]ᵀ · input[N,I] to d_weight[O,I] and the column sums of d_output to d_bias[O] (optional).
struct LinearBackwardWeight {
  ConstView input;
  ConstView d_output;
  View d_weight;
  View d_bias;
  bool operator==(const LinearBackwardWeight&) const = default;
};

// output[M,N] = factor · op(a) · op(b) (+ addend_factor · addend[M,N]), op: as it is or transposed, all of the compute
// type and contiguous. The addend may be the output itself, or a or b; it is rounded with the product, once.
struct MatrixProduct {
  ConstView a;       // [M,K]; transposed: [K,M]
  ConstView b;       // [K,N]; transposed: [N,K]
  ConstView addend;  // optional
  View output;
  bool a_is_transposed = false, b_is_transposed = false;
  double factor = 1.0, addend_factor = 1.0;
  std::int64_t depth() const { return a.shape()[a_is_transposed ? 0 : 1]; }  // K
  bool operator==(const MatrixProduct&) const = default;
};

// How rows of C elements lie: one after the other, or as the heads of a wider matrix's rows: `heads` of them one after
// the other, and such groups `stride` elements apart.
struct RowLayout {
  std::int64_t heads = 0;   // 0: one after the other
  std::int64_t stride = 0;  // elements; at least heads · C
  // Where a row starts, in elements.
  std::int64_t start(std::int64_t row, std::int64_t columns) const {
    return heads == 0 ? row * columns : row / heads * stride + row % heads * columns;
  }
  bool operator==(const RowLayout&) const = default;
};

// layernorm: y = (x - mean) · rstd · weight + bias, rstd = 1/sqrt(var + epsilon), var biased (Ba et al. 2016).
// rmsnorm:   y = x · rstd · weight, rstd = 1/sqrt(mean(x²) + epsilon) (Zhang and Sennrich 2019).
// With a weight_offset the weight is that much more than what is stored: 1 for weights kept as their distance from one.
// Statistics over C, kept as mean[N] (layernorm only) and rstd[N] in f32 (f64 in the f64 reference). Rows may be heads;
// the views then have the logical shape, and all layouts of an operation as many heads.
struct NormForward {
  NormType type = NormType::layernorm;
  double epsilon = 1e-5;
  ConstView input;   // [N,C]
  ConstView weight;  // [C]
  ConstView bias;    // [C], optional
  View output;       // [N,C]
  View mean;         // [N]; absent for rmsnorm
  View rstd;         // [N]
  RowLayout input_rows{}, output_rows{};
  double weight_offset = 0.0;
  bool operator==(const NormForward&) const = default;
};

// d_input[N,C] = gradient of the norm (+ addend[N,C], optional: the residual path's gradient). d_input may be the
// addend, and may be d_output. There is no addend to heads.
struct NormBackwardInput {
  NormType type = NormType::layernorm;
  ConstView d_output;
  ConstView input;
  ConstView weight;
  ConstView mean;
  ConstView rstd;
  ConstView addend;
  View d_input;
  RowLayout d_output_rows{}, input_rows{}, d_input_rows{};
  double weight_offset = 0.0;
  bool operator==(const NormBackwardInput&) const = default;
};

// Adds to d_weight[C] and d_bias[C] (optional).
struct NormBackwardWeight {
  NormType type = NormType::layernorm;
  ConstView d_output;
  ConstView input;
  ConstView mean;
  ConstView rstd;
  View d_weight;
  View d_bias;
  RowLayout d_output_rows{}, input_rows{};
  bool operator==(const NormBackwardWeight&) const = default;
};

// gelu: x·Φ(x). gelu_tanh: 0.5x(1 + tanh(√(2/π)(x + 0.044715x³))). Both input[N,F] → output[N,F].
// swiglu (Shazeer 2020): input[N,2F] holds gate then up; output[N,F] = silu(gate) · up.
// geglu (the same): output[N,F] = gelu_tanh(gate) · up.
struct ActivationForward {
  ActivationType type = ActivationType::gelu;
  ConstView input;
  View output;
  bool operator==(const ActivationForward&) const = default;
};

struct ActivationBackward {
  ActivationType type = ActivationType::gelu;
  ConstView input;     // as in the forward
  ConstView d_output;  // [N,F]
  View d_input;        // the input's shape
  bool operator==(const ActivationBackward&) const = default;
};

// How a context longer than the one that a model was made for is reached: rotation frequencies are divided by a factor.
// All of them (Chen et al. 2023) where there is no original context; else those alone that turn less than
// low_frequency_factor times within it, none that turns more than high_frequency_factor times, and in between a share
// that grows evenly (Llama 3.1, Dubey et al. 2024).
struct RopeScaling {
  double factor = 1.0;  // 1: none
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  double original_context = 0.0;  // tokens; 0: all frequencies
  bool operator==(const RopeScaling&) const = default;
};
// frequency: the angle from one position to the next.
double scaled_frequency(const RopeScaling& scaling, double frequency);

// Rotary position embedding (Su et al. 2021), halves convention of Hugging Face's Llama: for head dims d < D/2 the pair
// (x[d], x[d+D/2]) is rotated by the angle position · f, or by its negative (the backward), where the frequency f is
// theta^(-2d/D), scaled. In place over heads [0, num_heads) of each row; row n starts at values + n · row_stride.
struct RopeRotate {
  View values;                  // at least [N, num_heads·D] with the stride below
  std::int64_t row_stride = 0;  // elements
  std::int64_t num_heads = 0;
  std::int64_t head_size = 0;
  ConstView positions;  // [N] i32
  double theta = 10000.0;
  bool inverse = false;
  RopeScaling scaling{};
  bool operator==(const RopeRotate&) const = default;
};

// Which elements dropout (Srivastava et al. 2014) drops: each by itself with the probability; what is kept is divided
// by what the probability leaves of one, so that sums keep their expectation. Nothing is stored: whether an element is
// kept is a function of the key and of where the element is in the whole model, and so the same whatever part of it is
// where, and whenever it is computed again. Of a sample's matrix [R,K] element (r, k) has word k % 4 of Philox's block
// with the counter {r · ceil(K/4) + k/4, the sample's number}, 64 bits each, and is dropped where the word is below
// threshold().
struct DropoutMask {
  double probability = 0.0;  // 0: nothing is dropped; below 1
  PhiloxKey key{};           // of the seed and of what is dropped there
  ConstView samples{};       // [B] i64, their numbers in the run
  explicit operator bool() const { return probability > 0; }
  std::uint32_t threshold() const;
  double factor() const { return 1.0 / (1.0 - probability); }  // of what is kept
  // Of row r of matrices with so many columns, its first block.
  static constexpr std::int64_t first_block(std::int64_t row, std::int64_t columns) {
    return row * ((columns + 3) / 4);
  }
  bool operator==(const DropoutMask&) const = default;
};

// output[N,C] = dropout(input[N,C]) (+ addend[N,C], optional); output may be either of them. Its own backward, without
// the addend. The rows are [first_row, first_row + N) of all samples', `sample_rows` of each one's matrix, and the
// columns [first_column, first_column + C) of its `columns`.
struct Dropout {
  ConstView input;
  ConstView addend{};
  View output;
  DropoutMask mask;
  std::int64_t sample_rows = 0;
  std::int64_t first_row = 0;
  std::int64_t columns = 0;
  std::int64_t first_column = 0;
  bool operator==(const Dropout&) const = default;
};

// Where attention's operands lie: [B, T, heads, D] with a row stride (elements) between tokens, so that they may be
// parts of one fused [B·T, (H+2G)·D] matrix. Batches follow each other: batch b starts at b · T · row_stride.
struct HeadsView {
  View values;
  std::int64_t row_stride = 0;
  bool operator==(const HeadsView&) const = default;
};
struct ConstHeadsView {
  ConstView values;
  std::int64_t row_stride = 0;
  bool operator==(const ConstHeadsView&) const = default;
};

// What attention sees. Query row t of a batch is at position first_query + t, key row s at first_key + s. Causal: key
// position <= query position. Optional document_start[B, Tq] (i32): the smallest key position that query t may see.
// With a window a query sees no key further back than the window's tokens, itself among them: key position > query
// position - window. Every query must see at least one key. Query head h reads key/value head h / (H/G).
struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t num_queries = 0;  // Tq
  std::int64_t num_keys = 0;     // Tk
  std::int64_t heads = 0;        // H
  std::int64_t kv_heads = 0;     // G
  std::int64_t head_size = 0;    // D
  std::int64_t first_query = 0;
  std::int64_t first_key = 0;
  double scale = 1.0;       // applied to query · key, usually 1/sqrt(D)
  std::int64_t window = 0;  // tokens; 0: none
  // Scores become softcap · tanh(score / softcap) (Bello et al. 2016; Gemma 2, Riviere et al. 2024); 0: they stay.
  double softcap = 0.0;
  bool operator==(const AttentionShape&) const = default;
};

// Dropout of attention's probabilities, behind the softmax. A sample's matrix is [all heads · Tq, Tk]: row
// (first_head + h) · Tq + t, of query t by its place among the queries, and key s by its place among the keys.
struct AttentionDropout {
  DropoutMask mask{};
  std::int64_t first_head = 0;  // of the whole model's heads, what is head 0 here
  bool operator==(const AttentionDropout&) const = default;
};

struct AttentionForward {
  AttentionShape shape;
  ConstHeadsView query, key, value;
  ConstView document_start;
  HeadsView output;  // [B,Tq,H,D]
  View log_sum_exp;  // [B,H,Tq], optional in inference; natural logarithm of the sum of exp(score)
  AttentionDropout dropout{};
  bool operator==(const AttentionForward&) const = default;
};

// Overwrites d_query, d_key, d_value.
struct AttentionBackward {
  AttentionShape shape;
  ConstHeadsView query, key, value, output, d_output;
  ConstView log_sum_exp;
  ConstView document_start;
  HeadsView d_query, d_key, d_value;
  // [n] f32, optional, for a compute type of 16 bits: where a backend may sum gradients before it rounds them. It is
  // fastest with as many as its AttentionWorkspace says. What they hold afterwards is undefined.
  View workspace = {};
  AttentionDropout dropout{};  // the forward's
  bool operator==(const AttentionBackward&) const = default;
};

// Batches of an attention, and heads of keys with the query heads that belong to them.
struct AttentionPart {
  std::int64_t batch = 0, kv_heads = 0;
};
AttentionShape part_of(AttentionShape shape, const AttentionPart& part);

// How many numbers AttentionBackward::workspace may have, of a backend. Without change: those of the gradients of all
// queries.
struct AttentionWorkspace {
  // It keeps the gradients of scores, of every query with every key, in halves; and knows no window and no cap.
  bool keeps_scores = false;
  std::int64_t most = INT64_MAX;  // that it is lent; 0: it makes nothing of any
  // Where that is too little for all of a shape, fewer rows (batches times heads times queries) at a time are not worth
  // it.
  std::int64_t least_rows = 1;
  // The shapes that it makes something of any for.
  std::int64_t least_queries = 1, least_head_size = 1, most_head_size = INT64_MAX, head_size_multiple = 1;

  bool is_of(const AttentionShape& shape) const;
  // What it has use of for all of the shape's batches and heads at once, whatever `most` is; nothing beyond 64 bits.
  std::optional<std::int64_t> wanted(const AttentionShape& shape) const;
  // As few parts as `elements` suffice for, of about one size: some batches of all heads, or some heads of one batch.
  // Nothing where they do not suffice for least_rows.
  std::optional<AttentionPart> largest_part(const AttentionShape& shape, std::int64_t elements) const;
  // What to lend it: what it has use of, or of shapes that take more than `most`, that of the largest part.
  std::int64_t lent(const AttentionShape& shape) const;
};

// output[N,C] = table[ids[n] - first_id] (+ position_table[positions[n]], optional). The table may be a part of the
// vocabulary, rows for ids [first_id, first_id + rows): other ids give zeros (a vocabulary-parallel rank's share of the
// sum). An id outside the vocabulary is a bug.
struct EmbeddingForward {
  ConstView table;           // [V,C], or the rank's part of it; may have no rows
  ConstView position_table;  // [P,C]
  ConstView ids;             // [N] i32
  ConstView positions;       // [N] i32
  View output;
  std::int64_t first_id = 0;
  std::int64_t vocabulary = 0;  // V; 0: the table has all of it
  bool operator==(const EmbeddingForward&) const = default;
};

// Adds d_output's rows to d_table[ids[n] - first_id] and d_position_table[positions[n]], summed in order of n. Ids
// outside the table's part add nothing to it.
struct EmbeddingBackward {
  ConstView d_output;
  ConstView ids;
  ConstView positions;
  View d_table;
  View d_position_table;
  std::int64_t first_id = 0;
  std::int64_t vocabulary = 0;  // as above
  bool operator==(const EmbeddingBackward&) const = default;
};

// What is optimised beside the cross-entropy of a row: it has
//   (1 - ε) · -log p(target) + ε/V · Σᵥ -log p(v) + c · log(Z)²,   Z = Σᵥ exp(logit v),
// over all V classes. ε smooths the targets (Szegedy et al. 2016, as PyTorch's label_smoothing), c keeps Z near one
// (PaLM, Chowdhery et al. 2022). Both shape the gradient alone: the loss that is added up is -log p(target) always, so
// that losses compare, whatever is optimised.
struct LossShape {
  double label_smoothing = 0.0;  // ε, below 1
  double z_loss = 0.0;           // c
  explicit operator bool() const { return label_smoothing != 0.0 || z_loss != 0.0; }
  bool operator==(const LossShape&) const = default;
};

// Softmax cross-entropy over rows of logits[N,W] with targets[N] (i32, -1: masked). Adds the sum over unmasked rows of
// -log p(target) to loss_sum (in row order over partial sums of fixed size, so that threads do not change it).
// With a gradient (d_scale != 0): logits are replaced by d_scale · (softmax - onehot(target)), masked rows by zero;
// with a shape by d_scale · (softmax · (1 + 2c·log Z) - (1 - ε)·onehot(target) - ε/V).
struct CrossEntropy {
  View logits;
  ConstView targets;
  double d_scale = 0.0;
  View loss_sum;                 // [1] f64
  std::int64_t num_classes = 0;  // V; 0: W
  LossShape shape{};
  bool operator==(const CrossEntropy&) const = default;
};

// What one vocabulary-parallel rank contributes to softmax cross-entropy over a vocabulary that is divided among ranks:
// for each row the largest of its logits, the sum of exp(logit - that largest one), and the target's logit (0 where the
// target is masked or another rank's). A rank without classes gives -infinity, 0, 0.
struct SoftmaxStatistics {
  ConstView logits;   // [N,W]: classes [first_class, first_class + num_classes)
  ConstView targets;  // [N] i32 over the whole vocabulary, -1: masked
  std::int64_t first_class = 0;
  std::int64_t vocabulary = 0;   // V: a target beyond it is a bug
  View statistics;               // [N, 3], f32 (f64 in the f64 reference)
  std::int64_t num_classes = 0;  // V/t; 0: W
  bool operator==(const SoftmaxStatistics&) const = default;
};

// CrossEntropy with the statistics of all ranks, combined in their order: the loss of every row (the same bits on every
// rank), and the gradient of this rank's logits in place (Shoeybi et al. 2019, without gathering logits).
struct CrossEntropyParts {
  View logits;
  ConstView targets;
  std::int64_t first_class = 0;
  std::int64_t vocabulary = 0;
  ConstView statistics;  // [t, N, 3]
  double d_scale = 0.0;
  View loss_sum;                 // [1] f64
  std::int64_t num_classes = 0;  // as above
  LossShape shape{};
  bool operator==(const CrossEntropyParts&) const = default;
};

// output = a + b, elementwise; output may be a or b. All of the compute type or all f32.
struct Add {
  ConstView a, b;
  View output;
  bool operator==(const Add&) const = default;
};

// output[n,k] = factor · input[n,k], of the compute type. Both are matrices, or with a stride K columns of matrices
// whose rows lie that far apart: a part of one goes into another. The views have the logical shape. The output may be
// the input, with the same stride.
struct Scale {
  ConstView input;  // [N,K]
  View output;      // [N,K]
  double factor = 1.0;
  std::int64_t input_stride = 0, output_stride = 0;  // elements between rows, at least K; 0: K
  std::int64_t input_row_stride() const { return input_stride == 0 ? input.shape()[1] : input_stride; }
  std::int64_t output_row_stride() const { return output_stride == 0 ? output.shape()[1] : output_stride; }
  bool operator==(const Scale&) const = default;
};

// output = cap · tanh(input / cap), which lies between -cap and cap; output may be the input. Of the compute type.
struct SoftCap {
  ConstView input;
  View output;
  double cap = 1.0;
  bool operator==(const SoftCap&) const = default;
};

// d_input = d_output · (1 - tanh(input / cap)²); d_input may be the input or d_output.
struct SoftCapBackward {
  ConstView input;  // of the forward
  ConstView d_output;
  View d_input;
  double cap = 1.0;
  bool operator==(const SoftCapBackward&) const = default;
};

struct Copy {
  ConstView input;
  View output;  // same number of elements; floating types are converted
  bool operator==(const Copy&) const = default;
};

struct Fill {
  View output;
  double value = 0.0;
  bool operator==(const Fill&) const = default;
};

// Every operation: these, and behind them those of an update. A new one joins here, or the list in
// update_operations.h; it needs a check (backend.cpp, of an update optimizer_checks.inc) and a kernel in the folder of
// each device, and nothing compiles without them.
using Operation =
    WithUpdates<LinearForward, LinearBackwardInput, LinearBackwardWeight, NormForward, NormBackwardInput,
                NormBackwardWeight, ActivationForward, ActivationBackward, RopeRotate, AttentionForward,
                AttentionBackward, EmbeddingForward, EmbeddingBackward, CrossEntropy, SoftmaxStatistics,
                CrossEntropyParts, Add, Dropout, Scale, SoftCap, SoftCapBackward, Copy, Fill, MatrixProduct>;

}  // namespace scaletrain
