// Rules across the keys of how a run learns.
#include "config/keys/keys.h"
#include "config/rule_scope.h"

namespace scaletrain {

namespace {

class TrainingRules : private RuleScope {
 public:
  explicit TrainingRules(const RuleScope& scope) : RuleScope(scope) {}

  void run() {
    if (origin_ == Origin::user) check_lr_schedule();
    check_decay();
    check_weight_decays();
    check_batch_ramp();
    check_auto_batch();
    check_average();
    check_gradient_noise();
  }

 private:
  void check_lr_schedule() {
    LrScheduleConfig& schedule = config_.train.lr_schedule;
    const LrScheduleConfig fallback;
    const std::string section = "train.lr_schedule.";
    const std::string type_key = section + "type";
    if (!are_fine({type_key})) return;
    if (schedule.type == LrScheduleKind::constant)
      refuse_idle(section + "min_ratio", schedule.min_ratio, fallback.min_ratio, {type_key},
                  "it is only for a train.lr_schedule.type that falls; this one is constant");
    const auto only_for = [&](LrScheduleKind kind) {
      return fmt::format("it is only for {} {}; this one is {}", type_key, to_text(kind), to_text(schedule.type));
    };
    if (schedule.type != LrScheduleKind::wsd) {
      const std::string reason = only_for(LrScheduleKind::wsd);
      refuse_idle(section + "decay_steps", schedule.decay_steps, fallback.decay_steps, {type_key}, reason);
      refuse_idle(section + "decay_share", schedule.decay_share, fallback.decay_share, {type_key}, reason);
      refuse_idle(section + "decay_shape", schedule.decay_shape, fallback.decay_shape, {type_key}, reason);
    } else if (schedule.decay_steps && are_fine({section + "decay_steps"})) {
      refuse_idle(section + "decay_share", schedule.decay_share, fallback.decay_share, {section + "decay_steps"},
                  "decay_steps says how long the decay is");
    }
    if (schedule.type != LrScheduleKind::cosine_restarts) {
      const std::string reason = only_for(LrScheduleKind::cosine_restarts);
      refuse_idle(section + "restart_steps", schedule.restart_steps, fallback.restart_steps, {type_key}, reason);
      refuse_idle(section + "restart_factor", schedule.restart_factor, fallback.restart_factor, {type_key}, reason);
    }
  }

  void check_weight_decays() {
    const std::string decay = "train.optimizer.weight_decay";
    const std::string type = "train.optimizer.type";
    if (config_.train.optimizer.weight_decay > 0 || !are_fine({decay, type})) return;
    const bool is_default = config_.train.optimizer.type == OptimizerKind::adafactor && !is_given(decay);
    refuse_idle("finetune.weight_decays", config_.finetune.weight_decays, FinetuneConfig().weight_decays, {decay, type},
                fmt::format("what its factors multiply, {}, is 0{}", decay,
                            is_default ? ", as with adafactor unless it is given" : ""));
  }

  // Of a run in tokens see check_warmup in train/run_length.h.
  void check_decay() {
    const TrainConfig& train = config_.train;
    const auto& decay = train.lr_schedule.decay_steps;
    if (!train.steps || !decay || train.lr_schedule.type != LrScheduleKind::wsd) return;
    if (!are_fine(
            {"train.lr_schedule.decay_steps", "train.lr_schedule.warmup", "train.lr_schedule.type", "train.steps"}))
      return;
    const std::int64_t left = *train.steps - train.lr_schedule.warmup.value_or(0);
    if (*decay > left && left >= 0)
      refuse({"train.lr_schedule.decay_steps", "train.lr_schedule.warmup", "train.steps"},
             fmt::format("a decay of {} steps is longer than the {} that the run has behind its warm-up; lower "
                         "decay_steps, give decay_share or raise steps",
                         *decay, left));
  }

  void check_batch_ramp() {
    const TrainConfig& train = config_.train;
    const std::string section = "train.batch_ramp";
    if (!train.batch_ramp || !are_fine({section, section + ".from", section + ".by", section + ".steps",
                                        "train.global_batch", "train.epochs"}))
      return;
    const BatchRampConfig& ramp = *train.batch_ramp;
    const std::int64_t growth = train.global_batch - ramp.from;
    if (train.epochs) {
      refuse({section, "train.epochs"},
             "the length of a run whose batch grows is not counted in epochs yet; give train.steps or train.tokens");
    } else if (growth < 1) {
      refuse({section + ".from", section, "train.global_batch"},
             fmt::format("{} is no smaller than train.global_batch {}, to which the batch is to grow", ramp.from,
                         train.global_batch));
    } else if (growth % ramp.by != 0) {
      refuse({section + ".by", section, "train.global_batch"},
             fmt::format("{} does not divide {}, which is train.global_batch {} less `from` {}", ramp.by, growth,
                         train.global_batch, ramp.from));
    } else if (growth / ramp.by > ramp.steps) {
      refuse({section + ".steps", section},
             fmt::format("{} steps are fewer than the {} times that the batch is to grow; raise steps, or `by`",
                         ramp.steps, growth / ramp.by));
    }
  }

  void check_auto_batch() {
    const TrainConfig& train = config_.train;
    const std::string key = "train.global_batch";
    const std::string section = "train.batch_auto";
    if (!are_fine({key, section, section + ".min", section + ".max", section + ".every"})) return;
    if (!train.adapts_batch) {
      if (train.batch_auto) refuse({section, key}, "it bounds train.global_batch: auto; write that, or remove the key");
      return;
    }
    if (!train.batch_auto)
      return refuse({key, section},
                    "auto needs bounds: add train.batch_auto: {min: 64, max: 1024}, or give a number of samples");
    check_sizes(*train.batch_auto);
    check_what_adapts();
  }

  void check_sizes(const BatchAutoConfig& bounds) {
    const std::string section = "train.batch_auto";
    std::int64_t largest = bounds.min;
    while (largest <= bounds.max / 2) largest *= 2;
    if (bounds.max < bounds.min) {
      refuse({section + ".max", section}, fmt::format("{} is below `min` {}", bounds.max, bounds.min));
    } else if (largest != bounds.max) {
      refuse({section + ".max", section}, fmt::format("{} is not `min` {} doubled some times; use {} or {}", bounds.max,
                                                      bounds.min, largest, 2 * largest));
    }
  }

  void check_what_adapts() {
    const TrainConfig& train = config_.train;
    const std::string key = "train.global_batch";
    if (!train.phases.empty()) return;  // which refuse it
    if (!config_.log.gradient_noise && are_fine({"log.gradient_noise"}))
      refuse({key, "log.gradient_noise"},
             "auto follows the gradient noise scale, which is not measured: add log.gradient_noise: {}");
    if (train.batch_ramp && are_fine({"train.batch_ramp"}))
      refuse({"train.batch_ramp", key}, "a batch that is auto has no ramp; remove one of the keys");
    if (!train.tokens && train.has_one_length() && are_fine({train.length_key()}))
      refuse({train.length_key(), key},
             "how many steps a run has whose batch is auto is not known before; give train.tokens in its place");
    if (train.optimizer.type == OptimizerKind::ademamix && !train.optimizer.slow_warmup &&
        are_fine({"train.optimizer.type", "train.optimizer.slow_warmup"}))
      refuse({"train.optimizer.slow_warmup", "train.optimizer.type", key},
             "auto is the run's steps, which are not known before where train.global_batch is auto; give a number");
  }

  void check_gradient_noise() {
    if (!config_.log.gradient_noise || !are_fine({"log.gradient_noise", "train.global_batch"})) return;
    if (config_.train.global_batch < 2)
      refuse({"log.gradient_noise", "train.global_batch"},
             "it is measured from the two halves of a batch, and train.global_batch: 1 has none; raise that, or remove "
             "the key");
  }

  void check_average() {
    if (config_.evaluate.ema && !config_.train.ema && are_fine({"evaluate.ema", "train.ema"}))
      refuse({"evaluate.ema", "train.ema"},
             "there is no average to evaluate: add train.ema: {decay: 0.999}, or remove the key");
  }
};

}  // namespace

void check_training_rules(const RuleScope& scope) {
  TrainingRules(scope).run();
}

}  // namespace scaletrain
