#include "lehr/base/operator_watch.h"

#include <utility>

namespace lehr {

namespace {
// Thread-local because ranks may be threads; set only during a check.
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
