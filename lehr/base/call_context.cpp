#include "lehr/base/call_context.h"

#include <utility>

#include "lehr/base/error.h"

namespace lehr {

namespace {
constinit thread_local CallContext t_context;

std::vector<const char*>& slot_names() {
  static std::vector<const char*> names;
  return names;
}
}  // namespace

CallContext& CallContext::of_this_thread() {
  return t_context;
}

std::vector<const char*> CallContext::names() const {
  std::vector<const char*> set;
  for (size_t i = 0; i < slot_names().size(); ++i) {
    if (values_[i] != 0) {
      set.push_back(slot_names()[i]);
    }
  }
  return set;
}

size_t add_context_slot(const char* name) {
  require(
      slot_names().size() < CallContext::kMostSlots,
      "call context: there is no slot for '{}'; increase CallContext::kMostSlots",
      name);
  slot_names().push_back(name);
  return slot_names().size() - 1;
}

WithContext::WithContext(const CallContext& context) : before_(std::exchange(t_context, context)) {}

WithContext::~WithContext() {
  t_context = before_;
}

}  // namespace lehr
