// Comparison of a model with another implementation's reference values: outputs, gradients, training trajectories.
//
// A reference is a folder with the model itself (config.json, safetensors) and
//   oracle.safetensors        inputs and expected outputs
//   grads.safetensors         expected gradients of `loss`, under the names of the checkpoint (optional)
//   final_params.safetensors  parameters after the `train_clip` steps (optional)
//   oracle.json               optimizer settings of the trajectories, under "adamw" (optional)
// docs/verify.md lists the tensors; example/reference/ has the script that creates such a folder.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/verify/comparison.h"

namespace lehr::train {
struct ParallelismConfig;
class Ranks;
class TrainSpecs;
}  // namespace lehr::train

namespace lehr::verify {

/// Runs every comparison for which the reference has inputs. Throws a usage error for missing or broken files.
VerifyReport verify_folder(const VerifyOptions& options, const descriptor::ModelFamilies& families);

/// The same on one device. On several, the model is sharded by the degrees of `parallelism`, and its outputs and
/// gradients are compared. Training steps are not, nor are gradients with pipeline stages, nor tensors that
/// compare_outputs leaves out. All ranks must call and get the same report. Throws a usage error for replicas, and for
/// ranks that have only parts of sequences.
VerifyReport verify_on_ranks(
    const VerifyOptions& options,
    const train::TrainSpecs& specs,
    const train::ParallelismConfig& parallelism,
    const train::Ranks& ranks);

}  // namespace lehr::verify
