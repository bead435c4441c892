#include "test/train/features.h"

#include <algorithm>
#include <map>

namespace lehr::train::testing {

namespace {
const std::map<std::string, std::string> kClassOfSchedule{
    {"GPipe", "one_forward_one_backward"},
    {"1F1B", "one_forward_one_backward"},
    {"LoopedBFS", "interleaved"},
    {"Interleaved1F1B", "interleaved"},
    {"ZBH1", "zero_bubble"},
    {"ZBH2", "zero_bubble"},
    {"InterleavedZeroBubble", "zero_bubble"},
    {"ZBVZeroBubble", "zero_bubble"},
    {"DualPipeV", "dual_pipe_v"}};

std::string recomputation(const Draw& draw) {
  const std::string mode = draw.value("activation_checkpoint.mode");
  if (mode != "selective") {
    return mode == "none" ? "recompute_none" : mode == "full" ? "recompute_full" : "";
  }
  const bool operators = draw.value("activation_checkpoint.selective_ac_option").find("op") != std::string::npos;
  return operators ? "recompute_operators" : "recompute_layers";
}

std::string task(const Draw& draw) {
  const std::string name = draw.value("training.task");
  return name.empty() ? draw.value("data.packing") : name;
}
}  // namespace

FeatureSet features(const Draw& draw) {
  FeatureSet found;
  const auto add = [&](bool has, const std::string& name) {
    if (has && !name.empty()) {
      found.insert(name);
    }
  };
  const Mesh& mesh = draw.mesh;
  add(mesh.dp_replicate > 1, "dp_replicate");
  add(mesh.dp_shard > 1, "dp_shard");
  add(mesh.cp > 1, "cp");
  add(mesh.tp > 1, "tp");
  add(mesh.ep > 1, "ep");
  add(mesh.pp > 1, "pp");
  add(draw.then.has_value(), "second_mesh");
  if (mesh.pp > 1) {
    add(true, kClassOfSchedule.at(draw.value("parallelism.pipeline_parallel_schedule")));
  }
  add(draw.value("parallelism.pipeline_parallel_microbatch_size") == "1", "smaller_microbatch");
  const bool experts = !draw.value("model.args.num_experts").empty();
  add(true, experts ? "moe" : "dense");
  const descriptor::DecoderForm form = form_of(draw.family);
  add(form.delta_net.has_value(), "gated_deltanet");
  add(form.mamba2.has_value(), "mamba2");
  add(form.latent_attention.has_value(), "latent_attention");
  add(std::any_of(form.windows.begin(), form.windows.end(), [](int64_t window) { return window > 0; }), "windows");
  add(form.num_kv_shared_layers > 0 || form.hidden_size_per_layer_input > 0, "cross_layer");
  add(draw.value("model.args.tie_word_embeddings") == "true", "tied");
  add(experts && draw.value("training.router_aux_loss_coef") != "0", "router_losses");
  const std::string ahead = draw.value("training.mtp_loss_coef");
  add(!ahead.empty() && ahead != "0", "mtp");
  add(true, task(draw));
  add(draw.value("data.datasets.0.split_documents") == "\"blank_line\"", "documents");
  add(true, draw.value("optimizer.name"));
  add(draw.adapters, "lora");
  add(!draw.value("peft.full_tune_pattern").empty(), "full_tune");
  const std::string dropout = draw.value("peft.dropout");
  add(!dropout.empty() && dropout != "0", "adapter_dropout");
  add(draw.teacher.has_value(), "teacher");
  const std::string recipe = draw.value("float8.recipe");
  add(recipe == "rowwise", "float8_rowwise");
  add(recipe == "rowwise_with_gw_hp", "float8_gw_hp");
  add(!draw.value("float8.moe_fqns").empty(), "float8_experts");
  add(true, recomputation(draw));
  add(!draw.value("parallelism.expert_parallel_parts").empty(), "expert_parts");
  add(draw.value("parallelism.fsdp_cpu_offload") == "true", "cpu_offload");
  add(!draw.value("reliability.recompute_every_n_steps").empty(), "recomputed_steps");
  return found;
}

}  // namespace lehr::train::testing
