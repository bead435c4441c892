// The [parallelism] section of a run's config.
#include "lehr/base/error.h"
#include "lehr/pipeline/schedules.h"
#include "lehr/train/config.h"

namespace lehr::train {

namespace {
void visit_degrees(ParallelismConfig& c, FieldVisitor& v) {
  v.optional(
      "data_parallel_replicate_degree",
      c.data_parallel_replicate_degree,
      "Replicas of the model (DDP, or the outer axis of HSDP).",
      positive());
  v.optional(
      "data_parallel_shard_degree",
      c.data_parallel_shard_degree,
      "Ranks that shard parameters, gradients and optimizer state (FSDP); -1: all remaining ranks.",
      at_least(-1));
  v.optional(
      "tensor_parallel_degree",
      c.tensor_parallel_degree,
      "Ranks that split each matmul (tensor parallelism).",
      positive());
  v.optional(
      "context_parallel_degree",
      c.context_parallel_degree,
      "Ranks that split each sequence (context parallelism).",
      positive());
  v.optional(
      "expert_parallel_degree",
      c.expert_parallel_degree,
      "Ranks that split the experts of each MoE layer (expert parallelism).",
      positive());
  v.optional(
      "pipeline_parallel_degree",
      c.pipeline_parallel_degree,
      "Ranks that split the layers (pipeline parallelism).",
      positive());
}

void visit_pipeline(ParallelismConfig& c, FieldVisitor& v) {
  v.optional(
      "pipeline_parallel_schedule",
      c.pipeline_parallel_schedule,
      "Pipeline schedule: GPipe, 1F1B, ZBH1, ZBH2 (one stage per rank); Interleaved1F1B (two or more); LoopedBFS, "
      "InterleavedZeroBubble (one or more); ZBVZeroBubble, DualPipeV (two).");
  v.optional(
      "pipeline_parallel_schedule_csv",
      c.pipeline_parallel_schedule_csv,
      "CSV file with a custom schedule: one line per rank, one cell per action (0F0, 0B0, 0I0, 0W0). Replaces "
      "pipeline_parallel_schedule.");
  v.optional(
      "pipeline_parallel_stages_per_rank",
      c.pipeline_parallel_stages_per_rank,
      "Pipeline stages per rank; -1: two for schedules with several stages per rank, else one.",
      at_least(-1));
  v.optional(
      "pipeline_parallel_microbatch_size",
      c.pipeline_parallel_microbatch_size,
      "Sequences per micro-batch of the pipeline; must divide training.local_batch_size. -1: "
      "training.local_batch_size.",
      at_least(-1));
  v.choice(
      "pipeline_parallel_balance",
      c.pipeline_parallel_balance,
      {{"even", PipelineBalance::even}, {"cost", PipelineBalance::cost}},
      "Distribution of layers over stages. even: the same number each, less the two keys below. cost: minimizes the "
      "FLOPs of the most expensive stage, head included.");
  v.optional(
      "pipeline_parallel_first_stage_less_layers",
      c.pipeline_parallel_first_stage_less_layers,
      "Number of layers by which the first stage, which has the embeddings, is smaller than the others.",
      at_least(0));
  v.optional(
      "pipeline_parallel_last_stage_less_layers",
      c.pipeline_parallel_last_stage_less_layers,
      "Number of layers by which the last stage, which has the head, is smaller than the others.",
      at_least(0));
}

void visit_exchanges(ParallelismConfig& c, FieldVisitor& v) {
  v.optional(
      "tensor_parallel_regather",
      c.tensor_parallel_regather,
      "With tensor_parallel_degree above 1: save only this rank's part of the sequence that enters attention or an "
      "FFN, and all-gather it again in backward. Less activation memory, more communication, which overlaps with a "
      "matmul.");
  v.optional(
      "expert_parallel_parts",
      c.expert_parallel_parts,
      "With expert_parallel_degree above 1: compute the experts of a rank in this many parts, which must divide their "
      "number. The all-to-all of one part overlaps with the matmuls of another.",
      positive());
  v.choice(
      "fsdp_reshard_after_forward",
      c.fsdp_reshard_after_forward,
      {{"default", shard::ReshardPolicy::all_but_last},
       {"always", shard::ReshardPolicy::always},
       {"never", shard::ReshardPolicy::never}},
      "Reshard parameters after forward: less memory, more communication. default: every layer except the last.");
  v.optional(
      "fsdp_reduce_each_microbatch",
      c.fsdp_reduce_each_microbatch,
      "Reduce-scatter gradients after each micro-batch. false: once per step; less communication, but every rank holds "
      "unsharded gradients of its parameters until then, in the data type of the reduction.");
  v.optional(
      "fsdp_cpu_offload",
      c.fsdp_cpu_offload,
      "Keep parameters, gradients and optimizer state in host memory: a layer's parameters are copied to the device "
      "when it computes, and the optimizer runs on the CPU. Saves device memory, slows steps.");
  v.choice(
      "context_parallel_rotate_method",
      c.context_parallel_rotate_method,
      {{"allgather", shard::ContextParallelMethod::all_gather}, {"ring", shard::ContextParallelMethod::ring}},
      "Exchange of keys and values in context parallelism. allgather: all at once (faster); ring: passed from rank to "
      "rank (less memory).");
}
}  // namespace

void ParallelismConfig::fields(FieldVisitor& v) {
  visit_degrees(*this, v);
  visit_pipeline(*this, v);
  visit_exchanges(*this, v);
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
    const auto& info = pipeline::schedule_info(pipeline::parse_schedule(pipeline_parallel_schedule));
    if (!info.has_backward) {
      problems.add(
          "parallelism.pipeline_parallel_schedule", fmt::format("{} has no backward, so it cannot train", info.name));
    }
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
