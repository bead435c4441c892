// Text report of a search.
#include <fmt/format.h>

#include "lehr/base/log.h"
#include "lehr/plan/report.h"
#include "lehr/plan/search.h"

namespace lehr::plan {

namespace {
const char* name_of(shard::ReshardPolicy policy) {
  switch (policy) {
    case shard::ReshardPolicy::always:
      return "always";
    case shard::ReshardPolicy::never:
      return "never";
    default:
      return "default";
  }
}

std::string keys_of(const train::TrainConfig& config) {
  const auto& p = config.parallelism;
  std::string text = fmt::format(
      "[training]\nlocal_batch_size = {}\nglobal_batch_size = {}\n\n[parallelism]\n"
      "data_parallel_replicate_degree = {}\ndata_parallel_shard_degree = {}\ntensor_parallel_degree = {}\n"
      "context_parallel_degree = {}\nexpert_parallel_degree = {}\npipeline_parallel_degree = {}\n",
      config.training.local_batch_size,
      config.training.global_batch_size,
      p.data_parallel_replicate_degree,
      p.data_parallel_shard_degree,
      p.tensor_parallel_degree,
      p.context_parallel_degree,
      p.expert_parallel_degree,
      p.pipeline_parallel_degree);
  if (p.expert_parallel_degree > 1) {
    text += fmt::format("expert_parallel_parts = {}\n", p.expert_parallel_parts);
  }
  if (p.pipeline_parallel_degree > 1) {
    text += fmt::format(
        "pipeline_parallel_schedule = \"{}\"\npipeline_parallel_stages_per_rank = {}\n",
        p.pipeline_parallel_schedule,
        p.pipeline_parallel_stages_per_rank);
    text += fmt::format("pipeline_parallel_microbatch_size = {}\n", p.pipeline_parallel_microbatch_size);
  }
  text += fmt::format(
      "fsdp_reshard_after_forward = \"{}\"\nfsdp_reduce_each_microbatch = {}\n\n[activation_checkpoint]\nmode = "
      "\"{}\"\n",
      name_of(p.fsdp_reshard_after_forward),
      p.fsdp_reduce_each_microbatch,
      config.activation_checkpoint.mode);
  if (config.activation_checkpoint.mode == "selective") {
    text += fmt::format("selective_ac_option = \"{}\"\n", config.activation_checkpoint.selective_ac_option);
  }
  return text;
}

std::string described(const train::ActivationCheckpointConfig& checkpointing) {
  return checkpointing.mode == "selective" ? fmt::format("\"{}\"", checkpointing.selective_ac_option)
                                           : checkpointing.mode;
}
}  // namespace

std::string search_text(const SearchResult& result, const Machine& machine) {
  std::string effort = fmt::format(
      "{} meshes, {} layer layouts measured, {} steps simulated\n", result.meshes, result.layouts, result.simulated);
  if (!result.window_difference.empty()) {
    effort += fmt::format(
        "Meshes were compared as if all layers had one window ({}); one that is nearly as good may be missing. The plans "
        "below are of the model itself.\n",
        result.window_difference);
  }
  if (result.best.empty()) {
    return effort + fmt::format(
                        "nothing fits into {:.2f} GB; the lowest memory of all configurations tried is {:.2f} GB\n",
                        machine.usable_bytes() / 1e9,
                        result.least_bytes / 1e9);
  }
  std::vector<std::vector<std::string>> rows;
  for (const Candidate& one : result.best) {
    const auto& p = one.config.parallelism;
    rows.push_back(
        {one.plan.run.mesh.describe(),
         p.pipeline_parallel_degree > 1
             ? fmt::format("{} x {}", p.pipeline_parallel_schedule, p.pipeline_parallel_stages_per_rank)
             : "-",
         std::to_string(one.plan.run.rows),
         described(one.config.activation_checkpoint),
         name_of(p.fsdp_reshard_after_forward),
         p.fsdp_reduce_each_microbatch ? "micro-batch" : "step",
         fmt::format("{:.3f}", one.plan.step_seconds),
         human_count(one.plan.tokens_per_second),
         fmt::format("{:.1f} %", 100 * one.plan.mfu),
         fmt::format("{:.1f} %", 100 * one.plan.bubble_share),
         fmt::format("{:.1f}", one.plan.peak_bytes() / 1e9)});
  }
  return effort + "\n" +
         text_table(
             {"",
              "schedule",
              "sequences",
              "checkpointing",
              "reshard",
              "reduce per",
              "step s",
              "tokens/s",
              "MFU",
              "bubble",
              "GB"},
             rows) +
         "\nKeys of the first one:\n\n" + keys_of(result.best.front().config);
}

}  // namespace lehr::plan
