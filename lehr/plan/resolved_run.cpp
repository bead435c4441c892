#include "lehr/plan/resolved_run.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/data/tokenizer.h"
#include "lehr/mesh/fake_transport.h"
#include "lehr/pipeline/schedules.h"
#include "lehr/train/mesh_rules.h"
#include "lehr/train/ranks.h"
#include "lehr/train/stage_layout.h"

namespace lehr::plan {

namespace {
// A plan starts no ranks, so errors about their number name --devices.
int64_t world_of(const train::ParallelismConfig& p, int64_t devices) {
  const int64_t others = p.data_parallel_replicate_degree * p.tensor_parallel_degree * p.context_parallel_degree *
                         p.pipeline_parallel_degree;
  if (devices > 0 && p.data_parallel_shard_degree == -1) {
    require(
        devices % others == 0,
        "parallelism.data_parallel_shard_degree: -1 takes the devices that the other degrees leave, but these take {}, "
        "which does not divide the {} of --devices; set --devices to a multiple of {}, or change a degree",
        others,
        devices,
        others);
    return devices;
  }
  const int64_t all = others * std::max<int64_t>(1, p.data_parallel_shard_degree);
  require(
      devices == 0 || devices == all,
      "parallelism: the degrees take {} devices, found --devices {}; set --devices {} or leave it out, or set "
      "data_parallel_shard_degree = -1, which takes the devices that the others leave",
      all,
      devices,
      all);
  require(
      p.data_parallel_shard_degree != -1 || (others == 1 && p.expert_parallel_degree == 1),
      "parallelism.data_parallel_shard_degree: -1 uses the devices that the other degrees leave, and the number of "
      "devices of a plan is not known; set a number, or --devices N");
  return all;
}
}  // namespace

ResolvedRun resolve(const train::TrainConfig& config, const train::TrainSpec& spec, int64_t devices) {
  require(
      !config.parallelism.fsdp_cpu_offload,
      "parallelism.fsdp_cpu_offload: a plan cannot model copies to the host and an optimizer there; expected false");
  require(
      !config.distillation.teacher,
      "distillation.teacher: a plan cannot model the work and the memory of a teacher; plan without this key, and add "
      "the teacher's weights to the memory of each rank");
  ResolvedRun run{.config = config};
  train::TrainConfig& c = run.config;
  const int64_t world = world_of(c.parallelism, devices);
  const auto transport = mesh::fake_transport(0, world);
  const train::Ranks ranks(c.parallelism, transport.get());
  run.mesh = train::mesh_of(c.parallelism, world);
  c.parallelism.data_parallel_shard_degree = run.mesh.data_parallel_shard;
  if (c.training.global_batch_size < 0) {
    c.training.global_batch_size = c.training.local_batch_size * ranks.data_parallel_size();
  }
  run.args = spec.build.model_args(c, spec.family, *data::load_tokenizer("byte", "tokenizer.path"));
  train::check_mesh(c, *run.args, ranks);
  run.rows = run.mesh.pipeline_parallel > 1 ? train::microbatch_rows(c) : c.training.local_batch_size;
  run.microbatches = c.training.rows_per_step() / ranks.data_parallel_size() / run.rows;
  return run;
}

bool keeps_gathered(const train::TrainConfig& config) {
  return config.parallelism.pipeline_parallel_degree > 1 &&
         config.parallelism.fsdp_reshard_after_forward == shard::ReshardPolicy::never;
}

pipeline::Program program_of(const ResolvedRun& run) {
  if (run.mesh.pipeline_parallel > 1) {
    return train::build_pipeline_program(run.config, run.microbatches);
  }
  return pipeline::build_program({.num_microbatches = run.microbatches});
}

}  // namespace lehr::plan
