// Local distillation (blockwise local distillation of Puzzle, https://arxiv.org/abs/2411.19146): each variant is
// trained to reproduce its layer of the teacher.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "lehr/config/fields.h"
#include "lehr/search/library.h"
#include "lehr/train/batches.h"
#include "lehr/train/task.h"

namespace lehr::search {

/// The section [local_distillation].
struct LocalDistillationConfig {
  int64_t steps = 200;
  double lr = 1e-3;
  double weight_decay = 0;
  double max_norm = 1;
  int64_t save_steps = 100;
  void fields(FieldVisitor& v);
};

/// The progress of local distillation after a step.
struct LocalDistillationProgress {
  int64_t step = 0;
  int64_t steps = 0;
  double loss = 0;  ///< Mean over the variants, of this step.
};

/// The normalized error of a variant on the first and on the last batch of its training, before the update.
struct LocalDistillationResult {
  Place place;
  double first_loss = 0;
  double last_loss = 0;
};

/// The training batches from this step on.
using BatchesFrom = std::function<std::unique_ptr<train::BatchStream>(int64_t first_step)>;

/// Trains these variants, in one pass over as many batches as steps, and sets them in the library.
///
/// Variant c of a layer whose teacher maps x to o_p minimizes |o_c - o_p|^2 / |o_p|^2 over the tokens of a batch, where
/// x is the teacher's own input and the other sub-block of the layer is the teacher's (the decoupled form). Each
/// variant has an AdamW of its own, a cosine schedule, and its gradient's norm is clipped. No gradient passes between
/// layers, so a variant gets the same bits whichever others are trained with it. Memory: the teacher, and for each
/// variant its layer's weights, and gradients and moments of the sub-block. Throws a runtime error for a loss that is
/// not finite.
///
/// If the path `saves` is not empty, every variant in training is saved in this folder after each save_steps steps, and
/// training continues from its saves, with the same bits. They must be of the same settings.
std::vector<LocalDistillationResult> distil_locally(
    Library& library,
    const std::vector<Place>& places,
    const train::TrainTask& task,
    const BatchesFrom& batches,
    const LocalDistillationConfig& config,
    const std::filesystem::path& saves,
    const std::function<void(const LocalDistillationProgress&)>& progress);

/// The variants that distil_locally can train: those with weights of their own.
std::vector<Place> trainable_variants(const SearchSpace& space);

}  // namespace lehr::search
