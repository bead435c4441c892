#include "lehr/plan/one_device.h"

#include <algorithm>

#include "lehr/plan/measure_stage.h"

namespace lehr::plan {

int64_t peak_on_one_device(
    const train::TrainConfig& config, const train::TrainSpec& spec, const descriptor::ModelArgs& args) {
  const StageMeasurement stage = measure_stage(config, spec, args);
  const int64_t rows = config.training.local_batch_size;
  const int64_t batches = std::max<int64_t>(1, (config.training.rows_per_step() + rows - 1) / rows);
  const int64_t without_gradients = stage.at_rest() - stage.gradient_bytes + batches * stage.batch_bytes;
  if (batches == 1) {
    return without_gradients + std::max(stage.forward.peak, stage.only_backward_peak);
  }
  const int64_t later = std::max({stage.forward.peak, stage.backward.peak, stage.last_backward_peak});
  return without_gradients + std::max(stage.first_backward_peak, stage.gradient_bytes + later);
}

}  // namespace lehr::plan
