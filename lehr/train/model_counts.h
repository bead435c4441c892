// The FLOPs per token of the model of a run, as it is trained: whole, or with adapters, or in part.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/train/builders.h"

namespace lehr::train {

/// Returns the counts of ModelArgs::get_nparams_and_flops at training.seq_len. With [peft], their FLOPs are those of
/// the operators that forward and backward of the model execute, counted on meta (milliseconds per layer): there are no
/// weight gradients of frozen parameters, and no gradients at all below the lowest trained one. If the model does not
/// run on meta, they are 0: unknown. `num_parameters` is without adapters. No meter may be alive on this thread.
descriptor::ModelCounts count_model(
    const TrainConfig& config, const descriptor::ModelArgs& args, const Builders& build);

}  // namespace lehr::train
