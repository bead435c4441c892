// The features of a drawn run.
#pragma once

#include "test/train/composition.h"
#include "test/train/draw.h"

namespace lehr::train::testing {

/// The features of a draw's run on its first mesh, by their names in test/train/composition.json.
FeatureSet features(const Draw& draw);

}  // namespace lehr::train::testing
