// The definition of ops/grouped_linear/grouped_linear.h.
#include "lehr/ops/grouped_linear/grouped_linear.h"

namespace lehr::ops {

at::Tensor grouped_linear_reference(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& ends, const at::Tensor& bias) {
  const at::Tensor on_host = ends.cpu();
  std::vector<at::Tensor> groups;
  int64_t begin = 0;
  for (int64_t g = 0; g < weight.size(0); ++g) {
    const int64_t end = on_host[g].item<int64_t>();
    const at::Tensor own = bias.defined() ? bias[g] : at::Tensor();
    groups.push_back(at::linear(input.narrow(0, begin, end - begin), weight[g], own));
    begin = end;
  }
  return at::cat(groups);
}

}  // namespace lehr::ops
