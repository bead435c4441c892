// Comparison of a model with another implementation's reference values: outputs, gradients, training trajectories.
//
// A reference is a folder with the model itself (config.json, safetensors) and
//   oracle.safetensors        inputs and expected outputs
//   grads.safetensors         expected gradients of `loss`, under the names of the checkpoint (optional)
//   final_params.safetensors  parameters after the `train_clip` steps (optional)
//   oracle.json               optimizer settings of the trajectories, under "adamw" (optional)
// docs/verify.md lists the tensors; example/reference/ has the script that creates such a folder.
#pragma once

#include <filesystem>
#include <optional>

#include "lehr/base/torch.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/train/verify_report.h"

namespace lehr::train {

struct VerifyOptions {
  std::filesystem::path model;                          ///< Folder with config.json and weights.
  std::optional<std::filesystem::path> reference = {};  ///< Path of oracle.safetensors; default: the one in `model`.
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  std::optional<double> atol = {};  ///< Replaces the absolute tolerance of every row.
  std::optional<double> rtol = {};  ///< Additional tolerance relative to the expected value.
};

/// Runs every comparison for which the reference has inputs. Throws a usage error for missing or broken files.
VerifyReport verify(const VerifyOptions& options, const descriptor::ModelFamilies& families);

}  // namespace lehr::train
