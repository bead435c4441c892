#include "lehr/meter/operator_watch.h"

namespace lehr {

namespace {
const ContextSlot<OperatorWatch*> kWatch("operator watch");  // set only during a check
}  // namespace

OperatorWatch* operator_watch() {
  return kWatch.get();
}

WatchOperators::WatchOperators(OperatorWatch& watch) : scope_(kWatch, &watch) {}

}  // namespace lehr
