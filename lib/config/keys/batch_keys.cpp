// Rows of a batch that is auto, and of the noise of the gradient that it follows.
#include <optional>

#include "config/keys/key_rows.h"

namespace scaletrain {

using namespace key_rows;  // NOLINT(google-build-using-namespace)

const KeyTable<BatchAutoConfig>& batch_auto_table() {
  static const KeyTable<BatchAutoConfig> table = [] {
    KeyTable<BatchAutoConfig> out;
    out.push_back(
        row<BatchAutoConfig>({"min", "samples", "The batch of the first step, and the least.", with_notice, "required"},
                             at_least(2, kMaxBatch), FIELD(min)));
    out.push_back(row<BatchAutoConfig>(
        {"max", "samples", "The most; `min` doubled some times. Memory is planned for it.", with_notice, "required"},
        at_least(2, kMaxBatch), FIELD(max)));
    out.push_back(row<BatchAutoConfig>(
        {"every", "steps", "After so many steps at a time the batch is doubled, halved or left.", with_notice},
        at_least(1), FIELD(every)));
    return out;
  }();
  return table;
}

const KeyTable<GradientNoiseConfig>& gradient_noise_table() {
  static const KeyTable<GradientNoiseConfig> table = [] {
    KeyTable<GradientNoiseConfig> out;
    out.push_back(row<GradientNoiseConfig>(
        {"every", "steps", "Measure in every so many steps; such a step reduces gradients twice.", with_notice},
        at_least(1), FIELD(every)));
    out.push_back(row<GradientNoiseConfig>(
        {"decay", "", "What of earlier measurements stays in the averages at each: 0.95, of about the last 20.",
         with_notice},
        NumberCodec{0.0, 1.0, Bounds::open_above}, FIELD(decay)));
    return out;
  }();
  return table;
}

namespace key_rows {

// A number, or auto: two members, since the most that a batch may be is a number too.
Key<Config> global_batch_row() {
  const auto codec = optional(at_least(1, kMaxBatch), "auto");
  Key<Config> key;
  const auto write = [codec](const Config& config) {
    const TrainConfig& train = config.train;
    return codec.text(train.adapts_batch ? std::nullopt : std::optional(train.global_batch));
  };
  key.info = {"train.global_batch",
              codec.type(),
              "samples",
              write(Config()),
              "Samples per optimizer step; sizes that do not divide are padded. auto: by the gradient noise scale, "
              "within batch_auto.",
              with_notice};
  key.read = [codec](const YamlNode& node, const std::string& path, Config& config, ReadContext& context) {
    std::optional<std::int64_t> samples;
    if (node.kind == YamlNode::Kind::null) return context.refuse(node.place, path, "expected " + codec.type());
    const std::string problem = codec.parse(node, samples);
    if (!problem.empty()) return context.refuse(node.place, path, problem);
    config.train.adapts_batch = !samples;
    if (samples) config.train.global_batch = *samples;
  };
  key.write = write;
  return key;
}

// Its most is the batch that everything is planned for.
Key<Config> batch_auto_row() {
  Key<Config> key = section_row({"train.batch_auto", "", "Bounds of a batch that is auto.", with_notice},
                                batch_auto_table(), FIELD(train.batch_auto));
  key.read = [read = key.read](const YamlNode& node, const std::string& path, Config& config, ReadContext& context) {
    read(node, path, config, context);
    if (config.train.batch_auto && config.train.batch_auto->max > 0)
      config.train.global_batch = config.train.batch_auto->max;
  };
  return key;
}

}  // namespace key_rows

}  // namespace scaletrain
