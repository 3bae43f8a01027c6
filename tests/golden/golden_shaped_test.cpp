// What is optimised beside the cross-entropy, on the processors' backends.
#include "golden_shaped.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

namespace scaletrain {

namespace {

struct Rows {
  nlohmann::json all = nlohmann::json::parse(read_text_file(golden_folder("loss_shapes.json"), 1u << 20));
  std::int64_t rows = all.at("shape").at(0).get<std::int64_t>();
  std::int64_t classes = all.at("shape").at(1).get<std::int64_t>();
  std::vector<double> logits = all.at("logits").get<std::vector<double>>();
  std::vector<std::int32_t> targets = all.at("targets").get<std::vector<std::int32_t>>();
  double loss = all.at("loss").get<double>();
};

LossShape shape_of(const nlohmann::json& of) {
  return {.label_smoothing = of.at("label_smoothing").get<double>(), .z_loss = of.at("z_loss").get<double>()};
}

// Columns [first, first + count) of the rows' logits.
std::vector<double> columns_of(const Rows& rows, std::int64_t first, std::int64_t count) {
  std::vector<double> out;
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const auto begin = rows.logits.begin() + row * rows.classes + first;
    out.insert(out.end(), begin, begin + count);
  }
  return out;
}

View view_of(std::vector<double>& values, const Shape& shape) {
  return {values.data(), DType::f64, shape};
}

}  // namespace

TEST_CASE("golden_gradients_of_smoothed_labels_and_z_loss_agree_with_pytorch") {
  Rows rows;
  const auto backend = make_reference_backend(DType::f64);
  const auto stream = backend->make_stream();
  const ConstView targets(rows.targets.data(), DType::i32, {rows.rows});
  for (const nlohmann::json& of : rows.all.at("cases")) {
    CAPTURE(of.at("label_smoothing"));
    CAPTURE(of.at("z_loss"));
    const auto expected = of.at("gradient").get<std::vector<double>>();
    std::vector<double> loss = {0.0};
    std::vector<double> logits = rows.logits;
    backend->run(*stream, CrossEntropy{.logits = view_of(logits, {rows.rows, rows.classes}),
                                       .targets = targets,
                                       .d_scale = 1.0,
                                       .loss_sum = view_of(loss, {1}),
                                       .shape = shape_of(of)});
    CHECK(std::abs(loss[0] - rows.loss) <= 1e-13 * rows.loss);
    for (std::size_t i = 0; i < expected.size(); ++i) CHECK(std::abs(logits[i] - expected[i]) <= 1e-11);
  }
}

// Two ranks, and one that has no class.
TEST_CASE("golden_gradients_of_a_divided_vocabulary_agree_with_pytorch_s_of_all_of_it") {
  Rows rows;
  const auto backend = make_reference_backend(DType::f64);
  const auto stream = backend->make_stream();
  const ConstView targets(rows.targets.data(), DType::i32, {rows.rows});
  const std::vector<std::pair<std::int64_t, std::int64_t>> parts = {{0, 7}, {7, 6}, {13, 0}};
  const auto ranks = static_cast<std::int64_t>(parts.size());
  std::vector<double> statistics(static_cast<std::size_t>(ranks * rows.rows * 3));
  const auto place = [&](std::int64_t rank) { return statistics.data() + rank * rows.rows * 3; };
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const auto [first, count] = parts[static_cast<std::size_t>(rank)];
    std::vector<double> logits = columns_of(rows, first, count);
    backend->run(*stream, SoftmaxStatistics{.logits = view_of(logits, {rows.rows, count}),
                                            .targets = targets,
                                            .first_class = first,
                                            .vocabulary = rows.classes,
                                            .statistics = View(place(rank), DType::f64, {rows.rows, 3})});
  }
  for (const nlohmann::json& of : rows.all.at("cases")) {
    CAPTURE(of.at("label_smoothing"));
    CAPTURE(of.at("z_loss"));
    const auto expected = of.at("gradient").get<std::vector<double>>();
    for (const auto& [first, count] : parts) {
      std::vector<double> loss = {0.0};
      std::vector<double> logits = columns_of(rows, first, count);
      backend->run(*stream, CrossEntropyParts{.logits = view_of(logits, {rows.rows, count}),
                                              .targets = targets,
                                              .first_class = first,
                                              .vocabulary = rows.classes,
                                              .statistics = view_of(statistics, {ranks, rows.rows, 3}),
                                              .d_scale = 1.0,
                                              .loss_sum = view_of(loss, {1}),
                                              .shape = shape_of(of)});
      CHECK(std::abs(loss[0] - rows.loss) <= 1e-13 * rows.loss);
      for (std::int64_t row = 0; row < rows.rows; ++row)
        for (std::int64_t v = 0; v < count; ++v)
          CHECK(std::abs(logits[static_cast<std::size_t>(row * count + v)] -
                         expected[static_cast<std::size_t>(row * rows.classes + first + v)]) <= 1e-11);
    }
  }
}

TEST_CASE("golden_twenty_adamw_steps_with_a_shaped_loss_agree_with_pytorch") {
  for (const std::string& model : models_with_shape) {
    CAPTURE(model);
    check_training(model, make_reference_backend(DType::f64), in_f64, with_shape);
    check_training(model, make_reference_backend(DType::f32), in_f32, with_shape);
    check_training(model, make_cpu_backend({.threads = 2, .compute = DType::f32}), in_f32, with_shape);
  }
}

}  // namespace scaletrain
