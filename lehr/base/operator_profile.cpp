// Built with NDEBUG, as LibTorch is: otherwise the header gives at::RecordFunction another layout.
#include "lehr/base/operator_profile.h"

#include <ATen/record_function.h>

#include <chrono>
#include <utility>
#include <vector>

#include "lehr/base/error.h"

namespace lehr {

namespace {
using Clock = std::chrono::steady_clock;
thread_local OperatorProfile::State* t_profile = nullptr;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}
}  // namespace

struct OperatorProfile::State {
  // An operator under way.
  struct Open {
    OperatorKind kind = OperatorKind::other;
    bool whole = false;     // its bytes are stated, so that those of what it calls do not count
    bool composed = false;  // it calls others, which do its work
  };
  std::array<OperatorTotals, kOperatorKinds> kinds;
  std::map<ProductSize, OperatorTotals> products;
  std::vector<Open> open;  // the outermost first
  Clock::time_point last;  // until here all time is given away
  at::CallbackHandle handle = 0;

  OperatorTotals& of(OperatorKind kind) { return kinds[static_cast<size_t>(kind)]; }
  OperatorTotals& running() { return of(open.empty() ? OperatorKind::between : open.back().kind); }

  Clock::time_point charge() {
    const Clock::time_point now = Clock::now();
    running().seconds += seconds_between(last, now);
    return last = now;
  }

  Clock::time_point push(Open next) {
    const Clock::time_point now = charge();
    next.whole = next.whole || (!open.empty() && open.back().whole);
    if (open.empty() || open.back().kind != next.kind) {
      ++of(next.kind).calls;
    }
    open.push_back(next);
    return now;
  }

  Clock::time_point pop() {
    const Clock::time_point now = charge();
    open.pop_back();
    return now;
  }
};

namespace {
// Of an operator of ATen that is called by one of kind `outer`, or by the program.
OperatorKind kind_within(const OperatorKind* outer, OperatorKind own) {
  if (outer == nullptr || *outer == OperatorKind::other) {
    return own;
  }
  return *outer == OperatorKind::loss && own == OperatorKind::product ? own : *outer;
}

// Reads as many elements of its first input as it gives, whatever that input's size.
bool picks_elements(std::string_view name) {
  return name == "aten::embedding" || name == "aten::index_select" || name == "aten::gather" || name == "aten::index";
}

struct Seen : at::ObserverContext {
  OperatorProfile::State* profile = nullptr;
  std::optional<ProductSize> product;
  Clock::time_point began;
  int64_t bytes = 0;      // of inputs
  bool counts = false;    // its bytes
  bool picks = false;     // reads what it writes
  bool composes = false;  // counts only if others do not do its work
};

// Lehr's own operators are on the profile's stack by their scopes, but for those of the dispatcher.
bool is_scope(std::string_view name) {
  return name.starts_with("lehr::") && kind_of_operator(name) == OperatorKind::other;
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  if (t_profile == nullptr || is_scope(name)) {
    return nullptr;
  }
  OperatorProfile::State& profile = *t_profile;
  auto seen = std::make_unique<Seen>();
  seen->profile = &profile;
  const OperatorInputs inputs = function.inputs();
  const bool inside_whole = !profile.open.empty() && profile.open.back().whole;
  const OperatorKind* outer = profile.open.empty() ? nullptr : &profile.open.back().kind;
  const OperatorKind kind = kind_within(outer, kind_of_operator(name));
  if (!profile.open.empty() && !makes_room(name)) {
    profile.open.back().composed = true;
  }
  seen->product = product_size(name, inputs);
  const auto attention = seen->product ? std::nullopt : attention_flops(name, inputs);
  seen->picks = picks_elements(name);
  const bool whole = seen->product || attention || seen->picks;
  profile.of(kind).flops += seen->product ? seen->product->flops() : attention.value_or(0);
  seen->counts = !inside_whole && !moves_nothing(name);
  seen->composes = !whole;
  for (size_t i = only_writes_first(name) || seen->picks ? 1 : 0; seen->counts && i < inputs.size(); ++i) {
    seen->bytes += bytes_of(inputs[i]);
  }
  seen->began = profile.push({.kind = kind, .whole = whole});
  return seen;
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  const auto* seen = static_cast<const Seen*>(context);
  if (seen == nullptr || seen->profile != t_profile || t_profile->open.empty()) {
    return;
  }
  OperatorProfile::State& profile = *t_profile;
  const OperatorProfile::State::Open own = profile.open.back();
  const Clock::time_point now = profile.pop();
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
    totals.seconds += seconds_between(seen->began, now);
    totals.flops += seen->product->flops();
    totals.bytes += bytes;
  }
}
}  // namespace

OperatorProfile::OperatorProfile() : state_(std::make_unique<State>()) {}

OperatorProfile::~OperatorProfile() {
  stop();
}

void OperatorProfile::start() {
  require(t_profile == nullptr, "operator profile: this thread has one already; they do not nest");
  t_profile = state_.get();
  state_->handle = at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end)
                                                  .needsInputs(true)
                                                  .needsOutputs(true)
                                                  .scopes({at::RecordScope::FUNCTION}));
  state_->last = Clock::now();
}

void OperatorProfile::stop() {
  if (t_profile != state_.get()) {
    return;
  }
  state_->charge();
  state_->open.clear();
  at::removeCallback(state_->handle);
  t_profile = nullptr;
}

const std::array<OperatorTotals, kOperatorKinds>& OperatorProfile::kinds() const {
  return state_->kinds;
}

const std::map<ProductSize, OperatorTotals>& OperatorProfile::products() const {
  return state_->products;
}

OperatorScope::OperatorScope(OperatorKind kind, const char* name) : profile_(t_profile) {
  if (auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION)) {
    record_ = std::make_unique<at::RecordFunction>(std::move(*callbacks));
    record_->before(name);
  }
  if (profile_ != nullptr) {
    profile_->push({.kind = kind});
  }
}

OperatorScope::~OperatorScope() {
  if (profile_ != nullptr && profile_ == t_profile) {
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
  return t_profile != nullptr;
}

void add_to_profile(double flops, int64_t bytes) {
  if (t_profile == nullptr || t_profile->open.empty()) {
    return;
  }
  OperatorTotals& running = t_profile->running();
  running.flops += flops;
  running.bytes += t_profile->open.back().whole ? 0 : static_cast<double>(bytes);
}

}  // namespace lehr
