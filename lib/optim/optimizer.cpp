#include "optim/optimizer.h"

#include "base/error.h"
#include "optim/optimizer_kinds.h"

namespace scaletrain {

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config) {
  switch (config.type) {
    case OptimizerKind::adamw:
      return make_adamw(config);
    case OptimizerKind::sgd:
      return make_sgd(config);
    case OptimizerKind::lion:
      return make_lion(config);
    case OptimizerKind::lamb:
      return make_lamb(config);
    case OptimizerKind::lars:
      return make_lars(config);
    case OptimizerKind::ademamix:
      return make_ademamix(config);
    case OptimizerKind::muon:
      return make_muon(config);
    case OptimizerKind::adafactor:
      return make_adafactor(config);
  }
  SCALETRAIN_CHECK(false);
}

}  // namespace scaletrain
