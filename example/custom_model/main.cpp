// A module written outside of Lehr, and its life: shapes first, memory later, values last.
#include <cstdio>
#include <cstdlib>

#include "lehr/base/torch.h"
#include "lehr/nn/linear.h"
#include "lehr/nn/module.h"

namespace {

/// y = x + up(x)^2 projected down again: a feed-forward block with squared-ReLU, as in Primer.
class SquaredReluMlpImpl : public lehr::nn::Module {
 public:
  SquaredReluMlpImpl(int64_t hidden_size, int64_t intermediate_size)
      : up_proj(register_module("up_proj", lehr::nn::Linear(hidden_size, intermediate_size))),
        down_proj(register_module("down_proj", lehr::nn::Linear(intermediate_size, hidden_size))) {
    declare_parameter("scale", scale, {hidden_size}, lehr::nn::Init::ones());
  }

  at::Tensor forward(const at::Tensor& hidden_states) {  // (B, T, D) -> (B, T, D)
    const at::Tensor activated = at::relu(up_proj->forward(hidden_states)).square();
    return hidden_states + scale * down_proj->forward(activated);
  }

  lehr::nn::Linear up_proj, down_proj;
  at::Tensor scale;
};
TORCH_MODULE(SquaredReluMlp);

void check(bool holds, const char* what) {
  std::printf("%s: %s\n", holds ? "holds" : "FAILS", what);
  if (!holds) {
    std::exit(1);
  }
}

at::Tensor run(const at::Tensor& input) {
  SquaredReluMlp mlp(input.size(-1), 4 * input.size(-1));
  lehr::nn::materialize(*mlp, at::kCPU, at::kFloat);
  mlp->reset_parameters();
  return mlp->forward(input);
}

}  // namespace

int main() {
  // A block of 17 billion parameters costs nothing until it is materialized.
  SquaredReluMlp large(46'000, 4 * 46'000);
  check(lehr::nn::count_parameters(*large) > 16'000'000'000, "a large block has its parameters counted");
  for (const lehr::nn::NamedParameter& named : lehr::nn::named_parameters(*large)) {
    check(named.parameter->value().is_meta(), named.name.c_str());
  }

  const at::Tensor input = at::linspace(-1, 1, 2 * 3 * 16).view({2, 3, 16});  // (B, T, D)
  const at::Tensor output = run(input);
  check(output.sizes() == input.sizes() && !output.equal(input), "the block computes once it has values");
  check(output.equal(run(input)), "initial values depend on the seed and the parameters' names alone");

  SquaredReluMlp mlp(16, 64);
  lehr::nn::materialize(*mlp, at::kCPU, at::kFloat);
  mlp->reset_parameters();
  mlp->forward(input).sum().backward();
  for (const lehr::nn::NamedParameter& named : lehr::nn::named_parameters(*mlp)) {
    check(named.parameter->value().grad().defined(), (named.name + " has a gradient").c_str());
  }
}
