// Rotary embedding and attention.
#include <algorithm>
#include <cmath>
#include <memory>

#include "cases.h"
#include "softmax_attention.h"

namespace scaletrain::parity {

std::vector<Case> rope_cases() {
  struct Row {
    std::int64_t rows, heads, size, gap, offset;
    std::int32_t first_position;
    double theta;
  };
  const std::vector<Row> table = {
      {1, 1, 2, 0, 0, 0, 10000},      {1, 1, 2, 0, 0, 1, 10000},      {3, 1, 4, 0, 0, 0, 10000},
      {2, 3, 6, 0, 0, 5, 10000},      {5, 2, 8, 3, 1, 0, 10000},      {7, 3, 10, 5, 2, 100, 500000},
      {0, 2, 8, 0, 0, 0, 10000},      {4, 0, 8, 8, 0, 0, 10000},      {31, 1, 16, 0, 0, 0, 10000},
      {32, 2, 16, 32, 16, 0, 10000},  {33, 4, 14, 1, 1, 77, 10000},   {1, 7, 32, 0, 0, 1023, 10000},
      {2, 5, 34, 7, 3, 1024, 10000},  {3, 4, 62, 0, 0, 1025, 500000}, {4, 3, 64, 64, 64, 2047, 10000},
      {5, 2, 66, 0, 0, 4095, 10000},  {6, 1, 126, 2, 1, 8191, 10000}, {7, 2, 128, 256, 128, 8192, 500000},
      {8, 1, 130, 0, 0, 8193, 10000}, {3, 1, 256, 0, 0, 131071, 1e6}, {2, 12, 64, 1536, 0, 1000, 10000},
      {2, 12, 64, 1536, 768, 3, 100}, {17, 2, 22, 4, 2, 11, 10000},   {64, 1, 12, 0, 0, 63, 10000},
      {63, 2, 20, 0, 0, 1, 10000},    {65, 3, 4, 5, 5, 0, 1000},      {127, 1, 2, 1, 0, 0, 10000},
      {128, 1, 2, 0, 0, 0, 10000},    {129, 2, 2, 3, 3, 9, 10000},    {13, 13, 26, 13, 7, 13, 13},
      {2, 32, 128, 0, 0, 17, 10000},  {1, 1, 1024, 0, 0, 3, 10000},   {11, 6, 18, 19, 10, 999, 10000}};
  std::vector<Case> cases;
  for (const Row& row : table) {
    const std::int64_t width = row.heads * row.size;
    const std::int64_t stride = width + row.gap;
    const std::string key = "rope" + std::to_string(cases.size());
    const Values before = normal(key, row.rows * stride);
    Ids positions;
    for (std::int64_t n = 0; n < row.rows; ++n)  // two documents
      positions.push_back(row.first_position + static_cast<std::int32_t>(n % ((row.rows + 1) / 2)));
    const bool inverse = cases.size() % 2 == 1;
    // As they are; all divided; Llama's, with frequencies on both sides of and between its factors.
    const RopeScaling scalings[] = {
        {},
        {.factor = 4.0},
        {.factor = 8.0, .low_frequency_factor = 1.0, .high_frequency_factor = 4.0, .original_context = 64.0}};
    const RopeScaling scaling = scalings[cases.size() % 3];
    Case c;
    c.name = std::to_string(row.rows) + " rows of " + std::to_string(row.heads) + "x" + std::to_string(row.size) +
             " from position " + std::to_string(row.first_position) + (inverse ? " inverse" : "");
    c.run = [=](Device& device) {
      const Strided values{device.put(before, {row.rows, stride}), row.offset, width};
      device.run(RopeRotate{.values = values.view(),
                            .row_stride = stride,
                            .num_heads = row.heads,
                            .head_size = row.size,
                            .positions = device.put_ids(positions, {row.rows}),
                            .theta = row.theta,
                            .inverse = inverse,
                            .scaling = scaling});
      std::vector<Output> outputs{{"values", values.get()}};
      values.set(Values(static_cast<std::size_t>(row.rows * width)));
      outputs.push_back({"gaps", Device::get(values.whole), Kind::around});
      return outputs;
    };
    Values scale(static_cast<std::size_t>(row.rows * width));
    for (std::int64_t n = 0; n < row.rows; ++n)
      for (std::int64_t e = 0; e < width; ++e) {
        const std::int64_t d = e % row.size;
        const std::int64_t other = d < row.size / 2 ? e + row.size / 2 : e - row.size / 2;
        const auto at = static_cast<std::size_t>(n * stride + row.offset);
        scale[static_cast<std::size_t>(n * width + e)] =
            std::hypot(before[at + static_cast<std::size_t>(e)], before[at + static_cast<std::size_t>(other)]);
      }
    c.scales = {scale};
    cases.push_back(c);
  }
  return cases;
}

namespace {

enum class Documents { none, random, rare };  // random: of a few tokens; rare: of many
// apart: each operand contiguous. strided: each with gaps of its own. fused: query, key and value in one matrix.
enum class Layout { apart, strided, fused };

struct AttentionRow {
  std::int64_t batch, queries, keys, heads, kv_heads, size, first_query, first_key;
  Documents documents;
  Layout layout;
  double factor_of_scale = 1.0;
  std::int64_t window = 0;
  double softcap = 0.0;
  double dropout = 0.0;
  std::int64_t first_head = 0;
};

std::vector<AttentionRow> attention_rows() {
  constexpr auto none = Documents::none;
  constexpr auto docs = Documents::random;
  constexpr auto rare = Documents::rare;
  constexpr auto apart = Layout::apart;
  constexpr auto strided = Layout::strided;
  constexpr auto fused = Layout::fused;
  return {
      {1, 1, 1, 1, 1, 1, 0, 0, none, apart},
      {1, 2, 2, 1, 1, 2, 0, 0, none, fused},
      {2, 3, 3, 1, 1, 3, 0, 0, none, strided},
      {1, 5, 5, 2, 1, 7, 0, 0, docs, fused},
      {1, 7, 7, 7, 1, 5, 0, 0, none, fused},
      {2, 13, 13, 6, 3, 4, 0, 0, docs, apart},
      {1, 15, 15, 2, 2, 8, 0, 0, none, fused},
      {1, 16, 16, 2, 2, 16, 0, 0, docs, fused},
      {1, 17, 17, 3, 3, 16, 0, 0, docs, strided},
      {3, 31, 31, 2, 1, 8, 0, 0, none, apart},
      {1, 32, 32, 4, 2, 32, 0, 0, none, fused},
      {1, 33, 33, 4, 4, 12, 0, 0, docs, fused},
      {1, 63, 63, 1, 1, 64, 0, 0, none, apart},
      {1, 64, 64, 2, 1, 64, 0, 0, docs, fused},
      {1, 65, 65, 2, 2, 63, 0, 0, none, strided},
      {1, 127, 127, 1, 1, 20, 0, 0, docs, fused},
      {1, 128, 128, 2, 1, 16, 0, 0, none, fused},
      {1, 129, 129, 1, 1, 17, 0, 0, docs, apart},
      {1, 257, 257, 1, 1, 8, 0, 0, none, fused},
      {1, 1, 9, 2, 1, 8, 8, 0, none, apart},
      {2, 1, 33, 4, 2, 16, 32, 0, docs, strided},
      {1, 4, 20, 2, 2, 6, 16, 0, none, strided},
      {1, 4, 20, 2, 2, 6, 10, 0, none, apart},
      {1, 8, 8, 2, 1, 10, 24, 16, none, fused},
      {1, 8, 16, 2, 1, 10, 24, 16, docs, strided},
      {1, 8, 5, 3, 1, 9, 100, 50, none, apart},
      {2, 16, 64, 2, 1, 24, 48, 0, docs, strided},
      {1, 6, 6, 12, 4, 33, 0, 0, none, fused},
      {2, 11, 11, 8, 8, 1, 0, 0, docs, fused},
      {1, 37, 37, 2, 1, 128, 0, 0, none, fused},
      {1, 9, 9, 1, 1, 129, 0, 0, none, apart},
      {1, 20, 20, 2, 2, 256, 0, 0, docs, strided},
      {5, 10, 10, 4, 1, 16, 0, 0, docs, fused},
      {1, 100, 100, 3, 1, 31, 0, 0, none, strided},
      {1, 70, 70, 2, 1, 16, 1000, 1000, docs, fused},
      {2, 0, 0, 2, 1, 8, 0, 0, none, apart},
      {1, 300, 300, 3, 3, 20, 0, 0, docs, fused},
      {1, 400, 400, 3, 3, 7, 0, 0, none, strided},
      {1, 170, 170, 3, 3, 330, 0, 0, none, fused},
      {1, 40, 40, 1, 1, 1023, 0, 0, docs, apart},
      {1, 100, 150, 3, 3, 16, 51, 0, docs, strided},
      {1, 400, 400, 2, 1, 64, 0, 0, rare, fused},
      {1, 330, 330, 1, 1, 128, 0, 0, rare, apart},
      {1, 260, 260, 1, 1, 64, 0, 0, none, apart, -1.0},
      {1, 70, 70, 2, 1, 32, 0, 0, docs, fused, 0.0},
      // Windows: of one token, shorter and longer than tiles and blocks, as long as the keys, beside documents, of
      // generation; caps of scores, that bend most of them or none; of shapes that a library would take without them.
      {1, 9, 9, 2, 1, 8, 0, 0, none, apart, 1.0, 1},
      {1, 40, 40, 2, 1, 16, 0, 0, none, fused, 1.0, 7},
      {1, 129, 129, 2, 2, 64, 0, 0, none, fused, 1.0, 32},
      {1, 400, 400, 2, 1, 64, 0, 0, none, strided, 1.0, 100},
      {2, 300, 300, 2, 1, 32, 0, 0, docs, fused, 1.0, 33},
      {1, 330, 330, 1, 1, 128, 0, 0, rare, apart, 1.0, 65},
      {1, 64, 64, 2, 1, 24, 0, 0, none, apart, 1.0, 64},
      {1, 1, 33, 4, 2, 16, 32, 0, none, strided, 1.0, 5},
      {1, 4, 20, 2, 2, 6, 16, 0, none, strided, 1.0, 3},
      {1, 8, 16, 2, 1, 10, 24, 16, docs, strided, 1.0, 6},
      {1, 8, 5, 3, 1, 9, 100, 97, none, apart, 1.0, 12},
      {1, 70, 70, 2, 1, 16, 1000, 1000, none, fused, 1.0, 20},
      {1, 260, 260, 1, 1, 64, 0, 0, none, apart, -1.0, 50},
      {1, 33, 33, 2, 1, 16, 0, 0, none, fused, 1.0, 0, 0.5},
      {2, 129, 129, 2, 1, 64, 0, 0, docs, fused, 1.0, 0, 2.0},
      {1, 200, 200, 2, 2, 128, 0, 0, none, apart, 1.0, 0, 50.0},
      {1, 300, 300, 2, 1, 64, 0, 0, none, strided, 1.0, 70, 1.0},
      {1, 1, 40, 2, 1, 32, 39, 0, none, apart, 1.0, 9, 1.5},
      {1, 40, 40, 1, 1, 300, 0, 0, none, apart, 1.0, 11, 1.0},
      {1, 100, 100, 2, 1, 32, 0, 0, docs, fused, -1.0, 40, 1.0},
      {1, 128, 128, 2, 1, 64, 0, 0, none, fused, 1.0, 50},
      {1, 128, 128, 2, 1, 64, 0, 0, none, fused, 1.0, 0, 2.0},
      {2, 65, 65, 4, 2, 40, 0, 0, none, strided, 1.0, 16, 3.0},
      {1, 257, 257, 1, 1, 8, 0, 0, none, fused, 1.0, 256},
      {1, 131, 131, 2, 1, 72, 5, 5, none, fused, 1.0, 40, 4.0},
      {1, 63, 63, 2, 1, 16, 0, 0, none, fused, 1.0, 62},
      {1, 17, 17, 3, 3, 16, 0, 0, docs, strided, 1.0, 4, 0.25},
      {1, 31, 31, 2, 2, 8, 0, 0, none, apart, 1.0, 2},
      {2, 11, 11, 4, 2, 12, 0, 0, none, fused, 1.0, 0, 1.25},
      {1, 96, 96, 2, 1, 48, 0, 0, none, fused, 1.0, 31},
      // Dropout: of odd numbers of keys, of tiles and blocks and their neighbours, beside all of the above, of a rank
      // that has not the first heads, of generation, of shapes that a library would take without.
      {1, 1, 1, 1, 1, 4, 0, 0, none, apart, 1.0, 0, 0.0, 0.5},
      {2, 7, 7, 2, 1, 5, 0, 0, none, fused, 1.0, 0, 0.0, 0.4, 2},
      {1, 33, 33, 4, 2, 16, 0, 0, none, apart, 1.0, 0, 0.0, 0.1, 4},
      {2, 65, 65, 2, 2, 64, 0, 0, docs, fused, 1.0, 0, 0.0, 0.3},
      {2, 128, 128, 2, 1, 64, 0, 0, none, fused, 1.0, 0, 0.0, 0.1, 6},
      {1, 131, 131, 2, 1, 72, 0, 0, none, strided, 1.0, 40, 4.0, 0.2, 3},
      {1, 257, 257, 1, 1, 128, 0, 0, rare, apart, 1.0, 0, 0.0, 0.25, 5},
      {1, 300, 300, 3, 1, 20, 0, 0, docs, fused, 1.0, 33, 0.0, 0.15},
      {1, 40, 40, 1, 1, 300, 0, 0, none, apart, 1.0, 0, 1.0, 0.6, 1},
      {1, 4, 22, 2, 2, 6, 18, 0, none, strided, 1.0, 0, 0.0, 0.3, 2},
      {1, 8, 16, 2, 1, 10, 24, 16, docs, strided, 1.0, 0, 0.0, 0.9},
      {1, 400, 400, 2, 1, 32, 0, 0, none, fused, 1.0, 0, 2.0, 0.1, 10},
      // The library's, but the last.
      {2, 128, 128, 2, 1, 64, 0, 0, none, fused},
      {3, 128, 128, 2, 2, 64, 0, 0, none, fused},
      {1, 128, 128, 6, 3, 64, 0, 0, none, apart},
      {1, 129, 129, 2, 2, 128, 0, 0, none, apart},
      {1, 131, 131, 2, 1, 72, 5, 5, none, fused}};
}

struct AttentionData {
  AttentionRow row;
  AttentionProblem problem;
  AttentionResult result;
  Values output, log_sum_exp;  // the forward's results as the backward reads them, rounded to f32
};

Ids random_documents(const std::string& key, const AttentionRow& row) {
  Ids starts;
  for (std::int64_t b = 0; b < row.batch; ++b) {
    std::int64_t start = row.first_key;
    for (std::int64_t t = 0; t < row.queries; ++t) {
      const std::int64_t position = row.first_query + t;
      const auto index = static_cast<std::uint64_t>(b * row.queries + t);
      const std::int64_t last_key = row.first_key + row.keys - 1;
      const std::int64_t length = row.documents == Documents::rare ? 150 : 6;
      if (random_ids(key + std::to_string(index), 1, length)[0] == 0) start = std::min(position, last_key);
      starts.push_back(static_cast<std::int32_t>(start));
    }
  }
  return starts;
}

std::vector<std::shared_ptr<const AttentionData>> make_attention_data() {
  std::vector<std::shared_ptr<const AttentionData>> all;
  for (const AttentionRow& row : attention_rows()) {
    const std::string key = "attention" + std::to_string(all.size());
    auto data = std::make_shared<AttentionData>();
    data->row = row;
    AttentionProblem& problem = data->problem;
    problem.shape = {row.batch,       row.queries,   row.keys,
                     row.heads,       row.kv_heads,  row.size,
                     row.first_query, row.first_key, row.factor_of_scale / std::sqrt(static_cast<double>(row.size)),
                     row.window,      row.softcap};
    const std::int64_t query_elements = row.batch * row.queries * row.heads * row.size;
    const std::int64_t key_elements = row.batch * row.keys * row.kv_heads * row.size;
    problem.query = normal(key + "query", query_elements);
    problem.key = normal(key + "key", key_elements);
    problem.value = normal(key + "value", key_elements);
    problem.d_output = normal(key + "d_output", query_elements);
    if (row.documents != Documents::none) problem.document_start = random_documents(key + "documents", row);
    problem.dropout = row.dropout;
    problem.dropout_key = philox_key(11, key);
    for (std::int64_t b = 0; b < row.batch; ++b) problem.samples.push_back((b << 33) + 5 - b);
    problem.first_head = row.first_head;
    data->result = softmax_attention(problem);
    data->output = rounded_to_float(data->result.output);
    data->log_sum_exp = rounded_to_float(data->result.log_sum_exp);
    all.push_back(data);
  }
  return all;
}

// Of both operations, and of every test.
const std::vector<std::shared_ptr<const AttentionData>>& attention_data() {
  static const auto all = make_attention_data();
  return all;
}

Case attention_case(const AttentionRow& row) {
  const char* layouts[] = {"apart", "strided", "fused"};
  const char* documents[] = {" ", " documents ", " long documents "};
  Case c;
  c.name = "B" + std::to_string(row.batch) + " Tq" + std::to_string(row.queries) + " Tk" + std::to_string(row.keys) +
           " H" + std::to_string(row.heads) + " G" + std::to_string(row.kv_heads) + " D" + std::to_string(row.size) +
           " query from " + std::to_string(row.first_query) + " key from " + std::to_string(row.first_key) +
           documents[static_cast<int>(row.documents)] + layouts[static_cast<int>(row.layout)] +
           (row.window == 0 ? "" : " window " + std::to_string(row.window)) +
           (row.softcap == 0.0 ? "" : " capped at " + std::to_string(row.softcap)) +
           (row.dropout == 0.0 ? "" : " dropping " + std::to_string(row.dropout)) +
           (row.factor_of_scale == 1.0 ? "" : " scaled by " + std::to_string(row.factor_of_scale));
  c.rounded_factors = 1;  // probabilities, and the gradients of scores
  c.reduction_length = static_cast<double>(std::max({row.keys, row.size, row.queries * row.heads / row.kv_heads}));
  return c;
}

// Query, key and value (or their gradients) in memory, as the case's layout wants them.
struct Operands {
  Strided query, key, value;
  std::vector<View> memory;  // what holds them
};

Operands place(Device& device, const AttentionRow& row, double fill) {
  const std::int64_t query_width = row.heads * row.size;
  const std::int64_t key_width = row.kv_heads * row.size;
  const std::int64_t query_rows = row.batch * row.queries;
  const std::int64_t key_rows = row.batch * row.keys;
  const auto whole = [&](std::int64_t rows, std::int64_t stride) {
    return device.put(Values(static_cast<std::size_t>(rows * stride), fill), {rows, stride});
  };
  if (row.layout == Layout::fused) {
    const View all = whole(query_rows, query_width + 2 * key_width);
    return {{all, 0, query_width}, {all, query_width, key_width}, {all, query_width + key_width, key_width}, {all}};
  }
  const std::int64_t gap = row.layout == Layout::strided ? 3 : 0;
  const View query = whole(query_rows, query_width + gap);
  const View key = whole(key_rows, key_width + 2 * gap);
  const View value = whole(key_rows, key_width + 5 * gap);
  return {{query, gap / 3, query_width}, {key, gap, key_width}, {value, 0, key_width}, {query, key, value}};
}

Operands inputs(Device& device, const AttentionData& data) {
  Operands operands = place(device, data.row, 0x1p100);  // what lies between heads must not be read
  operands.query.set(device.rounded(data.problem.query));
  operands.key.set(device.rounded(data.problem.key));
  operands.value.set(device.rounded(data.problem.value));
  return operands;
}

// A matrix of the query's rows and columns with the case's gaps, holding `values`.
Strided like_query(Device& device, const AttentionRow& row, const Values& values) {
  const std::int64_t gap = row.layout == Layout::strided ? 4 : 0;
  const std::int64_t rows = row.batch * row.queries;
  const std::int64_t width = row.heads * row.size;
  const View whole = device.put(Values(static_cast<std::size_t>(rows * (width + gap)), 0x1p100), {rows, width + gap});
  const Strided strided{whole, gap / 2, width};
  strided.set(device.rounded(values));
  return strided;
}

HeadsView heads(const Strided& strided) {
  return {strided.view(), strided.stride()};
}
ConstHeadsView const_heads(const Strided& strided) {
  return {strided.view(), strided.stride()};
}

View workspace_of(Device& device, const AttentionShape& shape) {
  const std::int64_t elements = device.backend().attention_workspace().lent(shape);
  return device.put_master(Values(static_cast<std::size_t>(elements), 7.0), {elements});
}

View documents(Device& device, const AttentionData& data) {
  if (data.problem.document_start.empty()) return {};
  return device.put_ids(data.problem.document_start, {data.row.batch, data.row.queries});
}

}  // namespace

std::vector<Case> attention_forward_cases() {
  std::vector<Case> cases;
  const auto& all = attention_data();
  for (const auto& data : all) {
    // The library's have it.
    const bool with_log_sum_exp = cases.size() % 5 != 4 || cases.size() + 5 >= all.size();
    Case c = attention_case(data->row);
    c.run = [data, with_log_sum_exp](Device& device) {
      const AttentionRow& row = data->row;
      const Operands in = inputs(device, *data);
      const Strided output = like_query(device, row, data->problem.d_output);
      const View log_sum_exp = with_log_sum_exp ? device.put_master(Values(data->log_sum_exp.size(), 7.0),
                                                                    {row.batch, row.heads, row.queries})
                                                : View();
      device.run(AttentionForward{.shape = data->problem.shape,
                                  .query = const_heads(in.query),
                                  .key = const_heads(in.key),
                                  .value = const_heads(in.value),
                                  .document_start = documents(device, *data),
                                  .output = heads(output),
                                  .log_sum_exp = log_sum_exp,
                                  .dropout = dropout_of(device, data->problem)});
      std::vector<Output> outputs{{"output", output.get()}};
      if (with_log_sum_exp) outputs.push_back({"log_sum_exp", Device::get(log_sum_exp), Kind::master});
      output.set(Values(data->output.size()));
      outputs.push_back({"gaps", Device::get(output.whole), Kind::around});
      for (const View& memory : in.memory) outputs.push_back({"inputs", Device::get(memory), Kind::around});
      return outputs;
    };
    c.scales = {data->result.output_scale};
    if (with_log_sum_exp) c.scales.emplace_back(data->log_sum_exp.size(), 1.0);
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> attention_backward_cases() {
  std::vector<Case> cases;
  for (const auto& data : attention_data()) {
    Case c = attention_case(data->row);
    const bool with_workspace = cases.size() % 7 != 2;
    c.run = [data, with_workspace](Device& device) {
      const AttentionRow& row = data->row;
      const Operands in = inputs(device, *data);
      const Operands gradients = place(device, row, 3.0);
      device.run(
          AttentionBackward{.shape = data->problem.shape,
                            .query = const_heads(in.query),
                            .key = const_heads(in.key),
                            .value = const_heads(in.value),
                            .output = const_heads(like_query(device, row, data->output)),
                            .d_output = const_heads(like_query(device, row, data->problem.d_output)),
                            .log_sum_exp = device.put_master(data->log_sum_exp, {row.batch, row.heads, row.queries}),
                            .document_start = documents(device, *data),
                            .d_query = heads(gradients.query),
                            .d_key = heads(gradients.key),
                            .d_value = heads(gradients.value),
                            .workspace = with_workspace ? workspace_of(device, data->problem.shape) : View(),
                            .dropout = dropout_of(device, data->problem)});
      std::vector<Output> outputs{
          {"d_query", gradients.query.get()}, {"d_key", gradients.key.get()}, {"d_value", gradients.value.get()}};
      for (const Strided* part : {&gradients.query, &gradients.key, &gradients.value})
        part->set(Values(static_cast<std::size_t>(part->whole.shape()[0] * part->width)));
      for (const View& memory : gradients.memory) outputs.push_back({"gaps", Device::get(memory), Kind::around});
      return outputs;
    };
    c.scales = {data->result.d_query_scale, data->result.d_key_scale, data->result.d_value_scale};
    cases.push_back(c);
  }
  return cases;
}

}  // namespace scaletrain::parity
