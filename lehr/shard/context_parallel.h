// TEMP
#pragma once
#include "lehr/base/torch.h"
namespace lehr::shard {
at::Tensor take_context_part(const at::Tensor& tensor, int64_t dim, int64_t index, int64_t size);
}
