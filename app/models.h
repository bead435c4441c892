// The one list of models that the program knows.
#pragma once

#include "lehr/train/train_spec.h"

namespace lehr::app {

/// Every family of lehr/model/, built as usual. A program of one's own adds its families to such a list.
train::TrainSpecs models();

}  // namespace lehr::app
