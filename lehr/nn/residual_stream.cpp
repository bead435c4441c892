#include "lehr/nn/residual_stream.h"

#include <tuple>
#include <utility>

namespace lehr::nn {

at::Tensor ResidualStream::normed(const RMSNorm& norm) {
  if (operator_watch() != nullptr || !norm->call_hooks().empty()) {
    return norm(hidden_states());
  }
  at::Tensor normed;
  std::tie(hidden_states_, normed) =
      ops::add_rms_norm(hidden_states_, std::exchange(waiting_, at::Tensor()), norm->weight, norm->eps(), norm->kind());
  return normed;
}

void ResidualStream::add(at::Tensor output) {
  hidden_states();
  waiting_ = std::move(output);
}

const at::Tensor& ResidualStream::hidden_states() {
  if (waiting_.defined()) {
    hidden_states_ = hidden_states_ + std::exchange(waiting_, at::Tensor());
  }
  return hidden_states_;
}

}  // namespace lehr::nn
