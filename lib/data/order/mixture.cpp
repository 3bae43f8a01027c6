#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "data/order/sampler.h"

namespace scaletrain {
namespace {

std::vector<MixPart> parts_of(const SourceShape& source, std::int64_t samples_per_block) {
  std::vector<MixPart> parts;
  for (const PartShape& part : source.parts)
    parts.push_back({.files = part.files,
                     .samples = checked_add(checked_mul(part.full_blocks, samples_per_block), part.last_samples)});
  return parts;
}

// Where parts joined, in windows: in a window that was begun those joined behind it.
std::vector<MixPart> in_windows(std::vector<MixPart> parts, std::int64_t pieces) {
  for (MixPart& part : parts) {
    part.samples /= pieces;
    part.position = ceil_div(part.position, pieces);
  }
  return parts;
}

void check_shape(const SourceShape& source) {
  if (!(source.weight > 0.0) || !std::isfinite(source.weight))
    throw UserError(fmt::format("{}: the weight {} is not a positive number", source.name, source.weight));
  if (source.epochs && !(*source.epochs > 0.0))
    throw UserError(fmt::format("{}: epochs: {} is not a positive number", source.name, *source.epochs));
}

}  // namespace

MixSource in_pieces(MixSource source, std::int64_t pieces, std::optional<double> epochs) {
  source.samples_per_epoch = checked_mul(source.samples_per_epoch, pieces);
  source.cap = cap_in_samples(epochs, source.samples_per_epoch);
  for (MixPart& part : source.parts) part.samples = checked_mul(part.samples, pieces);
  return source;
}

std::optional<std::int64_t> cap_in_samples(std::optional<double> epochs, std::int64_t samples_per_epoch) {
  if (!epochs) return std::nullopt;
  const double samples = std::round(*epochs * static_cast<double>(samples_per_epoch));
  if (!(samples < 0x1p62)) return std::nullopt;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(samples));
}

Mixture::Mixture(std::vector<SourceShape> sources, std::int64_t context, std::uint64_t seed, std::int64_t block_tokens)
    : sources_(std::move(sources)),
      samples_per_block_(scaletrain::samples_per_block(context, block_tokens)),
      seed_(seed) {
  SCALETRAIN_CHECK(!sources_.empty());
  Mix mix;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const SourceShape& source = sources_[i];
    names_.push_back(source.name);
    check_shape(source);
    const auto order = static_cast<std::int64_t>(i);
    const std::int64_t samples = make_order(i, order, {}).samples_per_epoch();
    if (samples == 0)
      throw UserError(fmt::format("{}: the source holds no sample; it needs at least two tokens", source.name));
    mix.sources.push_back({.identity = source.identity,
                           .order = order,
                           .samples_per_epoch = samples,
                           .weight = source.weight,
                           .cap = cap_in_samples(source.epochs, samples),
                           .taken = 0,
                           .parts = parts_of(source, samples_per_block_)});
  }
  enter(std::move(mix));
}

SourceOrder Mixture::make_order(std::size_t source, std::int64_t order, std::span<const MixPart> joined) const {
  return {sources_[source], joined, samples_per_block_, philox_key(seed_, fmt::format("data.train[{}]", order))};
}

void Mixture::enter(Mix mix, std::int64_t pieces) {
  SCALETRAIN_CHECK_EQ(mix.sources.size(), sources_.size());
  SCALETRAIN_CHECK_LE(1, pieces);
  pieces_ = pieces;
  orders_.clear();
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    orders_.push_back(make_order(i, mix.sources[i].order, in_windows(mix.sources[i].parts, pieces)));
    SCALETRAIN_CHECK_EQ(checked_mul(orders_.back().samples_per_epoch(), pieces), mix.sources[i].samples_per_epoch);
  }
  turns_.emplace(mix, names_);
  mix_ = std::move(mix);
}

SampleLocation Mixture::locate(std::int64_t sample) const {
  if (const auto end = num_samples(); end && sample >= *end) {
    throw UserError(
        fmt::format("the training data is used up: the epochs of data.train end before sample {}. Lower train.steps or "
                    "train.tokens, raise data.train[].epochs, or leave one source without a cap.",
                    sample));
  }
  const MixTurns::Turn turn = turns_->turn(sample);
  return locate(turn.source, turn.index);
}

SampleLocation Mixture::locate(std::int64_t source, std::int64_t index) const {
  SampleLocation out = orders_[static_cast<std::size_t>(source)].locate(index / pieces_);
  out.source = source;
  out.piece = index % pieces_;
  return out;
}

}  // namespace scaletrain
