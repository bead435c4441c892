// Compares a model with values that another implementation wrote down: outputs, gradients, training trajectories.
//
// A reference is a folder with the model itself (config.json, safetensors) and
//   oracle.safetensors        inputs and expected outputs
//   grads.safetensors         expected gradients of `loss`, under the names of the checkpoint (optional)
//   final_params.safetensors  parameters after the `train_clip` steps (optional)
//   oracle.json               optimizer settings of the trajectories, under "adamw" (optional)
// docs/verify.md lists the tensors; example/reference/ has the script that makes such a folder.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/descriptor/model_args.h"

namespace lehr::train {

struct VerifyOptions {
  std::filesystem::path model;                          ///< Folder with config.json and weights.
  std::optional<std::filesystem::path> reference = {};  ///< The oracle.safetensors; without it, the one in `model`.
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  std::optional<double> atol = {};  ///< Replaces the tolerance of every row.
  std::optional<double> rtol = {};  ///< Allowed besides, relative to the expected value.
};

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

/// Runs everything that the reference has inputs for. Throws usage errors for missing or broken files.
VerifyReport verify(const VerifyOptions& options, const descriptor::ModelFamilies& families);

/// The report as a table with a row a tensor, worst first among those over their tolerance.
std::string format_report(const VerifyReport& report);

}  // namespace lehr::train
