// The rows of a comparison with a reference: tolerances and errors per tensor.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lehr/base/torch.h"

namespace lehr::verify {

/// One compared tensor.
struct VerifyRow {
  std::string name = {};
  double max_abs = 0;    ///< Largest |computed - expected|; infinite if shapes differ or a value is not finite.
  double max_rel = 0;    ///< Largest |computed - expected| / max(|expected|, 1e-6).
  double tolerance = 0;  ///< Allowed absolute difference.
  bool ok = false;
};

/// The result of a verification.
struct VerifyReport {
  std::vector<VerifyRow> rows;
  std::map<std::string, at::Tensor> computed;  ///< Every computed tensor, under the reference's name.
  std::vector<std::string> left_out = {};      ///< Tensors of the reference that nothing was compared with.
  bool ok() const;
};

/// Compares a tensor that was computed in `dtype`: the tolerance is `atol`, or the default for a tensor of that name
/// (docs/verify.md), plus `rtol` relative to the expected value.
VerifyRow compare_tensors(
    const std::string& name,
    const at::Tensor& computed,
    const at::Tensor& expected,
    at::ScalarType dtype,
    std::optional<double> atol = {},
    std::optional<double> rtol = {});

/// Formats the report as a table with one row per tensor, in the order of computation.
std::string format_report(const VerifyReport& report);

}  // namespace lehr::verify
