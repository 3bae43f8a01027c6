// Stands in for a header that Gloo's own installed headers (transport/tcp/pair.h, context.h) include and Debian's
// package forgets. Only what they need to be read: the one template that is a member of their classes, of the size that
// the library was built with, and the names of the others. Never used: adopted_pair.cpp touches none of it.
#pragma once

#include <memory>

namespace gloo {

template <typename T>
class WeakNonOwningPtr final {
 private:
  std::weak_ptr<T> pointer_;
};

template <typename T>
class NonOwningPtr;
template <typename T>
class ShareableNonOwningPtr;

}  // namespace gloo
