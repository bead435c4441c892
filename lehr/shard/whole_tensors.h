// Whole tensors on a mesh: owners gather shards, compute, and scatter the results.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/module.h"
#include "lehr/optim/whole_tensors.h"
#include "lehr/shard/owner_plan.h"

namespace lehr::shard {

/// Whole tensors of the parameters of this rank's pipeline stages. All ranks of a stage, replicas too, share the work.
class MeshWholeTensors final : public optim::WholeTensors {
 public:
  static constexpr int64_t kWaveElements = 16 << 20;
  static constexpr size_t kMostPlans = 16;  ///< Lists of names whose plans are kept.

  /// `parameters` are laid out. With `device`, tensors are sent from it and computed on it, else on their own. All
  /// ranks construct it in the same order, since it creates a process group. `context` must outlive it.
  MeshWholeTensors(
      mesh::DistributedContext& context,
      const std::vector<nn::NamedParameter>& parameters,
      std::optional<at::Device> device = {},
      int64_t wave_elements = kWaveElements);
  ~MeshWholeTensors() override;

  void apply(const std::vector<optim::TensorPart>& parts, const optim::WholeTensorWork& work) override;

  /// Returns the plan for these parameters, which is equal on all ranks of the stage. Valid until the next call.
  const OwnerPlan& plan(const std::vector<std::string>& names, const optim::WholeTensorWork& work);

 private:
  struct Prepared;  // the plan for one list of parameters, and this rank's messages
  class Exchange;   // one call of apply
  SpreadTensor spread(const nn::Parameter& parameter) const;
  Prepared& prepare(const std::vector<std::string>& names, const optim::WholeTensorWork& work);

  const mesh::DistributedContext& context_;
  const mesh::Group& group_;  // the ranks of the stage
  std::optional<at::Device> device_;
  int64_t wave_elements_;
  std::unordered_map<std::string, nn::ParameterPtr> parameters_;
  std::vector<std::unique_ptr<Prepared>> prepared_;
};

}  // namespace lehr::shard
