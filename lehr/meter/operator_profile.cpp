// Built with NDEBUG, as LibTorch is: without it, the header lays out at::RecordFunction differently.
#include "lehr/meter/operator_profile.h"

#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>

#include <utility>
#include <vector>

#include "lehr/base/call_context.h"
#include "lehr/base/error.h"
#include "lehr/meter/profile_clock.h"

namespace lehr {

namespace {
const ContextSlot<OperatorProfile::State*> kProfile("operator profile");
}  // namespace

struct OperatorProfile::State {
  // A running operator.
  struct Open {
    OperatorKind kind = OperatorKind::other;
    bool whole = false;     // its bytes are stated, so those of operators that it calls do not count
    bool composed = false;  // it calls other operators, which do its work
    bool timed = false;     // its own time is measured, not only that of its kind
  };
  // Time between two marks of the clock, and the totals that it belongs to. An accelerator reports it later, so it is
  // added at the end.
  struct Charge {
    size_t begin = 0;
    size_t end = 0;
    OperatorTotals* to = nullptr;
  };
  std::unique_ptr<ProfileClock> clock;
  std::array<OperatorTotals, kOperatorKinds> kinds;
  std::map<ProductSize, OperatorTotals> products;
  std::vector<Open> open;  // outermost first
  std::vector<Charge> charges;
  size_t last = 0;  // the last mark up to which time was assigned
  at::CallbackHandle handle = 0;
  bool threads_of_autograd = true;  // the previous setting

  OperatorTotals& of(OperatorKind kind) { return kinds[static_cast<size_t>(kind)]; }
  OperatorTotals& running() { return of(open.empty() ? OperatorKind::between : open.back().kind); }

  size_t charge() {
    const size_t now = clock->mark();
    charges.push_back({.begin = last, .end = now, .to = &running()});
    return last = now;
  }

  // If the kind stays the same there is no time to assign, and a mark costs an event on a device.
  size_t push(Open next) {
    const size_t now = next.timed || open.empty() || open.back().kind != next.kind ? charge() : last;
    next.whole = next.whole || (!open.empty() && open.back().whole);
    if (open.empty() || open.back().kind != next.kind) {
      ++of(next.kind).calls;
    }
    open.push_back(next);
    return now;
  }

  size_t pop() {
    const bool same = open.size() > 1 && open[open.size() - 2].kind == open.back().kind;
    const size_t now = open.back().timed || !same ? charge() : last;
    open.pop_back();
    return now;
  }

  void add_times() {
    if (charges.empty()) {
      return;
    }
    clock->wait();
    for (const Charge& one : charges) {
      one.to->seconds += clock->seconds(one.begin, one.end);
    }
    charges.clear();
  }
};

namespace {
// Returns the kind under which an ATen operator counts that is called by the program, or within an operator of kind
// `outer`.
OperatorKind kind_within(const OperatorKind* outer, OperatorKind own) {
  if (outer == nullptr || *outer == OperatorKind::other) {
    return own;
  }
  return *outer == OperatorKind::loss && own == OperatorKind::matmul ? own : *outer;
}

// True if the operator reads as many elements of its first input as it returns, whatever the size of that input.
bool picks_elements(std::string_view name) {
  return name == "aten::embedding" || name == "aten::index_select" || name == "aten::gather" || name == "aten::index";
}

struct Seen : at::ObserverContext {
  OperatorProfile::State* profile = nullptr;
  std::optional<ProductSize> product;
  size_t began = 0;       // a mark
  int64_t bytes = 0;      // of inputs
  bool counts = false;    // its bytes count
  bool float8 = false;    // a matmul in float8
  bool picks = false;     // reads only the elements that it returns
  bool composes = false;  // its bytes count only if it calls no other operators
};

// True for Lehr's own operators with a scope. Those that are registered in the dispatcher have none.
bool is_scope(std::string_view name) {
  return name.starts_with("lehr::") && kind_of_operator(name) == OperatorKind::other;
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  OperatorProfile::State* const running = kProfile.get();
  if (running == nullptr || is_scope(name)) {
    return nullptr;
  }
  OperatorProfile::State& profile = *running;
  auto seen = std::make_unique<Seen>();
  seen->profile = &profile;
  const OperatorInputs inputs = function.inputs();
  const bool inside_whole = !profile.open.empty() && profile.open.back().whole;
  const OperatorKind* outer = profile.open.empty() ? nullptr : &profile.open.back().kind;
  const OperatorKind kind = kind_within(outer, kind_of_operator(name));
  if (!profile.open.empty() && !makes_room(name)) {
    profile.open.back().composed = true;
  }
  const auto product = product_size(name, inputs);
  const auto attention = product ? std::nullopt : attention_flops(name, inputs);
  seen->product = product;
  seen->picks = picks_elements(name);
  const bool whole = product || attention || seen->picks;
  profile.of(kind).flops += product ? product->flops() : attention.value_or(0);
  seen->float8 = product && (name == "aten::_scaled_mm" || name == "aten::_scaled_grouped_mm");
  if (product && seen->float8) {
    profile.of(kind).float8_flops += product->flops();
  }
  seen->counts = !inside_whole && !moves_nothing(name);
  seen->composes = !whole;
  for (size_t i = only_writes_first(name) || seen->picks ? 1 : 0; seen->counts && i < inputs.size(); ++i) {
    seen->bytes += bytes_of(inputs[i]);
  }
  seen->began = profile.push({.kind = kind, .whole = whole, .timed = product.has_value()});
  return seen;
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  const auto* seen = static_cast<const Seen*>(context);
  if (seen == nullptr || seen->profile != kProfile.get() || seen->profile->open.empty()) {
    return;
  }
  OperatorProfile::State& profile = *seen->profile;
  const OperatorProfile::State::Open own = profile.open.back();
  const size_t now = profile.pop();
  double bytes = 0;
  if (seen->counts && !(seen->composes && own.composed)) {
    int64_t written = 0;
    for (const auto& output : function.outputs()) {
      written += bytes_of(output);
    }
    bytes = static_cast<double>(seen->bytes + (seen->picks ? 2 : 1) * written);
    profile.of(own.kind).bytes += bytes;
  }
  if (seen->product) {
    OperatorTotals& totals = profile.products[*seen->product];
    ++totals.calls;
    profile.charges.push_back({.begin = seen->began, .end = now, .to = &totals});
    totals.flops += seen->product->flops();
    totals.float8_flops += seen->float8 ? seen->product->flops() : 0;
    totals.bytes += bytes;
  }
}
}  // namespace

OperatorProfile::OperatorProfile() : OperatorProfile(profile_clock(at::kCPU)) {}

OperatorProfile::OperatorProfile(std::unique_ptr<ProfileClock> clock) : state_(std::make_unique<State>()) {
  state_->clock = std::move(clock);
}

OperatorProfile::~OperatorProfile() {
  stop();
}

void OperatorProfile::start() {
  require(kProfile.get() == nullptr, "operator profile: this thread has one already; they do not nest");
  kProfile.set(state_.get());
  state_->handle = at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end)
                                                  .needsInputs(true)
                                                  .needsOutputs(true)
                                                  .scopes({at::RecordScope::FUNCTION}));
  // Without this setting, backward on an accelerator would run on an autograd thread.
  auto& autograd = c10::AutogradState::get_tls_state();
  state_->threads_of_autograd = autograd.get_multithreading_enabled();
  autograd.set_multithreading_enabled(false);
  state_->clock->start();
  state_->last = state_->clock->mark();
}

void OperatorProfile::stop() {
  if (kProfile.get() != state_.get()) {
    return;
  }
  state_->charge();
  state_->open.clear();
  at::removeCallback(state_->handle);
  c10::AutogradState::get_tls_state().set_multithreading_enabled(state_->threads_of_autograd);
  kProfile.set(nullptr);
}

const std::array<OperatorTotals, kOperatorKinds>& OperatorProfile::kinds() const {
  state_->add_times();
  return state_->kinds;
}

const std::map<ProductSize, OperatorTotals>& OperatorProfile::products() const {
  state_->add_times();
  return state_->products;
}

OperatorScope::OperatorScope(OperatorKind kind, const char* name) : profile_(kProfile.get()) {
  if (auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION)) {
    record_ = std::make_unique<at::RecordFunction>(std::move(*callbacks));
    record_->before(name);
  }
  if (profile_ != nullptr) {
    profile_->push({.kind = kind});
  }
}

OperatorScope::~OperatorScope() {
  if (profile_ != nullptr && profile_ == kProfile.get()) {
    profile_->pop();
  }
}

void OperatorScope::moves(int64_t bytes) {
  if (profile_ != nullptr) {
    profile_->open.back().whole = true;
    profile_->running().bytes += static_cast<double>(bytes);
  }
}

bool profiles_operators() {
  return kProfile.get() != nullptr;
}

void add_to_profile(double flops, int64_t bytes) {
  OperatorProfile::State* const profile = kProfile.get();
  if (profile == nullptr || profile->open.empty()) {
    return;
  }
  OperatorTotals& running = profile->running();
  running.flops += flops;
  running.bytes += profile->open.back().whole ? 0 : static_cast<double>(bytes);
}

}  // namespace lehr
