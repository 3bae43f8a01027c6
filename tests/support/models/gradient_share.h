// This rank's share of the gradient's sum of squares, waited for.
#pragma once

#include "optim/gradient_norm.h"

namespace scaletrain {

inline double gradient_share(Backend& backend, Stream& stream, const ParamStore& store) {
  GradientSquares squares(backend, store);
  squares.issue(stream);
  stream.synchronize();
  return squares.share();
}

}  // namespace scaletrain
