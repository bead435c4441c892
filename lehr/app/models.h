// The model families of lehr/model/, as a list for lehr::app::main.
#pragma once

#include "lehr/train/train_spec.h"

namespace lehr::app {

/// Returns every family of lehr/model/, with the default builders. Another program may add its own families to the
/// list.
train::TrainSpecs models();

}  // namespace lehr::app
