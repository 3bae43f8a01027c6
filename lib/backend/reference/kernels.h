// The reference's loops, one per operation, over elements of type T (float or double). Every sum and every function is
// computed in double whatever T is: the float reference differs from the double one only by the rounding of what it
// stores. Descriptors have been checked by Backend::run; what only the values can tell (ids in range) is checked here.
#pragma once

#include "backend/operations.h"

namespace scaletrain::reference {

template <class T>
void compute(const LinearForward& op);
template <class T>
void compute(const LinearBackwardInput& op);
template <class T>
void compute(const LinearBackwardWeight& op);
template <class T>
void compute(const NormForward& op);
template <class T>
void compute(const NormBackwardInput& op);
template <class T>
void compute(const NormBackwardWeight& op);
template <class T>
void compute(const ActivationForward& op);
template <class T>
void compute(const ActivationBackward& op);
template <class T>
void compute(const RopeRotate& op);
template <class T>
void compute(const AttentionForward& op);
template <class T>
void compute(const AttentionBackward& op);
template <class T>
void compute(const EmbeddingForward& op);
template <class T>
void compute(const EmbeddingBackward& op);
template <class T>
void compute(const CrossEntropy& op);
template <class T>
void compute(const SoftmaxStatistics& op);
template <class T>
void compute(const CrossEntropyParts& op);
template <class T>
void compute(const Add& op);
template <class T>
void compute(const AdamWStep& op);
template <class T>
void compute(const SgdStep& op);

// These look at the types of their operands.
void compute(const Copy& op);
void compute(const Fill& op);
void compute(const SumOfSquares& op);

}  // namespace scaletrain::reference
