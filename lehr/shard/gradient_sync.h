// Sums gradients over the ranks that hold the same box of a parameter and used it on different data.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/module.h"

namespace lehr::shard {

/// Once a step: sums each gradient over the axes on which the parameter's layout says replicate. Gradients travel in
/// buckets, one all_reduce each. Which parameters a bucket has, and the order of the buckets, follow from the
/// parameters alone and are the same on all ranks, whoever has which gradients.
class GradientSync {
 public:
  /// The parameters are laid out on every axis of more than one rank; those that are frozen have no part. All ranks
  /// construct it at the same place of the program: it asks for groups. A bucket is closed when it has `bucket_bytes`
  /// or more. Gradients are summed on `device`, or where they are.
  GradientSync(
      mesh::DistributedContext& context,
      const std::vector<nn::NamedParameter>& parameters,
      int64_t bucket_bytes,
      std::optional<at::Device> device = {});
  ~GradientSync();

  /// Says that this step adds nothing more to the parameter's gradient. Buckets are sent in their order as soon as all
  /// of a bucket is ready. The ranks of a group must call it in the same order.
  void ready(const nn::Parameter& parameter);

  /// Sends what is left and waits for all. Afterwards a parameter for which no rank had a gradient has none, and all
  /// others have one on every rank. `had_gradient` tells which ones this rank had; by default those that are defined.
  /// All ranks that hold these parameters must call it, once a step.
  void finish(const std::function<bool(const nn::Parameter&)>& had_gradient = {});

  /// Forgets what is under way, after a failure.
  void reset() noexcept;

 private:
  struct Bucket;
  void make_buckets();
  void send(Bucket& bucket);
  void agree(const std::vector<bool>& had);

  struct Member {
    nn::ParameterPtr parameter;
    const mesh::Group* group;  // where gradients are partial
  };
  std::vector<Member> members_;           // in the order of backward
  const mesh::Group* holders_ = nullptr;  // all ranks that hold parts of these parameters
  int64_t bucket_bytes_;
  std::optional<at::Device> device_;
  std::vector<std::unique_ptr<Bucket>> buckets_;  // once memory is there
  std::unordered_map<const nn::Parameter*, std::pair<Bucket*, size_t>> places_;
  size_t sent_ = 0;  // buckets
};

}  // namespace lehr::shard
