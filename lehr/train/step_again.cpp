// A micro-batch that runs for its bits only (reliability.recompute_every_n_steps).
#include <algorithm>
#include <memory>

#include "lehr/base/error.h"
#include "lehr/shard/replica_hashes.h"
#include "lehr/train/pipeline.h"
#include "lehr/train/step.h"

namespace lehr::train {

MicrobatchBits TrainStep::bits_of_microbatch(const Batch& batch, int64_t first_row, int64_t step) {
  invariant(!graph_, "train: a CUDA graph has no single micro-batch");
  const Batch rows = rows_of(batch, 0, std::min(options_.local_batch_size, batch.begin()->second.size(0)));
  const int64_t valid = std::max<int64_t>(count_work_of_all(rows).valid, 1);
  // Clears gradients and pending work of FSDP, even after an exception.
  const std::unique_ptr<TrainStep, StepGradients::Clear> clear(this);
  begin_forward();
  StageStep one = stage_step(rows, first_row, step, valid);
  options_.pipeline != nullptr ? options_.pipeline->run_one(device_, one) : run_microbatches(one);
  const at::Tensor& loss = one.sums.loss;  // undefined on ranks without the last stage of a pipeline
  const at::Tensor none = at::zeros({}, at::TensorOptions(device_).dtype(at::kLong));
  at::Tensor of_loss = loss.defined() ? shard::hash_of_bits(loss) : none;
  for (const auto& [name, metric] : one.sums.metrics) {  // the losses of multi-token prediction are in no other one
    of_loss = of_loss * 31 + shard::hash_of_bits(metric).to(of_loss.device());
  }
  std::vector<at::Tensor> hashes{of_loss};
  MicrobatchBits bits;
  std::vector<std::string> names;
  for (const auto& [name, parameter] : parameters_) {
    if (const at::Tensor gradient = parameter->value().grad(); gradient.defined()) {
      names.push_back(name);
      hashes.push_back(shard::hash_of_bits(gradient).to(hashes.front().device()));
    }
  }
  const at::Tensor numbers = at::stack(hashes).cpu();
  const auto* const values = numbers.const_data_ptr<int64_t>();
  bits.loss = values[0];
  for (size_t i = 0; i < names.size(); ++i) {
    bits.gradients[names[i]] = values[i + 1];
  }
  return bits;
}

}  // namespace lehr::train
