// The optimizers' steps.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>

#include "backend/moment_codes.h"
#include "cases.h"
#include "support/numbers.h"

namespace scaletrain::parity {

namespace {

struct StepOperands {
  std::int64_t count = 0;
  Values param, gradient, first_moment, slow_moment, second_moment;
  std::vector<UpdateSpan> spans;
  StepScalars step;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  bool with_compute_weights = false;
};

// Spans with padding before, between and after them, and two that touch.
std::shared_ptr<const StepOperands> step_operands(std::size_t index, std::int64_t n) {
  const std::string key = "step" + std::to_string(index);
  auto o = std::make_shared<StepOperands>();
  o->count = n;
  o->param = normal(key + "param", n);
  o->gradient = normal(key + "gradient", n, 0.0, 20.0);
  o->first_moment = normal(key + "first", n);
  o->slow_moment = normal(key + "slow", n);
  o->second_moment = rounded_to_float(map(normal(key + "second", n), square));
  const std::int64_t a = n / 7;
  const std::int64_t b = n / 2;
  const std::int64_t d = n - n / 5;
  o->spans = {{a, b - a, 0.1}, {b, (d - b) / 2, 0.0, 3.0}, {d - (d - b) / 3, (d - b) / 3, 0.5, 0.3}};
  if (index % 4 == 0) o->spans = {{0, n, 0.1}};
  if (n > 0 && index % 9 == 5) o->spans.clear();
  // A learning rate as large as the parameters, so that an error of the direction is not lost in them.
  o->step = {.learning_rate = 0.5,
             .gradient_scale = 0.05,
             .bias_correction1 = 1.0 - std::pow(0.9, static_cast<double>(index + 1)),
             .bias_correction2 = 1.0 - std::pow(0.95, static_cast<double>(index + 1)),
             .skip = index % 11 == 3 ? 1.0 : 0.0,
             .slow_beta = index % 5 == 4 ? 0.0 : 0.99,
             .slow_weight = 3.0};
  if (index % 2 == 1) o->epsilon = 0.1;
  o->with_compute_weights = index % 3 != 0;
  return o;
}

// The span where an element is updated, null where it is not.
std::vector<const UpdateSpan*> spans_by_element(const StepOperands& o) {
  std::vector<const UpdateSpan*> result(static_cast<std::size_t>(o.count), nullptr);
  if (o.step.skip != 0) return result;
  for (const UpdateSpan& span : o.spans)
    for (std::int64_t e = span.first; e < span.first + span.count; ++e) result[static_cast<std::size_t>(e)] = &span;
  return result;
}

std::string name_of(const StepOperands& o) {
  return std::to_string(o.count) + " in " + std::to_string(o.spans.size()) + " spans" +
         (o.step.skip != 0 ? " skipped" : "");
}

}  // namespace

std::vector<Case> adamw_cases() {
  std::vector<Case> cases;
  for (const std::int64_t n : lengths()) {
    const auto o = step_operands(cases.size(), n);
    Case c;
    c.name = name_of(*o);
    c.run = [o](Device& device) {
      const View param = device.put_master(o->param, {o->count});
      const View first = device.put_master(o->first_moment, {o->count});
      const View second = device.put_master(o->second_moment, {o->count});
      const View compute_weights = o->with_compute_weights ? device.put(o->gradient, {o->count}) : View();
      device.run(AdamWStep{.param = param,
                           .first_moment = first,
                           .second_moment = second,
                           .gradient = device.put_master(o->gradient, {o->count}),
                           .spans = o->spans,
                           .beta1 = o->beta1,
                           .beta2 = o->beta2,
                           .epsilon = o->epsilon,
                           .step = record_of(o->step),
                           .compute_weights = compute_weights});
      std::vector<Output> outputs{{"param", Device::get(param), Kind::master},
                                  {"first_moment", Device::get(first), Kind::master},
                                  {"second_moment", Device::get(second), Kind::master}};
      if (o->with_compute_weights) outputs.push_back({"compute_weights", Device::get(compute_weights)});
      return outputs;
    };
    const auto spans = spans_by_element(*o);
    std::vector<Values> scales(3, Values(spans.size(), untouched));
    for (std::size_t e = 0; e < spans.size(); ++e) {
      if (spans[e] == nullptr) continue;
      const double g = std::fabs(o->gradient[e] * o->step.gradient_scale);
      const double m = o->beta1 * std::fabs(o->first_moment[e]) + (1 - o->beta1) * g;
      const double v = o->beta2 * o->second_moment[e] + (1 - o->beta2) * g * g;
      const double direction = m / o->step.bias_correction1 / (std::sqrt(v / o->step.bias_correction2) + o->epsilon);
      const double p = std::fabs(o->param[e]);
      scales[0][e] =
          std::max(p, o->step.learning_rate * spans[e]->rate_factor * (direction + spans[e]->weight_decay * p));
      scales[1][e] = m;
      scales[2][e] = v;
    }
    if (o->with_compute_weights) scales.push_back(scales[0]);
    c.scales = scales;
    cases.push_back(c);
  }
  return cases;
}

namespace {

struct BlockOperands {
  StepOperands of;
  std::int64_t block = 0;
  Ids first_codes, second_codes;
  Values first_scales, second_scales;
};

std::shared_ptr<const BlockOperands> block_operands(std::size_t index, std::int64_t block, std::int64_t num_blocks) {
  auto o = std::make_shared<BlockOperands>();
  o->of = *step_operands(index, block * num_blocks);
  o->block = block;
  const std::string key = "blocks" + std::to_string(index);
  o->first_codes = random_ids(key + "first", o->of.count, 256);
  o->second_codes = random_ids(key + "second", o->of.count, 256);
  o->first_scales = map(normal(key + "first scales", num_blocks), [](double x) { return std::fabs(x); });
  o->second_scales = rounded_to_float(map(normal(key + "second scales", num_blocks), square));
  o->of.spans = {{0, o->of.count, 0.1}};
  if (num_blocks > 2) o->of.spans = {{block, block, 0.1}, {2 * block, (num_blocks - 2) * block, 0.0, 3.0}};
  return o;
}

// The moments behind the step, unrounded.
struct StepMoments {
  Values first, second;
  Values first_size;  // of what is added up in the first, by absolute value
};
StepMoments moments_behind(const BlockOperands& o) {
  StepMoments moments;
  for (std::int64_t e = 0; e < o.of.count; ++e) {
    const auto at = static_cast<std::size_t>(e);
    const auto block = static_cast<std::size_t>(e / o.block);
    const double g = o.of.gradient[at] * o.of.step.gradient_scale;
    const double m = static_cast<double>(first_moment_codes().values[static_cast<std::size_t>(o.first_codes[at])]) *
                     o.first_scales[block];
    const double v = static_cast<double>(second_moment_codes().values[static_cast<std::size_t>(o.second_codes[at])]) *
                     o.second_scales[block];
    moments.first.push_back(o.of.beta1 * m + (1 - o.of.beta1) * g);
    moments.first_size.push_back(o.of.beta1 * std::fabs(m) + (1 - o.of.beta1) * std::fabs(g));
    moments.second.push_back(o.of.beta2 * v + (1 - o.of.beta2) * g * g);
  }
  return moments;
}

// How many codes are of another number than the nearest, but for rounding; of blocks in no span, of another than
// before.
double misplaced(const BlockOperands& o, const Values& moments, const Values& sizes, const MomentCodes& table,
                 const Ids& before, const View& codes) {
  const auto spans = spans_by_element(o.of);
  double count = 0;
  for (std::int64_t e = 0; e < o.of.count; ++e) {
    const auto at = static_cast<std::size_t>(e);
    const int code = codes.as<std::uint8_t>()[e];
    if (spans[at] == nullptr) {
      count += code == before[at] ? 0 : 1;
      continue;
    }
    double scale = 0;
    for (std::int64_t i = e / o.block * o.block; i < (e / o.block + 1) * o.block; ++i)
      scale = std::max(scale, std::fabs(moments[static_cast<std::size_t>(i)]));
    const double x = moments[at] / scale;
    double nearest = 2;
    for (int other = x != 0 ? table.smallest : 0; other < 256; ++other)
      nearest = std::min(nearest, std::fabs(static_cast<double>(table.values[static_cast<std::size_t>(other)]) - x));
    const double distance = std::fabs(static_cast<double>(table.values[static_cast<std::size_t>(code)]) - x);
    count += code >= table.smallest && distance <= nearest + 1e-6 * sizes[at] / scale ? 0 : 1;
  }
  return count;
}

}  // namespace

std::vector<Case> block_adamw_cases() {
  std::vector<Case> cases;
  for (const std::int64_t num_blocks : {1, 2, 3, 5, 7, 9})
    for (const std::int64_t block : {16, 32, 64, 128, 256}) {
      const auto o = block_operands(cases.size(), block, num_blocks);
      const auto moments = std::make_shared<const StepMoments>(moments_behind(*o));
      Case c;
      c.name = std::to_string(num_blocks) + " blocks of " + std::to_string(block);
      c.run = [o, moments](Device& device) {
        const View param = device.put_master(o->of.param, {o->of.count});
        const View first = device.put_bytes(o->first_codes, {o->of.count});
        const View second = device.put_bytes(o->second_codes, {o->of.count});
        const Shape blocks{o->of.count / o->block};
        const View first_scales = device.put_master(o->first_scales, blocks);
        const View second_scales = device.put_master(o->second_scales, blocks);
        const View compute_weights = o->of.with_compute_weights ? device.put(o->of.gradient, {o->of.count}) : View();
        device.run(BlockAdamWStep{.param = param,
                                  .first_codes = first,
                                  .second_codes = second,
                                  .first_scales = first_scales,
                                  .second_scales = second_scales,
                                  .gradient = device.put_master(o->of.gradient, {o->of.count}),
                                  .spans = o->of.spans,
                                  .block = o->block,
                                  .beta1 = o->of.beta1,
                                  .beta2 = o->of.beta2,
                                  .epsilon = o->of.epsilon,
                                  .step = record_of(o->of.step),
                                  .compute_weights = compute_weights});
        std::vector<Output> outputs{{"param", Device::get(param), Kind::master},
                                    {"first_scales", Device::get(first_scales), Kind::master},
                                    {"second_scales", Device::get(second_scales), Kind::master}};
        if (o->of.with_compute_weights) outputs.push_back({"compute_weights", Device::get(compute_weights)});
        const double wrong =
            misplaced(*o, moments->first, moments->first_size, first_moment_codes(), o->first_codes, first) +
            misplaced(*o, moments->second, moments->second, second_moment_codes(), o->second_codes, second);
        outputs.push_back({"misplaced codes", {wrong}, Kind::around});
        return outputs;
      };
      const auto spans = spans_by_element(o->of);
      const auto blocks = static_cast<std::size_t>(num_blocks);
      std::vector<Values> scales{Values(spans.size(), untouched), Values(blocks, untouched), Values(blocks, untouched)};
      for (std::size_t e = 0; e < spans.size(); ++e) {
        if (spans[e] == nullptr) continue;
        const std::size_t in = e / static_cast<std::size_t>(block);
        const double m = moments->first_size[e];
        const double v = moments->second[e];
        const double direction =
            m / o->of.step.bias_correction1 / (std::sqrt(v / o->of.step.bias_correction2) + o->of.epsilon);
        const double p = std::fabs(o->of.param[e]);
        scales[0][e] =
            std::max(p, o->of.step.learning_rate * spans[e]->rate_factor * (direction + spans[e]->weight_decay * p));
        scales[1][in] = std::max(scales[1][in], m);
        scales[2][in] = std::max(scales[2][in], v);
      }
      if (o->of.with_compute_weights) scales.push_back(scales[0]);
      c.scales = scales;
      cases.push_back(c);
    }
  return cases;
}

std::vector<Case> sgd_cases() {
  std::vector<Case> cases;
  for (const std::int64_t n : lengths()) {
    const auto o = step_operands(cases.size(), n);
    Case c;
    c.name = name_of(*o);
    c.run = [o](Device& device) {
      const View param = device.put_master(o->param, {o->count});
      const View compute_weights = o->with_compute_weights ? device.put(o->gradient, {o->count}) : View();
      device.run(SgdStep{.param = param,
                         .gradient = device.put_master(o->gradient, {o->count}),
                         .spans = o->spans,
                         .step = record_of(o->step),
                         .compute_weights = compute_weights});
      std::vector<Output> outputs{{"param", Device::get(param), Kind::master}};
      if (o->with_compute_weights) outputs.push_back({"compute_weights", Device::get(compute_weights)});
      return outputs;
    };
    const auto spans = spans_by_element(*o);
    Values scale(spans.size(), untouched);
    for (std::size_t e = 0; e < spans.size(); ++e) {
      if (spans[e] == nullptr) continue;
      const double g = std::fabs(o->gradient[e] * o->step.gradient_scale);
      const double p = std::fabs(o->param[e]);
      scale[e] = std::max(p, o->step.learning_rate * spans[e]->rate_factor * (g + spans[e]->weight_decay * p));
    }
    c.scales = {scale};
    if (o->with_compute_weights) c.scales.push_back(scale);
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> momentum_cases() {
  std::vector<Case> cases;
  constexpr double momentum = 0.75;
  for (const std::int64_t n : lengths()) {
    const auto o = step_operands(cases.size(), n);
    const MomentumForm forms[] = {MomentumForm::classical, MomentumForm::nesterov, MomentumForm::scaled};
    const MomentumForm form = forms[cases.size() % std::size(forms)];
    Case c;
    c.name = name_of(*o) + " form " + std::to_string(static_cast<int>(form));
    c.run = [o, form](Device& device) {
      const View param = device.put_master(o->param, {o->count});
      const View buffer = device.put_master(o->first_moment, {o->count});
      const View compute_weights = o->with_compute_weights ? device.put(o->gradient, {o->count}) : View();
      device.run(SgdStep{.param = param,
                         .gradient = device.put_master(o->gradient, {o->count}),
                         .spans = o->spans,
                         .step = record_of(o->step),
                         .compute_weights = compute_weights,
                         .form = form,
                         .momentum_buffer = buffer,
                         .momentum = momentum});
      std::vector<Output> outputs{{"param", Device::get(param), Kind::master},
                                  {"momentum_buffer", Device::get(buffer), Kind::master}};
      if (o->with_compute_weights) outputs.push_back({"compute_weights", Device::get(compute_weights)});
      return outputs;
    };
    const auto spans = spans_by_element(*o);
    std::vector<Values> scales(2, Values(spans.size(), untouched));
    for (std::size_t e = 0; e < spans.size(); ++e) {
      if (spans[e] == nullptr) continue;
      const double rate = o->step.learning_rate * spans[e]->rate_factor;
      const double p = std::fabs(o->param[e]);
      const double d = std::fabs(o->gradient[e] * o->step.gradient_scale) + spans[e]->weight_decay * p;
      const double b = momentum * std::fabs(o->first_moment[e]) + (form == MomentumForm::scaled ? rate * d : d);
      const double change = form == MomentumForm::classical  ? rate * b
                            : form == MomentumForm::nesterov ? rate * (d + momentum * b)
                                                             : b;
      scales[0][e] = std::max(p, change);
      scales[1][e] = b;
    }
    if (o->with_compute_weights) scales.push_back(scales[0]);
    c.scales = scales;
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> lion_cases() {
  std::vector<Case> cases;
  for (const std::int64_t n : lengths()) {
    const auto o = step_operands(cases.size(), n);
    Case c;
    c.name = name_of(*o);
    c.run = [o](Device& device) {
      const View param = device.put_master(o->param, {o->count});
      const View momentum = device.put_master(o->first_moment, {o->count});
      const View compute_weights = o->with_compute_weights ? device.put(o->gradient, {o->count}) : View();
      device.run(LionStep{.param = param,
                          .momentum = momentum,
                          .gradient = device.put_master(o->gradient, {o->count}),
                          .spans = o->spans,
                          .beta1 = o->beta1,
                          .beta2 = o->beta2,
                          .step = record_of(o->step),
                          .compute_weights = compute_weights});
      std::vector<Output> outputs{{"param", Device::get(param), Kind::master},
                                  {"momentum", Device::get(momentum), Kind::master}};
      if (o->with_compute_weights) outputs.push_back({"compute_weights", Device::get(compute_weights)});
      return outputs;
    };
    const auto spans = spans_by_element(*o);
    std::vector<Values> scales(2, Values(spans.size(), untouched));
    for (std::size_t e = 0; e < spans.size(); ++e) {
      if (spans[e] == nullptr) continue;
      const double g = std::fabs(o->gradient[e] * o->step.gradient_scale);
      const double p = std::fabs(o->param[e]);
      scales[0][e] = std::max(p, o->step.learning_rate * spans[e]->rate_factor * (1 + spans[e]->weight_decay * p));
      scales[1][e] = o->beta2 * std::fabs(o->first_moment[e]) + (1 - o->beta2) * g;
    }
    if (o->with_compute_weights) scales.push_back(scales[0]);
    c.scales = scales;
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> ademamix_cases() {
  std::vector<Case> cases;
  for (const std::int64_t n : lengths()) {
    const auto o = step_operands(cases.size(), n);
    Case c;
    c.name = name_of(*o);
    c.run = [o](Device& device) {
      const View param = device.put_master(o->param, {o->count});
      const View first = device.put_master(o->first_moment, {o->count});
      const View slow = device.put_master(o->slow_moment, {o->count});
      const View second = device.put_master(o->second_moment, {o->count});
      const View compute_weights = o->with_compute_weights ? device.put(o->gradient, {o->count}) : View();
      device.run(AdemamixStep{.param = param,
                              .first_moment = first,
                              .slow_moment = slow,
                              .second_moment = second,
                              .gradient = device.put_master(o->gradient, {o->count}),
                              .spans = o->spans,
                              .beta1 = o->beta1,
                              .beta2 = o->beta2,
                              .epsilon = o->epsilon,
                              .step = record_of(o->step),
                              .compute_weights = compute_weights});
      std::vector<Output> outputs{{"param", Device::get(param), Kind::master},
                                  {"first_moment", Device::get(first), Kind::master},
                                  {"slow_moment", Device::get(slow), Kind::master},
                                  {"second_moment", Device::get(second), Kind::master}};
      if (o->with_compute_weights) outputs.push_back({"compute_weights", Device::get(compute_weights)});
      return outputs;
    };
    const auto spans = spans_by_element(*o);
    std::vector<Values> scales(4, Values(spans.size(), untouched));
    for (std::size_t e = 0; e < spans.size(); ++e) {
      if (spans[e] == nullptr) continue;
      const double g = std::fabs(o->gradient[e] * o->step.gradient_scale);
      const double m = o->beta1 * std::fabs(o->first_moment[e]) + (1 - o->beta1) * g;
      const double s = o->step.slow_beta * std::fabs(o->slow_moment[e]) + (1 - o->step.slow_beta) * g;
      const double v = o->beta2 * o->second_moment[e] + (1 - o->beta2) * g * g;
      const double direction = (m / o->step.bias_correction1 + o->step.slow_weight * s) /
                               (std::sqrt(v / o->step.bias_correction2) + o->epsilon);
      const double p = std::fabs(o->param[e]);
      scales[0][e] =
          std::max(p, o->step.learning_rate * spans[e]->rate_factor * (direction + spans[e]->weight_decay * p));
      scales[1][e] = m;
      scales[2][e] = s;
      scales[3][e] = v;
    }
    if (o->with_compute_weights) scales.push_back(scales[0]);
    c.scales = scales;
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> adam_direction_cases() {
  std::vector<Case> cases;
  for (const std::int64_t n : lengths()) {
    const auto o = step_operands(cases.size(), n);
    Case c;
    c.name = name_of(*o);
    c.run = [o](Device& device) {
      const View gradient = device.put_master(o->gradient, {o->count});
      const View first = device.put_master(o->first_moment, {o->count});
      const View second = device.put_master(o->second_moment, {o->count});
      device.run(AdamDirection{.param = device.put_master(o->param, {o->count}),
                               .gradient = gradient,
                               .first_moment = first,
                               .second_moment = second,
                               .spans = o->spans,
                               .beta1 = o->beta1,
                               .beta2 = o->beta2,
                               .epsilon = o->epsilon,
                               .step = record_of(o->step)});
      return std::vector<Output>{{"gradient", Device::get(gradient), Kind::master},
                                 {"first_moment", Device::get(first), Kind::master},
                                 {"second_moment", Device::get(second), Kind::master}};
    };
    const auto spans = spans_by_element(*o);
    std::vector<Values> scales(3, Values(spans.size(), untouched));
    for (std::size_t e = 0; e < spans.size(); ++e) {
      if (spans[e] == nullptr) continue;
      const double g = std::fabs(o->gradient[e] * o->step.gradient_scale);
      const double m = o->beta1 * std::fabs(o->first_moment[e]) + (1 - o->beta1) * g;
      const double v = o->beta2 * o->second_moment[e] + (1 - o->beta2) * g * g;
      scales[0][e] = m / o->step.bias_correction1 / (std::sqrt(v / o->step.bias_correction2) + o->epsilon) +
                     spans[e]->weight_decay * std::fabs(o->param[e]);
      scales[1][e] = m;
      scales[2][e] = v;
    }
    c.scales = scales;
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> momentum_direction_cases() {
  std::vector<Case> cases;
  for (const std::int64_t n : lengths()) {
    const auto o = step_operands(cases.size(), n);
    const bool nesterov = cases.size() % 2 == 0;
    Case c;
    c.name = name_of(*o) + (nesterov ? " nesterov" : "");
    c.run = [o, nesterov](Device& device) {
      const View gradient = device.put_master(o->gradient, {o->count});
      const View momentum = device.put_master(o->first_moment, {o->count});
      device.run(MomentumDirection{.gradient = gradient,
                                   .momentum = momentum,
                                   .spans = o->spans,
                                   .beta = o->beta1,
                                   .nesterov = nesterov,
                                   .step = record_of(o->step)});
      return std::vector<Output>{{"gradient", Device::get(gradient), Kind::master},
                                 {"momentum", Device::get(momentum), Kind::master}};
    };
    const auto spans = spans_by_element(*o);
    std::vector<Values> scales(2, Values(spans.size(), untouched));
    for (std::size_t e = 0; e < spans.size(); ++e) {
      if (spans[e] == nullptr) continue;
      const double g = std::fabs(o->gradient[e] * o->step.gradient_scale);
      scales[1][e] = o->beta1 * std::fabs(o->first_moment[e]) + (1 - o->beta1) * g;
      scales[0][e] = scales[1][e] + (nesterov ? g : 0.0);
    }
    c.scales = scales;
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> rms_direction_cases() {
  std::vector<Case> cases;
  for (const std::int64_t n : lengths()) {
    const auto o = step_operands(cases.size(), n);
    const double weight = cases.size() % 4 == 2 ? 1.0 : 0.3;
    const double smallest = cases.size() % 2 == 1 ? 0.5 : 1e-7;
    Case c;
    c.name = name_of(*o);
    c.run = [o, weight, smallest](Device& device) {
      const View gradient = device.put_master(o->gradient, {o->count});
      const View second = device.put_master(o->second_moment, {o->count});
      device.run(RmsDirection{.gradient = gradient,
                              .second_moment = second,
                              .spans = o->spans,
                              .weight = weight,
                              .smallest = smallest,
                              .step = record_of(o->step)});
      return std::vector<Output>{{"gradient", Device::get(gradient), Kind::master},
                                 {"second_moment", Device::get(second), Kind::master}};
    };
    const auto spans = spans_by_element(*o);
    std::vector<Values> scales(2, Values(spans.size(), untouched));
    for (std::size_t e = 0; e < spans.size(); ++e) {
      if (spans[e] == nullptr) continue;
      const double g = std::fabs(o->gradient[e] * o->step.gradient_scale);
      scales[1][e] = (1 - weight) * o->second_moment[e] + weight * g * g;
      scales[0][e] = g / std::max(std::sqrt(scales[1][e]), smallest);
    }
    c.scales = scales;
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> scale_spans_cases() {
  std::vector<Case> cases;
  for (const std::int64_t n : lengths()) {
    const auto o = step_operands(cases.size(), n);
    Case c;
    c.name = name_of(*o);
    c.run = [o](Device& device) {
      const View values = device.put_master(o->gradient, {o->count});
      device.run(ScaleSpans{.values = values, .spans = o->spans});
      return std::vector<Output>{{"values", Device::get(values), Kind::master}};
    };
    StepOperands scaled = *o;
    scaled.step.skip = 0.0;  // it reads no step
    const auto spans = spans_by_element(scaled);
    Values scale(spans.size(), untouched);
    for (std::size_t e = 0; e < spans.size(); ++e)
      if (spans[e] != nullptr) scale[e] = std::fabs(o->gradient[e] * spans[e]->rate_factor);
    c.scales = {scale};
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> average_cases() {
  std::vector<Case> cases;
  for (const std::int64_t n : lengths()) {
    const std::string key = "average" + std::to_string(cases.size());
    const Values average = normal(key + "average", n);
    const Values param = normal(key + "param", n);
    const double decay = cases.size() % 5 == 0 ? 0.0 : 0.875;
    Case c;
    c.name = std::to_string(n);
    c.run = [=](Device& device) {
      const View of = device.put_master(average, {n});
      device.run(AverageStep{.average = of, .param = device.put_master(param, {n}), .decay = decay});
      return std::vector<Output>{{"average", Device::get(of), Kind::master}};
    };
    Values scale;
    for (std::size_t e = 0; e < average.size(); ++e) scale.push_back(std::hypot(average[e], param[e]));
    c.scales = {scale};
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> swap_cases() {
  std::vector<Case> cases;
  for (const std::int64_t n : lengths()) {
    const std::string key = "swap" + std::to_string(cases.size());
    const Values a = normal(key + "a", n);
    const Values b = normal(key + "b", n);
    Case c;
    c.name = std::to_string(n);
    c.run = [=](Device& device) {
      const View left = device.put_master(a, {n});
      const View right = device.put_master(b, {n});
      device.run(Swap{.a = left, .b = right});
      return std::vector<Output>{{"a", Device::get(left), Kind::master}, {"b", Device::get(right), Kind::master}};
    };
    const Values scale(a.size(), untouched);
    c.scales = {scale, scale};
    cases.push_back(c);
  }
  return cases;
}

}  // namespace scaletrain::parity
