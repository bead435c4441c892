// Embeddings times a factor, as in Gemma.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::model {

/// Embeddings times `factor`, which is rounded to their dtype first, as transformers does for Gemma.
at::Tensor scaled_embeddings(const at::Tensor& embeddings, double factor);

}  // namespace lehr::model
