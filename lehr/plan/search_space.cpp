#include "lehr/plan/search_space.h"

#include <numeric>

#include "lehr/base/error.h"

namespace lehr::plan {

namespace {
std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> found;
  for (int64_t d = 1; d <= n; ++d) {
    if (n % d == 0) {
      found.push_back(d);
    }
  }
  return found;
}
}  // namespace

std::vector<MeshPoint> all_meshes(
    const train::TrainConfig& config,
    int64_t devices,
    int64_t num_layers,
    int64_t num_experts,
    const std::vector<int64_t>& rows) {
  const train::TrainingConfig& training = config.training;
  std::vector<MeshPoint> points;
  for (const int64_t tp : divisors(devices)) {
    for (const int64_t cp : divisors(devices / tp)) {
      if (training.seq_len % ((cp > 1 ? 2 * cp : 1) * tp) != 0) {
        continue;
      }
      for (const int64_t pp : divisors(devices / tp / cp)) {
        if (pp > num_layers) {
          break;
        }
        const int64_t data = devices / tp / cp / pp;
        for (const int64_t shard : divisors(data)) {
          for (const int64_t ep : num_experts > 0 ? divisors(shard * cp * tp) : std::vector<int64_t>{1}) {
            for (const int64_t r : rows) {
              if (training.global_batch_size % (data * r) == 0) {
                points.push_back(
                    {.mesh =
                         {.pipeline_parallel = pp,
                          .data_parallel_replicate = data / shard,
                          .data_parallel_shard = shard,
                          .context_parallel = cp,
                          .tensor_parallel = tp,
                          .expert_parallel = ep},
                     .rows = r,
                     .microbatches = training.global_batch_size / data / r,
                     .expert_parts =
                         ep > 1 ? std::gcd(config.parallelism.expert_parallel_parts, num_experts / ep) : 1});
              }
            }
          }
        }
      }
    }
  }
  return points;
}

std::vector<Trade> all_trades(const MeshPoint& point) {
  using shard::ReshardPolicy;
  const bool shares = point.mesh.data_parallel_shard * point.mesh.context_parallel > 1;
  const auto policies = shares ? std::vector{ReshardPolicy::all_but_last, ReshardPolicy::never, ReshardPolicy::always}
                               : std::vector{ReshardPolicy::all_but_last};
  std::vector<Trade> trades;
  for (const char* checkpointing : {"none", "op 2", "2", "op", "full"}) {
    for (const bool reduce_each : {false, true}) {
      if (reduce_each || (shares && point.microbatches > 1)) {
        for (const ReshardPolicy policy : policies) {
          trades.push_back({checkpointing, policy, reduce_each});
        }
      }
    }
  }
  return trades;
}

std::vector<pipeline::ScheduleOptions> all_schedules_of(const MeshPoint& point, int64_t num_layers) {
  std::vector<pipeline::ScheduleOptions> found;
  const int64_t ranks = point.mesh.pipeline_parallel;
  if (ranks == 1) {
    return {{.num_microbatches = point.microbatches}};
  }
  for (const pipeline::ScheduleInfo& info : pipeline::all_schedules()) {
    if (!info.has_backward) {
      continue;
    }
    for (const int64_t times : {1, 2, 3, 4, 6}) {
      const pipeline::ScheduleOptions options{
          .schedule = info.schedule,
          .num_ranks = ranks,
          .num_stages_per_rank = times * info.default_stages_per_rank,
          .num_microbatches = point.microbatches};
      if ((times > 1 && info.max_stages_per_rank != 0) || ranks * options.num_stages_per_rank > num_layers) {
        break;
      }
      try {
        pipeline::check_schedule_options(options);
        found.push_back(options);
      } catch (const Error&) {  // not defined for so few micro-batches
        break;
      }
    }
  }
  return found;
}

train::TrainConfig with_choices(
    const train::TrainConfig& config,
    const MeshPoint& point,
    const Trade& trade,
    const pipeline::ScheduleOptions& schedule) {
  train::TrainConfig chosen = config;
  auto& p = chosen.parallelism;
  p.data_parallel_replicate_degree = point.mesh.data_parallel_replicate;
  p.data_parallel_shard_degree = point.mesh.data_parallel_shard;
  p.context_parallel_degree = point.mesh.context_parallel;
  p.tensor_parallel_degree = point.mesh.tensor_parallel;
  p.expert_parallel_degree = point.mesh.expert_parallel;
  p.expert_parallel_parts = point.expert_parts;
  p.pipeline_parallel_degree = point.mesh.pipeline_parallel;
  p.fsdp_reshard_after_forward = trade.reshard;
  p.fsdp_reduce_each_microbatch = trade.reduce_each;
  p.pipeline_parallel_microbatch_size = -1;
  if (point.mesh.pipeline_parallel > 1) {
    p.pipeline_parallel_schedule = pipeline::schedule_info(schedule.schedule).name;
    p.pipeline_parallel_stages_per_rank = schedule.num_stages_per_rank;
  } else {
    p.pipeline_parallel_first_stage_less_layers = 0;
    p.pipeline_parallel_last_stage_less_layers = 0;
  }
  chosen.training.local_batch_size = point.rows;
  const bool is_mode = trade.checkpointing == "none" || trade.checkpointing == "full";
  chosen.activation_checkpoint.mode = is_mode ? trade.checkpointing : "selective";
  if (!is_mode) {
    chosen.activation_checkpoint.selective_ac_option = trade.checkpointing;
  }
  return chosen;
}

}  // namespace lehr::plan
