#include "lehr/meter/operation_meter.h"

#include <ATen/record_function.h>

#include <vector>

#include "lehr/base/call_context.h"
#include "lehr/base/error.h"
#include "lehr/meter/operator_costs.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/meter/recorded_inputs.h"

namespace lehr {

struct OperationMeter::State {
  OperationCounts counts;
  at::CallbackHandle handle = 0;
  std::vector<bool> has_inner;  // of the running operators, outermost first
};

namespace {
const ContextSlot<OperationMeter::State*> kMeter("operation meter");
const ContextSlot<int64_t> kRecomputed("recomputation is counted");  // the number of scopes

void add_flops(double& sum, double flops) {
  sum += flops;
  if (kRecomputed.get() > 0) {
    kMeter.get()->counts.recomputed_flops += flops;
  }
}

struct Seen : at::ObserverContext {
  int64_t bytes = 0;     // of inputs
  bool counted = false;  // as a matmul, or moves no elements
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  OperationMeter::State& meter = *kMeter.get();
  auto seen = std::make_unique<Seen>();
  const std::string_view name = function.name();
  const auto inputs = recorded_inputs(function);
  if (!meter.has_inner.empty() && !makes_room(name)) {
    meter.has_inner.back() = true;
  }
  meter.has_inner.push_back(false);
  if (const auto product = product_size(name, inputs)) {
    add_flops(meter.counts.matmul_flops, product->flops());
    seen->counted = true;
  } else if (const auto attention = attention_flops(name, inputs)) {
    add_flops(meter.counts.attention_flops, *attention);
    seen->counted = true;
  } else {
    seen->counted = moves_nothing(name);
  }
  if (!seen->counted) {
    for (size_t i = only_writes_first(name) ? 1 : 0; i < inputs.size(); ++i) {
      seen->bytes += bytes_of(inputs[i]);
    }
  }
  return seen;
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  OperationMeter::State& meter = *kMeter.get();
  const auto* seen = static_cast<const Seen*>(context);
  const bool composed = meter.has_inner.back();
  meter.has_inner.pop_back();
  if (seen->counted || composed) {
    return;
  }
  meter.counts.pointwise_bytes += seen->bytes;
  for (const auto& output : function.outputs()) {
    meter.counts.pointwise_bytes += bytes_of(output);
  }
}
}  // namespace

OperationMeter::OperationMeter() : state_(std::make_unique<State>()) {
  require(kMeter.get() == nullptr, "operation meter: this thread already has one; meters do not nest");
  kMeter.set(state_.get());
  state_->handle = at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end)
                                                  .needsInputs(true)
                                                  .needsOutputs(true)
                                                  .scopes({at::RecordScope::FUNCTION}));
}

OperationMeter::~OperationMeter() {
  at::removeCallback(state_->handle);
  kMeter.set(nullptr);
}

const OperationCounts& OperationMeter::counts() const {
  return state_->counts;
}

void OperationMeter::reset() {
  state_->counts = {};
}

Recomputed::Recomputed() {
  kRecomputed.set(kRecomputed.get() + 1);
}

Recomputed::~Recomputed() {
  kRecomputed.set(kRecomputed.get() - 1);
}

bool counts_reports() {
  return kMeter.get() != nullptr || profiles_operators();
}

void report_attention(double flops) {
  add_to_profile(flops, 0);
  if (kMeter.get() != nullptr) {
    add_flops(kMeter.get()->counts.attention_flops, flops);
  }
}

void report_pointwise(std::initializer_list<at::Tensor> tensors) {
  report_moved(tensors);
  OperationMeter::State* const meter = kMeter.get();
  if (meter == nullptr) {
    return;
  }
  for (const at::Tensor& tensor : tensors) {
    meter->counts.pointwise_bytes += tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
  }
}

void report_moved(c10::ArrayRef<at::Tensor> tensors) {
  if (!profiles_operators()) {
    return;
  }
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    bytes += tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
  }
  add_to_profile(0, bytes);
}

}  // namespace lehr
