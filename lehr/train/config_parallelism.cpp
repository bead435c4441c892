// The section [parallelism] of a run's config.
#include "lehr/base/error.h"
#include "lehr/pipeline/schedules.h"
#include "lehr/train/config.h"

namespace lehr::train {

void ParallelismConfig::fields(FieldVisitor& v) {
  v.optional(
      "data_parallel_replicate_degree",
      data_parallel_replicate_degree,
      "Copies of the model, each on other data.",
      positive());
  v.optional(
      "data_parallel_shard_degree",
      data_parallel_shard_degree,
      "Ranks that share one copy; -1: all that are left.",
      at_least(-1));
  v.optional("tensor_parallel_degree", tensor_parallel_degree, "Ranks that share each matrix product.", positive());
  v.optional("context_parallel_degree", context_parallel_degree, "Ranks that share each sequence.", positive());
  v.optional("expert_parallel_degree", expert_parallel_degree, "Ranks that share the experts of a layer.", positive());
  v.optional("pipeline_parallel_degree", pipeline_parallel_degree, "Ranks that share the layers.", positive());
  v.optional(
      "pipeline_parallel_schedule",
      pipeline_parallel_schedule,
      "In what order a rank of the pipeline computes: GPipe, 1F1B, ZBH1, ZBH2 (one stage a rank), LoopedBFS, "
      "Interleaved1F1B, InterleavedZeroBubble (several), ZBVZeroBubble, DualPipeV (two).");
  v.optional(
      "pipeline_parallel_schedule_csv",
      pipeline_parallel_schedule_csv,
      "A file with a schedule of your own: a line a rank, a cell an action (0F0, 0B0, 0I0, 0W0). Takes the place of "
      "pipeline_parallel_schedule.");
  v.optional(
      "pipeline_parallel_stages_per_rank",
      pipeline_parallel_stages_per_rank,
      "Pieces of the model that each rank of the pipeline has; -1: as few as the schedule takes.",
      at_least(-1));
  v.optional(
      "pipeline_parallel_microbatch_size",
      pipeline_parallel_microbatch_size,
      "Rows that go through the pipeline together; must divide training.local_batch_size. -1: all of these.",
      at_least(-1));
  v.choice(
      "pipeline_parallel_balance",
      pipeline_parallel_balance,
      {{"even", PipelineBalance::even}, {"cost", PipelineBalance::cost}},
      "How layers are spread over the stages. even: the same number for each, less what the two keys below say. cost: "
      "so that the dearest stage is as cheap as it can be, by the operations of each layer and of the head.");
  v.optional(
      "pipeline_parallel_first_stage_less_layers",
      pipeline_parallel_first_stage_less_layers,
      "Layers that the first stage has less than the others, as it has the embeddings.",
      at_least(0));
  v.optional(
      "pipeline_parallel_last_stage_less_layers",
      pipeline_parallel_last_stage_less_layers,
      "Layers that the last stage has less than the others, as it has the head.",
      at_least(0));
  v.choice(
      "fsdp_reshard_after_forward",
      fsdp_reshard_after_forward,
      {{"default", shard::ReshardPolicy::all_but_last},
       {"always", shard::ReshardPolicy::always},
       {"never", shard::ReshardPolicy::never}},
      "Whether a layer's whole weights are given back between forward and backward: less memory, more communication. "
      "default: all but the last layer's.");
  v.optional(
      "fsdp_reduce_each_microbatch",
      fsdp_reduce_each_microbatch,
      "Whether gradients are summed over the ranks after each microbatch of a step. false: once a step, so less "
      "communication, and every rank keeps whole gradients of all parameters meanwhile (4 bytes for each).");
  v.optional(
      "fsdp_cpu_offload",
      fsdp_cpu_offload,
      "Whether weights, gradients and what the optimizer keeps of them stay in host memory: a layer's weights are "
      "copied "
      "to the device while it needs them, and the optimizer runs on the CPU. Less memory of the device, slower steps; "
      "on "
      "several ranks.");
  v.choice(
      "context_parallel_rotate_method",
      context_parallel_rotate_method,
      {{"allgather", shard::ContextParallelMethod::all_gather}, {"ring", shard::ContextParallelMethod::ring}},
      "How attention sees the keys of other ranks: all at once (quicker), or passed around (less memory).");
}

void ParallelismConfig::check(Problems& problems) const {
  if (data_parallel_shard_degree == 0) {
    problems.add("parallelism.data_parallel_shard_degree", "expected -1 or a positive number, found 0");
  }
  if (pipeline_parallel_balance == PipelineBalance::cost &&
      pipeline_parallel_first_stage_less_layers + pipeline_parallel_last_stage_less_layers > 0) {
    problems.add(
        "parallelism.pipeline_parallel_balance",
        "\"cost\" chooses the layers of every stage; leave out pipeline_parallel_first_stage_less_layers and "
        "pipeline_parallel_last_stage_less_layers, or set \"even\"");
  }
  try {
    pipeline::parse_schedule(pipeline_parallel_schedule);
  } catch (const Error& error) {
    problems.add("parallelism.pipeline_parallel_schedule", error.what());
  }
  for (const auto& [key, value] :
       {std::pair("pipeline_parallel_stages_per_rank", pipeline_parallel_stages_per_rank),
        std::pair("pipeline_parallel_microbatch_size", pipeline_parallel_microbatch_size)}) {
    if (value == 0) {
      problems.add("parallelism." + std::string(key), "expected -1 or a positive number, found 0");
    }
  }
}

}  // namespace lehr::train
