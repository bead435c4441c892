#include "lehr/train/fewer_ranks.h"

#include "lehr/base/error.h"
#include "lehr/train/ranks.h"

namespace lehr::train {

void require_fits_fewer_ranks(const TrainConfig& config) {
  require(
      config.training.task != TaskKind::embedding,
      "training.task = \"embedding\": with fewer ranks an anchor would have fewer negatives, and its loss would be another; "
      "start again with training.local_batch_size times the data-parallel ranks as before");
  require(
      !config.parallelism.pipeline_parallel_schedule_csv,
      "parallelism.pipeline_parallel_schedule_csv: with fewer ranks each pipeline would get more micro-batches than the "
      "file is for; use parallelism.pipeline_parallel_schedule, or start without --min-ranks");
}

SmallerMesh fit_fewer_ranks(const TrainConfig& config, int64_t begun, int64_t left, int64_t least) {
  require_fits_fewer_ranks(config);
  const mesh::DeviceMeshParameters mesh = mesh_of(config.parallelism, begun);
  const int64_t data_parallel = mesh.data_parallel_replicate * mesh.data_parallel_shard;
  const int64_t fixed = begun / data_parallel;  // ranks that hold one model and see the same sequences
  const int64_t local = config.training.local_batch_size;
  const int64_t global =
      config.training.global_batch_size > 0 ? config.training.global_batch_size : local * data_parallel;
  for (int64_t data = left / fixed; data >= 1 && data * fixed >= least; --data) {
    const int64_t shard = data % mesh.data_parallel_shard == 0 ? mesh.data_parallel_shard : data;
    const int64_t expert_ranks = shard * mesh.context_parallel * mesh.tensor_parallel;
    if (global % (local * data) != 0 || expert_ranks % mesh.expert_parallel != 0) {
      continue;
    }
    return {
        .ranks = data * fixed,
        .overrides = {
            fmt::format("--parallelism.data_parallel_replicate_degree={}", data / shard),
            fmt::format("--parallelism.data_parallel_shard_degree={}", shard),
            fmt::format("--training.global_batch_size={}", global)}};
  }
  fail(
      "parallelism: no mesh of {} to {} ranks continues this run ({}): its number of ranks must be a multiple of {}, "
      "and the data-parallel ranks must divide the {} sequences of a step into batches of {} "
      "(training.local_batch_size){}",
      least,
      left,
      mesh.describe(),
      fixed,
      global,
      local,
      mesh.expert_parallel > 1 ? fmt::format(
                                     "; data_parallel_shard x context_parallel x tensor_parallel must be a multiple of "
                                     "expert_parallel ({})",
                                     mesh.expert_parallel)
                               : "");
}

}  // namespace lehr::train
