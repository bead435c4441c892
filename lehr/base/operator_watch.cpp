#include "lehr/base/operator_watch.h"

#include <utility>

namespace lehr {

namespace {
// Of the thread, as ranks may be threads: set for the time of a check only.
thread_local OperatorWatch* t_watch = nullptr;
}  // namespace

OperatorWatch* operator_watch() {
  return t_watch;
}

WatchOperators::WatchOperators(OperatorWatch& watch) : before_(std::exchange(t_watch, &watch)) {}

WatchOperators::~WatchOperators() {
  t_watch = before_;
}

}  // namespace lehr
