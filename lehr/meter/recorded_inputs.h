// Access to the inputs of an operator that LibTorch records (ATen/record_function.h).
#pragma once

#include "lehr/base/torch.h"

namespace at {
struct RecordFunction;
}

namespace lehr {

/// Returns the inputs. Call it in a start callback that requested them.
c10::ArrayRef<const c10::IValue> recorded_inputs(const at::RecordFunction& function);

}  // namespace lehr
