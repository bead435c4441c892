// All-reduce of gradients over the ranks that hold the same shard of a parameter and used it on different data.
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

/// Sums each gradient, once per step, over the axes on which the parameter is replicated. Gradients are grouped into
/// buckets, with one all-reduce per bucket. The contents and the order of the buckets depend on the parameters only, so
/// they are the same on all ranks, whichever gradients a rank has.
class GradientSync {
 public:
  /// Parameters must be laid out on every axis of more than one rank; frozen ones are ignored. All ranks must construct
  /// it at the same point of the program, since it creates process groups. A bucket is closed when it has
  /// `bucket_bytes` or more. Gradients are summed on `device`, by default on their own device.
  GradientSync(
      mesh::DistributedContext& context,
      const std::vector<nn::NamedParameter>& parameters,
      int64_t bucket_bytes,
      std::optional<at::Device> device = {});
  ~GradientSync();

  /// States that the parameter's gradient is complete for this step. Buckets are sent in their order, each as soon as
  /// all its gradients are ready. The ranks of a group must call it in the same order.
  void ready(const nn::Parameter& parameter);

  /// Sends the remaining buckets and waits for all. Afterwards a parameter for which no rank had a gradient has none,
  /// and all others have one on every rank. `had_gradient` returns whether this rank had a gradient; the default is
  /// whether it is defined. All ranks that hold these parameters must call it, once per step.
  void finish(const std::function<bool(const nn::Parameter&)>& had_gradient = {});

  /// Drops all pending work, after a failure.
  void reset() noexcept;

 private:
  struct Bucket;
  void make_buckets();
  void send(Bucket& bucket);
  void agree(const std::vector<bool>& had);

  struct Member {
    nn::ParameterPtr parameter;
    const mesh::Group* group;  // over which gradients are summed
  };
  std::vector<Member> members_;           // reverse order of declaration, roughly that of backward
  const mesh::Group* holders_ = nullptr;  // all ranks that hold shards of these parameters
  int64_t bucket_bytes_;
  std::optional<at::Device> device_;
  std::vector<std::unique_ptr<Bucket>> buckets_;  // made when parameters have memory
  std::unordered_map<const nn::Parameter*, std::pair<Bucket*, size_t>> places_;
  size_t sent_ = 0;  // number of buckets that were sent
};

}  // namespace lehr::shard
