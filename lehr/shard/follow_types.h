// Abstract interpretation of a model's forward on meta tensors, which tracks the type of every tensor. ATen's operators
// are intercepted before autograd; Lehr's own state their placements (meter/operator_watch.h).
#pragma once

#include <memory>

#include "lehr/shard/type_checker.h"

namespace lehr::shard {

/// Lets a checker intercept all operators of this thread while it lives.
class FollowTypes {
 public:
  explicit FollowTypes(TypeChecker& checker);
  ~FollowTypes();
  FollowTypes(const FollowTypes&) = delete;
  FollowTypes& operator=(const FollowTypes&) = delete;

 private:
  struct Guards;
  std::unique_ptr<Guards> guards_;
};

}  // namespace lehr::shard
