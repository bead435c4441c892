#include "lehr/model/scaled_embeddings.h"

namespace lehr::model {

at::Tensor scaled_embeddings(const at::Tensor& embeddings, double factor) {
  if (factor == 1) {
    return embeddings;
  }
  const auto dtype = embeddings.scalar_type();
  const auto narrow = static_cast<float>(factor);
  float rounded = narrow;
  if (dtype == at::kBFloat16) {
    rounded = c10::BFloat16(narrow);
  } else if (dtype == at::kHalf) {
    rounded = c10::Half(narrow);
  }
  return embeddings * (dtype == at::kDouble ? factor : double{rounded});
}

}  // namespace lehr::model
