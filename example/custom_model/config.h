// The config of this program: all of Lehr's sections, and one of its own.
#pragma once

#include "lehr/train/config.h"

namespace parallel_decoder {

struct GoalConfig {
  double loss_fall = 0;
  void fields(lehr::FieldVisitor& v) {
    v.optional(
        "loss_fall", loss_fall, "The run failed unless the loss fell by more than this, nats.", lehr::at_least(0));
  }
};

struct Config {
  lehr::train::TrainConfig train;
  GoalConfig goal;
  void fields(lehr::FieldVisitor& v) {
    train.fields(v);
    v.group("goal", goal, "What the run is expected to reach.");
  }
  void check(lehr::Problems& problems) const { train.check(problems); }
};

}  // namespace parallel_decoder
