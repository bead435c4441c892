// Data of a run that are given as batches.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lehr/train/batches.h"
#include "lehr/train/train_spec.h"

namespace lehr::train::testing {

/// Returns the given batches, one per step.
class GivenBatches : public BatchStream {
 public:
  explicit GivenBatches(std::vector<Batch> steps) : steps_(std::move(steps)) {}
  std::optional<Batch> next() override { return steps_.at(next_++); }

 private:
  std::vector<Batch> steps_;
  size_t next_ = 0;
};

/// Makes runs of `spec` train on these batches, and on nothing else.
inline void give_batches(TrainSpec& spec, const std::vector<Batch>& steps) {
  spec.build.data = [steps](const auto&...) {
    RunData data;
    data.train = [steps](const auto&...) { return std::make_unique<GivenBatches>(steps); };
    return data;
  };
}

}  // namespace lehr::train::testing
