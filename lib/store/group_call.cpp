#include "store/group_call.h"

#include "base/error.h"

namespace scaletrain {

std::string_view to_text(CallPurpose purpose) {
  switch (purpose) {
    case CallPurpose::gradients:
      return "gradients";
    case CallPurpose::weights:
      return "weights";
    case CallPurpose::activations:
      return "activations";
    case CallPurpose::recomputed_activations:
      return "recomputed activations";
    case CallPurpose::activation_gradients:
      return "activation gradients";
    case CallPurpose::softmax_statistics:
      return "softmax statistics";
    case CallPurpose::directions:
      return "update directions";
    case CallPurpose::squares:
      return "squares by row and column";
    case CallPurpose::decisions:
      return "loss, norm, votes";
  }
  SCALETRAIN_CHECK(false);
}

}  // namespace scaletrain
