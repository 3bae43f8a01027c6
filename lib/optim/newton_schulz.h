// The orthogonal matrix that is nearest to a given one, about: of its singular value decomposition U·S·Vᵀ the product
// U·S'·Vᵀ, with what is left of S between 0.7 and 1.2. By five Newton-Schulz iterations of the quintic that Muon chose
// (Jordan et al. 2024, "Muon: an optimizer for hidden layers"):
//   X ← a·X + (b·A + c·A²)·X, A = X·Xᵀ, of a wide matrix; of a tall one the same of its transpose.
// An iteration is three operations: A, P = c·A·A + b·A, and P·X + a·X (of a tall one X·P + a·X, with A = Xᵀ·X). In the
// backend's compute type. The same bits for the same matrix, whoever computes them by the same kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"

namespace scaletrain {

inline constexpr int newton_schulz_steps = 5;
struct QuinticCoefficients {
  double a = 3.4445, b = -4.7750, c = 2.0315;
};
inline constexpr QuinticCoefficients newton_schulz_coefficients;

// Memory for matrices of up to these sizes.
struct NewtonSchulzExtent {
  std::int64_t elements = 0;  // of a matrix
  std::int64_t products = 0;  // elements of X·Xᵀ
  void include(std::int64_t rows, std::int64_t columns);
};

class NewtonSchulz {
 public:
  NewtonSchulz(Backend& backend, const NewtonSchulzExtent& extent);

  // What it allocates: pure, for the plan.
  static std::size_t bytes(const NewtonSchulzExtent& extent, DType compute);

  // Of its products, for one matrix.
  static double flops(std::int64_t rows, std::int64_t columns);

  // Two matrices [rows, columns] of the compute type. What is given stands in the first, of a norm of at most 1.
  View first(std::int64_t rows, std::int64_t columns) const { return matrix(0, rows, columns); }
  View second(std::int64_t rows, std::int64_t columns) const { return matrix(1, rows, columns); }
  // Issues the iterations. The result is one of both, and the other's memory is free.
  View orthogonalise(Stream& stream, std::int64_t rows, std::int64_t columns) const;

 private:
  View matrix(std::size_t which, std::int64_t rows, std::int64_t columns) const;
  View product(std::size_t which, std::int64_t size) const;

  Backend& backend_;
  NewtonSchulzExtent extent_;
  Buffer memory_;
};

}  // namespace scaletrain
