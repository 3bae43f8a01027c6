#include "backend/backend.h"

#include <cmath>
#include <initializer_list>
#include <string>
#include <string_view>

#include "backend/operation_checks.h"
#include "backend/optimizer_checks.inc"
#include "base/numbers/checked.h"

namespace scaletrain {

namespace {

// Of logits, checked before, whose rows may be padded.
std::int64_t check_classes(const Checker& check, const ConstView& logits, std::int64_t num_classes) {
  if (num_classes == 0) return logits.shape()[1];
  check.require("logits", check.has_columns(logits, num_classes), "as many columns as there are classes");
  return num_classes;
}

// An operand of attention. The view's own shape may be the logical [B,T,heads,D] or the rest of a fused matrix: only a
// view of fewer elements than the heads have cannot be right.
void check_heads(const Checker& check, std::string_view name, const ConstView& values, std::int64_t row_stride,
                 const Shape& logical) {
  check.present(name, values);
  check.dtype(name, values, check.compute());
  if (values.num_elements() < logical.num_elements())
    check.fail(name,
               "has shape " + to_text(values.shape()) + ", expected at least the elements of " + to_text(logical));
  check.require(name, row_stride >= logical[2] * logical[3], "a row stride of at least heads times head size");
}

void check_attention_shape(const Checker& check, const AttentionShape& shape, const ConstView& document_start) {
  check.require("shape", shape.batch >= 0 && shape.num_queries >= 0 && shape.num_keys >= 0, "extents of at least 0");
  check.require("shape.kv_heads", shape.kv_heads > 0 && shape.heads > 0, "at least one head");
  check.require("shape.heads", shape.heads % shape.kv_heads == 0, "a multiple of kv_heads");
  check.require("shape.head_size", shape.head_size > 0, "at least 1");
  check.require("shape.scale", std::isfinite(shape.scale), "a finite number");
  check.require("shape.window", shape.window >= 0, "at least 0");
  check.require("shape.softcap", shape.softcap >= 0 && std::isfinite(shape.softcap), "a finite number of at least 0");
  check.require("shape.first_query", shape.first_key >= 0 && shape.first_query >= shape.first_key,
                "the first query to see the first key");
  check.require("shape.num_keys", shape.num_keys > 0 || shape.batch * shape.num_queries == 0, "at least one key");
  check.optional("document_start", document_start, DType::i32, Shape{shape.batch, shape.num_queries});
}

void check_dropout(const Checker& check, const DropoutMask& mask, std::int64_t samples) {
  check.require("mask.probability", mask.probability >= 0 && mask.probability < 1, "a number in [0, 1)");
  if (!mask) return;
  check.present("mask.samples", mask.samples);
  check.dtype("mask.samples", mask.samples, DType::i64);
  check.dims("mask.samples", mask.samples, 1);
  check.require("mask.samples", mask.samples.num_elements() >= samples, "the number of every sample");
}

// Positions belong to a position table: both or neither.
void check_positions(const Checker& check, std::string_view table_name, const ConstView& table,
                     const ConstView& positions, DType type, std::int64_t rows, std::int64_t columns) {
  if (!table) return;
  check.matrix(table_name, table, type);
  check.require(table_name, table.shape()[1] == columns, "as many columns as the output");
  check.operand("positions", positions, DType::i32, Shape{rows});
}

// A table or logits may hold a part of the vocabulary only.
void check_part(const Checker& check, std::string_view name, std::int64_t first, std::int64_t count,
                std::int64_t vocabulary) {
  check.require(name, first >= 0 && first <= vocabulary && count <= vocabulary - first,
                "classes inside the vocabulary");
}

std::int64_t input_columns(ActivationType type, std::int64_t features) {
  return is_gated(type) ? 2 * features : features;
}

// ---- what each operation requires

void check_operation(const Backend& backend, const LinearForward& op) {
  const Checker check("LinearForward", backend);
  check.matrix("weight", op.weight.values, check.compute());
  check.matrix("input", op.input, check.compute());
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t outputs = op.weight.values.shape()[0];
  check.require("input", op.input.shape()[1] == op.weight.values.shape()[1], "as many columns as the weight");
  check.matrix("output", op.output, check.compute());
  check.require("output", op.output.shape()[0] == rows && check.has_columns(op.output, outputs),
                "as many rows as the input and as many columns as the weight has rows");
  check.optional("bias", op.bias, check.compute(), Shape{outputs});
  check.optional("addend", op.addend, check.compute(), Shape{rows, outputs});
  check.require("addend", !op.addend || op.output.shape()[1] == outputs, "none where the output's rows are padded");
  check.disjoint("output", op.output, {op.weight.values, op.input, op.bias});
  check.disjoint_or_same("output", op.output, op.addend);
  if (!op.activated) return;
  check.require("activated", op.output.shape()[1] == outputs, "none where the output's rows are padded");
  check.matrix("activated", op.activated, check.compute());
  check.require("activated",
                op.activated.shape()[0] == rows && input_columns(op.activation, op.activated.shape()[1]) == outputs,
                "the shape of the output's activation");
  check.disjoint("activated", op.activated, {op.weight.values, op.input, op.bias, op.addend, op.output});
}

void check_operation(const Backend& backend, const LinearBackwardInput& op) {
  const Checker check("LinearBackwardInput", backend);
  check.matrix("weight", op.weight.values, check.compute());
  check.matrix("d_output", op.d_output, check.compute());
  check.require("d_output", check.has_columns(op.d_output, op.weight.values.shape()[0]),
                "as many columns as the weight has rows");
  check.operand("d_input", op.d_input, check.compute(), Shape{op.d_output.shape()[0], op.weight.values.shape()[1]});
  check.disjoint("d_input", op.d_input, {op.weight.values, op.d_output});
}

void check_operation(const Backend& backend, const LinearBackwardWeight& op) {
  const Checker check("LinearBackwardWeight", backend);
  check.matrix("input", op.input, check.compute());
  check.matrix("d_output", op.d_output, check.compute());
  check.require("d_output", op.d_output.shape()[0] == op.input.shape()[0], "as many rows as the input");
  check.matrix("d_weight", op.d_weight, check.master());
  check.require("d_weight",
                check.has_columns(op.d_output, op.d_weight.shape()[0]) && op.d_weight.shape()[1] == op.input.shape()[1],
                "as many rows as d_output has columns and as many columns as the input");
  check.optional("d_bias", op.d_bias, check.master(), Shape{op.d_weight.shape()[0]});
  check.disjoint("d_weight", op.d_weight, {op.input, op.d_output, op.d_bias});
  check.disjoint("d_bias", op.d_bias, {op.input, op.d_output});
}

void check_operation(const Backend& backend, const MatrixProduct& op) {
  const Checker check("MatrixProduct", backend);
  check.matrix("a", op.a, check.compute());
  check.matrix("b", op.b, check.compute());
  check.require("b", op.b.shape()[op.b_is_transposed ? 1 : 0] == op.depth(), "as many rows as a has columns");
  check.require("a", op.depth() > 0, "at least one column");
  const Shape shape{op.a.shape()[op.a_is_transposed ? 1 : 0], op.b.shape()[op.b_is_transposed ? 0 : 1]};
  check.operand("output", op.output, check.compute(), shape);
  check.optional("addend", op.addend, check.compute(), shape);
  check.require("factor", std::isfinite(op.factor), "a finite number");
  check.require("addend_factor", std::isfinite(op.addend_factor), "a finite number");
  check.disjoint("output", op.output, {op.a, op.b});
  check.disjoint_or_same("output", op.output, op.addend);
}

// heads: of all layouts of the operation.
void check_rows(const Checker& check, std::string_view name, const ConstView& values, const RowLayout& layout,
                std::int64_t heads) {
  check.require(name, layout.heads == heads && heads >= 0, "as many heads as the operation's other rows");
  if (heads == 0) return;
  check.require(name, values.shape()[0] % heads == 0, "a multiple of its heads as rows");
  check.require(name, layout.stride >= heads * values.shape()[1], "a stride of at least heads times columns");
}

void check_operation(const Backend& backend, const NormForward& op) {
  const Checker check("NormForward", backend);
  check.matrix("input", op.input, check.compute());
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t columns = op.input.shape()[1];
  check.require("input", columns > 0, "at least one column");
  check.require("epsilon", op.epsilon >= 0 && std::isfinite(op.epsilon), "a finite number of at least 0");
  check.require("weight_offset", std::isfinite(op.weight_offset), "a finite number");
  check.operand("weight", op.weight, check.compute(), Shape{columns});
  check.optional("bias", op.bias, check.compute(), Shape{columns});
  check.operand("output", op.output, check.compute(), op.input.shape());
  if (op.type == NormType::layernorm) {
    check.operand("mean", op.mean, check.master(), Shape{rows});
  } else {
    check.require("mean", !op.mean, "none for rmsnorm");
    check.require("bias", !op.bias, "none for rmsnorm");
  }
  check.operand("rstd", op.rstd, check.master(), Shape{rows});
  check_rows(check, "input", op.input, op.input_rows, op.input_rows.heads);
  check_rows(check, "output", op.output, op.output_rows, op.input_rows.heads);
  check.disjoint("output", op.output, {op.input, op.weight, op.bias, op.mean, op.rstd});
}

void check_operation(const Backend& backend, const NormBackwardInput& op) {
  const Checker check("NormBackwardInput", backend);
  check.matrix("input", op.input, check.compute());
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t columns = op.input.shape()[1];
  check.require("input", columns > 0, "at least one column");
  check.operand("d_output", op.d_output, check.compute(), op.input.shape());
  check.operand("weight", op.weight, check.compute(), Shape{columns});
  if (op.type == NormType::layernorm) check.operand("mean", op.mean, check.master(), Shape{rows});
  check.operand("rstd", op.rstd, check.master(), Shape{rows});
  check.optional("addend", op.addend, check.compute(), op.input.shape());
  check.operand("d_input", op.d_input, check.compute(), op.input.shape());
  check.require("weight_offset", std::isfinite(op.weight_offset), "a finite number");
  const std::int64_t heads = op.input_rows.heads;
  check_rows(check, "input", op.input, op.input_rows, heads);
  check_rows(check, "d_output", op.d_output, op.d_output_rows, heads);
  check_rows(check, "d_input", op.d_input, op.d_input_rows, heads);
  check.require("addend", heads == 0 || !op.addend, "none for heads");
  if (op.d_input.data() == op.d_output.data())
    check.require("d_input", op.d_input_rows == op.d_output_rows, "the rows of d_output, in whose place it is");
  check.disjoint("d_input", op.d_input, {op.input, op.weight, op.mean, op.rstd});
  check.disjoint_or_same("d_input", op.d_input, op.addend);
  check.disjoint_or_same("d_input", op.d_input, op.d_output);
}

void check_operation(const Backend& backend, const NormBackwardWeight& op) {
  const Checker check("NormBackwardWeight", backend);
  check.matrix("input", op.input, check.compute());
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t columns = op.input.shape()[1];
  check.operand("d_output", op.d_output, check.compute(), op.input.shape());
  if (op.type == NormType::layernorm) check.operand("mean", op.mean, check.master(), Shape{rows});
  check.operand("rstd", op.rstd, check.master(), Shape{rows});
  check.operand("d_weight", op.d_weight, check.master(), Shape{columns});
  check.optional("d_bias", op.d_bias, check.master(), Shape{columns});
  check_rows(check, "input", op.input, op.input_rows, op.input_rows.heads);
  check_rows(check, "d_output", op.d_output, op.d_output_rows, op.input_rows.heads);
  check.disjoint("d_weight", op.d_weight, {op.input, op.d_output, op.mean, op.rstd, op.d_bias});
  check.disjoint("d_bias", op.d_bias, {op.input, op.d_output, op.mean, op.rstd});
}

void check_operation(const Backend& backend, const ActivationForward& op) {
  const Checker check("ActivationForward", backend);
  check.matrix("output", op.output, check.compute());
  const Shape& shape = op.output.shape();
  check.operand("input", op.input, check.compute(), Shape{shape[0], input_columns(op.type, shape[1])});
  check.disjoint("output", op.output, {op.input});
}

void check_operation(const Backend& backend, const ActivationBackward& op) {
  const Checker check("ActivationBackward", backend);
  check.matrix("d_output", op.d_output, check.compute());
  const Shape input_shape{op.d_output.shape()[0], input_columns(op.type, op.d_output.shape()[1])};
  check.operand("input", op.input, check.compute(), input_shape);
  check.operand("d_input", op.d_input, check.compute(), input_shape);
  check.disjoint("d_input", op.d_input, {op.input, op.d_output});
}

void check_operation(const Backend& backend, const RopeRotate& op) {
  const Checker check("RopeRotate", backend);
  check.present("positions", op.positions);
  check.dims("positions", op.positions, 1);
  check.dtype("positions", op.positions, DType::i32);
  check.require("num_heads", op.num_heads >= 0, "at least 0");
  check.require("head_size", op.head_size > 0 && op.head_size % 2 == 0, "an even number of at least 2");
  check.require("theta", op.theta > 0 && std::isfinite(op.theta), "a finite number above 0");
  const RopeScaling& scaling = op.scaling;
  check.require("scaling.factor", scaling.factor > 0 && std::isfinite(scaling.factor), "a finite number above 0");
  check.require("scaling.original_context", scaling.original_context >= 0 && std::isfinite(scaling.original_context),
                "a finite number of at least 0");
  check.require("scaling.low_frequency_factor", scaling.low_frequency_factor < scaling.high_frequency_factor,
                "less than high_frequency_factor");
  check_heads(check, "values", op.values, op.row_stride, Shape{1, op.positions.shape()[0], op.num_heads, op.head_size});
}

void check_operation(const Backend& backend, const AttentionForward& op) {
  const Checker check("AttentionForward", backend);
  const AttentionShape& shape = op.shape;
  check_attention_shape(check, shape, op.document_start);
  const Shape queries{shape.batch, shape.num_queries, shape.heads, shape.head_size};
  const Shape keys{shape.batch, shape.num_keys, shape.kv_heads, shape.head_size};
  check_heads(check, "query", op.query.values, op.query.row_stride, queries);
  check_heads(check, "key", op.key.values, op.key.row_stride, keys);
  check_heads(check, "value", op.value.values, op.value.row_stride, keys);
  check_heads(check, "output", op.output.values, op.output.row_stride, queries);
  check.optional("log_sum_exp", op.log_sum_exp, check.master(), Shape{shape.batch, shape.heads, shape.num_queries});
  check_dropout(check, op.dropout.mask, shape.batch);
}

void check_operation(const Backend& backend, const AttentionBackward& op) {
  const Checker check("AttentionBackward", backend);
  const AttentionShape& shape = op.shape;
  check_attention_shape(check, shape, op.document_start);
  const Shape queries{shape.batch, shape.num_queries, shape.heads, shape.head_size};
  const Shape keys{shape.batch, shape.num_keys, shape.kv_heads, shape.head_size};
  check_heads(check, "query", op.query.values, op.query.row_stride, queries);
  check_heads(check, "key", op.key.values, op.key.row_stride, keys);
  check_heads(check, "value", op.value.values, op.value.row_stride, keys);
  check_heads(check, "output", op.output.values, op.output.row_stride, queries);
  check_heads(check, "d_output", op.d_output.values, op.d_output.row_stride, queries);
  check_heads(check, "d_query", op.d_query.values, op.d_query.row_stride, queries);
  check_heads(check, "d_key", op.d_key.values, op.d_key.row_stride, keys);
  check_heads(check, "d_value", op.d_value.values, op.d_value.row_stride, keys);
  check.operand("log_sum_exp", op.log_sum_exp, check.master(), Shape{shape.batch, shape.heads, shape.num_queries});
  if (op.workspace) {
    check.dtype("workspace", op.workspace, check.master());
    check.dims("workspace", op.workspace, 1);
  }
  check_dropout(check, op.dropout.mask, shape.batch);
}

void check_operation(const Backend& backend, const EmbeddingForward& op) {
  const Checker check("EmbeddingForward", backend);
  check.matrix("output", op.output, check.compute());
  const std::int64_t rows = op.output.shape()[0];
  const std::int64_t columns = op.output.shape()[1];
  check.matrix("table", op.table, check.compute());
  check.require("table", op.table.shape()[1] == columns, "as many columns as the output");
  if (op.vocabulary != 0) check_part(check, "first_id", op.first_id, op.table.shape()[0], op.vocabulary);
  check.require("first_id", op.vocabulary != 0 || op.first_id == 0, "0 where the table has the whole vocabulary");
  check.operand("ids", op.ids, DType::i32, Shape{rows});
  check_positions(check, "position_table", op.position_table, op.positions, check.compute(), rows, columns);
  check.disjoint("output", op.output, {op.table, op.position_table, op.ids, op.positions});
}

void check_operation(const Backend& backend, const EmbeddingBackward& op) {
  const Checker check("EmbeddingBackward", backend);
  check.matrix("d_output", op.d_output, check.compute());
  const std::int64_t rows = op.d_output.shape()[0];
  const std::int64_t columns = op.d_output.shape()[1];
  check.matrix("d_table", op.d_table, check.master());
  check.require("d_table", op.d_table.shape()[1] == columns, "as many columns as d_output");
  if (op.vocabulary != 0) check_part(check, "first_id", op.first_id, op.d_table.shape()[0], op.vocabulary);
  check.require("first_id", op.vocabulary != 0 || op.first_id == 0, "0 where the table has the whole vocabulary");
  check.operand("ids", op.ids, DType::i32, Shape{rows});
  check_positions(check, "d_position_table", op.d_position_table, op.positions, check.master(), rows, columns);
  check.disjoint("d_table", op.d_table, {op.d_output, op.ids, op.positions, op.d_position_table});
  check.disjoint("d_position_table", op.d_position_table, {op.d_output, op.ids, op.positions});
}

void check_shape(const Checker& check, const LossShape& shape) {
  check.require("shape.label_smoothing", shape.label_smoothing >= 0 && shape.label_smoothing < 1, "a number in [0, 1)");
  check.require("shape.z_loss", shape.z_loss >= 0 && std::isfinite(shape.z_loss), "a finite number of at least 0");
}

void check_operation(const Backend& backend, const CrossEntropy& op) {
  const Checker check("CrossEntropy", backend);
  check.matrix("logits", op.logits, check.compute());
  check.require("logits", check_classes(check, op.logits, op.num_classes) > 0, "at least one column");
  check.operand("targets", op.targets, DType::i32, Shape{op.logits.shape()[0]});
  check.require("d_scale", std::isfinite(op.d_scale), "a finite number");
  check_shape(check, op.shape);
  check.operand("loss_sum", op.loss_sum, DType::f64, Shape{1});
}

void check_operation(const Backend& backend, const SoftmaxStatistics& op) {
  const Checker check("SoftmaxStatistics", backend);
  check.matrix("logits", op.logits, check.compute());
  const std::int64_t rows = op.logits.shape()[0];
  check_part(check, "first_class", op.first_class, check_classes(check, op.logits, op.num_classes), op.vocabulary);
  check.operand("targets", op.targets, DType::i32, Shape{rows});
  check.operand("statistics", op.statistics, check.master(), Shape{rows, 3});
  check.disjoint("statistics", op.statistics, {op.logits, op.targets});
}

void check_operation(const Backend& backend, const CrossEntropyParts& op) {
  const Checker check("CrossEntropyParts", backend);
  check.matrix("logits", op.logits, check.compute());
  const std::int64_t rows = op.logits.shape()[0];
  check_part(check, "first_class", op.first_class, check_classes(check, op.logits, op.num_classes), op.vocabulary);
  check.operand("targets", op.targets, DType::i32, Shape{rows});
  check.dims("statistics", op.statistics, 3);
  check.require("statistics", op.statistics.shape()[0] > 0, "those of at least one rank");
  check.operand("statistics", op.statistics, check.master(), Shape{op.statistics.shape()[0], rows, 3});
  check.require("d_scale", std::isfinite(op.d_scale), "a finite number");
  check_shape(check, op.shape);
  check.operand("loss_sum", op.loss_sum, DType::f64, Shape{1});
  check.disjoint("logits", op.logits, {op.targets, op.statistics});
}

void check_operation(const Backend& backend, const Add& op) {
  const Checker check("Add", backend);
  check.present("a", op.a);
  const DType type = op.a.dtype();
  check.require("a", type == check.compute() || type == DType::f32, "F32 or the compute type");
  check.operand("b", op.b, type, op.a.shape());
  check.operand("output", op.output, type, op.a.shape());
  check.disjoint_or_same("output", op.output, op.a);
  check.disjoint_or_same("output", op.output, op.b);
}

void check_operation(const Backend& backend, const Dropout& op) {
  const Checker check("Dropout", backend);
  check.matrix("input", op.input, check.compute());
  check.optional("addend", op.addend, check.compute(), op.input.shape());
  check.operand("output", op.output, check.compute(), op.input.shape());
  check.disjoint_or_same("output", op.output, op.input);
  check.disjoint_or_same("output", op.output, op.addend);
  const std::int64_t rows = op.input.shape()[0];
  check.require("sample_rows", op.sample_rows > 0, "at least 1");
  check.require("first_row", op.first_row >= 0, "at least 0");
  check.require("first_column", op.first_column >= 0 && op.first_column + op.input.shape()[1] <= op.columns,
                "the input's columns among all");
  check.require("mask.probability", op.mask.probability > 0, "a number above 0");
  check_dropout(check, op.mask, (op.first_row + rows + op.sample_rows - 1) / op.sample_rows);
}

void check_operation(const Backend& backend, const Scale& op) {
  const Checker check("Scale", backend);
  check.matrix("input", op.input, check.compute());
  check.operand("output", op.output, check.compute(), op.input.shape());
  const std::int64_t columns = op.input.shape()[1];
  const std::int64_t from = op.input_row_stride();
  const std::int64_t to = op.output_row_stride();
  check.require("input_stride", from >= columns, "at least as many elements as there are columns");
  check.require("output_stride", to >= columns, "at least as many elements as there are columns");
  check.require("output_stride", op.output.data() != op.input.data() || to == from,
                "the input's stride where both are one matrix");
  if (from == columns && to == columns) check.disjoint_or_same("output", op.output, op.input);
  check.require("factor", std::isfinite(op.factor), "a finite number");
}

void check_operation(const Backend& backend, const SoftCap& op) {
  const Checker check("SoftCap", backend);
  check.present("input", op.input);
  check.dtype("input", op.input, check.compute());
  check.operand("output", op.output, check.compute(), op.input.shape());
  check.require("cap", op.cap > 0 && std::isfinite(op.cap), "a finite number above 0");
  check.disjoint_or_same("output", op.output, op.input);
}

void check_operation(const Backend& backend, const SoftCapBackward& op) {
  const Checker check("SoftCapBackward", backend);
  check.present("input", op.input);
  check.dtype("input", op.input, check.compute());
  check.operand("d_output", op.d_output, check.compute(), op.input.shape());
  check.operand("d_input", op.d_input, check.compute(), op.input.shape());
  check.require("cap", op.cap > 0 && std::isfinite(op.cap), "a finite number above 0");
  check.disjoint_or_same("d_input", op.d_input, op.input);
  check.disjoint_or_same("d_input", op.d_input, op.d_output);
}

void check_operation(const Backend& backend, const Copy& op) {
  const Checker check("Copy", backend);
  check.present("input", op.input);
  check.present("output", op.output);
  check.require("output", op.output.num_elements() == op.input.num_elements(), "as many elements as the input");
  check.require(
      "output",
      op.input.dtype() == op.output.dtype() || (is_floating(op.input.dtype()) && is_floating(op.output.dtype())),
      "the input's type, or floating types on both sides");
  check.disjoint("output", op.output, {op.input});
}

void check_operation(const Backend& backend, const Fill& op) {
  const Checker check("Fill", backend);
  check.present("output", op.output);
  check.require("output", op.output.dtype() == check.compute() || op.output.dtype() == DType::f32,
                "F32 or the compute type");
}

}  // namespace

void Backend::run(Stream& stream, const Operation& op) {
  std::visit([&](const auto& descriptor) { check_operation(*this, descriptor); }, op);
  launch(stream, op);
}

void Backend::copy(Stream& stream, ConstView from, View to) {
  const Checker check("copy", *this);
  check.dtype("to", to, from.dtype());
  check.require("to", to.num_elements() == from.num_elements(), "as many elements as there are to copy");
  if (from.num_elements() == 0) return;
  check.require("from", static_cast<bool>(from), "memory to copy from");
  check.require("to", static_cast<bool>(to), "memory to copy to");
  // Memory of another device is out of reach.
  check.require("from", is_host_accessible(from.space()) || from.space() == space(), "memory of this device or a host");
  check.require("to", is_host_accessible(to.space()) || to.space() == space(), "memory of this device or a host");
  check.disjoint("to", to, {from});
  transfer(stream, from, to);
}

}  // namespace scaletrain
