// Config of this program: all of Lehr's sections, and one of its own.
#pragma once

#include "lehr/train/config.h"

namespace parallel_decoder {

struct GoalConfig {
  double loss_fall = 0;
  void fields(lehr::FieldVisitor& v) {
    v.optional("loss_fall", loss_fall, "Fail unless the loss falls by more than this many nats.", lehr::at_least(0));
  }
};

struct Config {
  lehr::train::TrainConfig train;
  GoalConfig goal;
  void fields(lehr::FieldVisitor& v) {
    train.fields(v);
    v.group("goal", goal, "The goal of the run.");
  }
  void complete() { train.complete(); }
  void check(lehr::Problems& problems) const { train.check(problems); }
};

}  // namespace parallel_decoder
