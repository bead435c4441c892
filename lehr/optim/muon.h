// Muon: momentum with orthogonalized steps, for the hidden matrices of a network.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lehr/optim/adamw.h"
#include "lehr/optim/whole_tensors.h"

namespace lehr::optim {

/// Returns an orthogonal matrix near the polar factor of each matrix (..., rows, columns): `steps` quintic
/// Newton-Schulz iterations with Keller Jordan's coefficients (3.4445, -4.7750, 2.0315), which bring singular values
/// quickly to between about 0.7 and 1.2 and no further. Computed in float64 for float64, else in float32, which is also
/// the dtype of the result.
at::Tensor orthogonalize(const at::Tensor& matrices, int64_t steps);

/// Muon (Keller Jordan, https://kellerjordan.github.io/posts/muon; torch.optim.Muon) for hidden matrices, AdamW for all
/// other parameters. Hidden matrices are parameters of two dimensions, or three (one matrix per expert), whose names do
/// not
/// match optimizer.muon_exclude. Their state is momentum_buffer, in the dtype of the parameter. Both parts take
/// learning rate and weight decay from the same groups.
class Muon final : public Optimizer {
 public:
  /// Throws a usage error as PerParameterOptimizer does, and if no hidden matrix is left. `whole_tensors` gathers
  /// matrices of which this rank holds shards.
  Muon(
      const OptimizerConfig& config,
      const std::vector<ParameterInfo>& parameters,
      std::shared_ptr<WholeTensors> whole_tensors = {});
  ~Muon() override;

  void allocate(const std::vector<NamedParameter>& parameters) override;
  /// Without `whole_tensors` a shard must consist of whole matrices: experts may be sharded, rows and columns may not.
  void step(const std::vector<NamedParameter>& parameters, const StepOptions& options = {}) override;
  bool takes_found_inf() const override { return true; }
  std::vector<std::pair<std::string, at::Tensor>> state() const override;

 private:
  class Matrices;
  /// Splits `parameters` into hidden matrices and all others.
  std::pair<std::vector<NamedParameter>, std::vector<NamedParameter>> split(
      const std::vector<NamedParameter>& parameters) const;

  std::unique_ptr<Matrices> matrices_;
  AdamW rest_;
};

}  // namespace lehr::optim
