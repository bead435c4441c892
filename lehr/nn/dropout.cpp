#include "lehr/nn/dropout.h"

namespace lehr::nn {

void set_dropout_stream(torch::nn::Module& root, uint64_t seed, uint64_t step, int64_t first_row) {
  if (auto* draws = dynamic_cast<DropoutModule*>(&root)) {
    draws->set_dropout_stream(seed, step, first_row);
  }
  for (const auto& child : root.children()) {
    set_dropout_stream(*child, seed, step, first_row);
  }
}

}  // namespace lehr::nn
