// Muon: momentum whose steps are made orthogonal, for the matrices inside a network.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lehr/optim/adamw.h"

namespace lehr::optim {

/// An orthogonal matrix near the polar factor of each matrix (..., rows, columns): `steps` iterations of Newton and
/// Schulz's method, quintic, with Keller Jordan's coefficients (3.4445, -4.7750, 2.0315), which bring singular values
/// quickly to between about 0.7 and 1.2 and no further. Computed in float64 for float64, else in float32; of that type.
at::Tensor orthogonalize(const at::Tensor& matrices, int64_t steps);

/// Muon (Keller Jordan, kellerjordan.github.io/posts/muon; torch.optim.Muon) for hidden matrices, AdamW for the rest.
/// Its part are parameters of two dimensions, and of three, which are a matrix an expert, whose name
/// optimizer.muon_exclude is not found in. Their state: momentum_buffer, in the dtype of the parameter. Both parts take
/// their learning rate and decay from the same groups.
class Muon final : public Optimizer {
 public:
  /// Throws a usage error as PerParameterOptimizer does, and where no matrix is left.
  Muon(const OptimizerConfig& config, const std::vector<ParameterInfo>& parameters);
  ~Muon() override;

  void allocate(const std::vector<NamedParameter>& parameters) override;
  /// A shard must hold whole matrices: experts may be spread, rows and columns may not.
  void step(const std::vector<NamedParameter>& parameters, const StepOptions& options = {}) override;
  std::vector<std::pair<std::string, at::Tensor>> state() const override;

 private:
  class Matrices;
  /// Those of `parameters` that are matrices, and the others.
  std::pair<std::vector<NamedParameter>, std::vector<NamedParameter>> split(
      const std::vector<NamedParameter>& parameters) const;

  std::unique_ptr<Matrices> matrices_;
  AdamW rest_;
};

}  // namespace lehr::optim
