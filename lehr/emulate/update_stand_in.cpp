#include "lehr/emulate/update_stand_in.h"

#include <utility>

#include "lehr/meter/operation_meter.h"

namespace lehr::emulate {

namespace {
class StandIn : public optim::Optimizer {
 public:
  explicit StandIn(std::unique_ptr<optim::Optimizer> real) : real_(std::move(real)) {}

  void allocate(const std::vector<optim::NamedParameter>& parameters) override { real_->allocate(parameters); }
  void step(const std::vector<optim::NamedParameter>& parameters, const optim::StepOptions& /*options*/) override {
    real_->allocate(parameters);
    for (const optim::NamedParameter& parameter : parameters) {
      report_pointwise({parameter.grad, parameter.value, parameter.value});
    }
    for (const auto& [name, tensor] : real_->state()) {
      report_pointwise({tensor, tensor});
    }
  }
  // So that a step never waits for numbers, which meta tensors do not have.
  bool takes_found_inf() const override { return true; }
  std::vector<std::pair<std::string, at::Tensor>> state() const override { return real_->state(); }

 private:
  std::unique_ptr<optim::Optimizer> real_;
};
}  // namespace

std::unique_ptr<optim::Optimizer> update_stand_in(std::unique_ptr<optim::Optimizer> real) {
  return std::make_unique<StandIn>(std::move(real));
}

}  // namespace lehr::emulate
