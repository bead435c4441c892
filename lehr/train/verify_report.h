// The rows of a comparison with a reference: how far a tensor may be off, and how far it is.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lehr/base/torch.h"

namespace lehr::train {

/// One compared tensor.
struct VerifyRow {
  std::string name = {};
  double max_abs = 0;    ///< Largest |computed - expected|; infinite for another shape or a non-finite value.
  double max_rel = 0;    ///< Largest |computed - expected| / max(|expected|, 1e-6).
  double tolerance = 0;  ///< Allowed absolute difference.
  bool ok = false;
};

struct VerifyReport {
  std::vector<VerifyRow> rows;
  std::map<std::string, at::Tensor> computed;  ///< Every tensor that was computed, under the reference's name.
  bool ok() const;
};

/// The row for a tensor computed in `dtype`: allowed are `atol`, or what is usual for a tensor of that name
/// (docs/verify.md), and `rtol` relative to the expected value.
VerifyRow compare_tensors(
    const std::string& name,
    const at::Tensor& computed,
    const at::Tensor& expected,
    at::ScalarType dtype,
    std::optional<double> atol = {},
    std::optional<double> rtol = {});

/// The report as a table with a row a tensor, in the order in which they were computed.
std::string format_report(const VerifyReport& report);

}  // namespace lehr::train
