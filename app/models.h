// The one list of models that the program knows.
#pragma once

#include "lehr/descriptor/model_args.h"

namespace lehr::app {

/// Every family of lehr/model/. A program of one's own adds its families to such a list.
descriptor::ModelFamilies models();

}  // namespace lehr::app
