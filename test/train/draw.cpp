#include "test/train/draw.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "lehr/base/random.h"

namespace lehr::train::testing {

namespace {
// The random choices of one draw.
class Dice {
 public:
  Dice(uint64_t seed, int64_t number) : stream_(seed, fmt::format("draw {}", number)) {}
  /// Whether to draw something that this draw refuses if `refused`: rarely then.
  bool allows(bool refused) { return !refused || chance(0.1); }
  bool chance(double probability) { return stream_.uniform(next_++) < probability; }
  template <class T>
  T one_of(std::initializer_list<T> list) {
    return list.begin()[index(list.size())];
  }
  template <class T>
  T one_of(const std::vector<T>& list) {
    return list[index(list.size())];
  }

 private:
  size_t index(size_t count) { return static_cast<size_t>(stream_.uniform(next_++) * static_cast<double>(count)); }
  RandomStream stream_;
  uint64_t next_ = 0;
};

constexpr int64_t kMostRanks = 8;

// Degrees are multiplied one after the other while they fit. Three ranks along an axis find what holds for powers of
// two only; attention heads cannot be split into three.
Mesh draw_mesh(Dice& dice, bool experts) {
  Mesh mesh;
  struct Axis {
    int64_t* degree;
    std::vector<int64_t> degrees;
  };
  std::vector<Axis> axes{
      {&mesh.pp, {2, 2, 3, 4}},
      {&mesh.dp_replicate, {2, 2, 4}},
      {&mesh.dp_shard, {2, 2, 3, 4}},
      {&mesh.cp, {2, 2, 3, 4}},
      {&mesh.tp, {2, 2, 4, 8}}};
  const size_t first = dice.one_of<size_t>({0, 1, 2, 3, 4});
  for (size_t i = 0; i < axes.size(); ++i) {
    const Axis& axis = axes[(first + i) % axes.size()];
    const int64_t degree = dice.one_of(axis.degrees);
    if (degree * mesh.world() <= kMostRanks && (i == 0 || dice.chance(0.6))) {
      *axis.degree = degree;
    }
  }
  if (experts && dice.chance(0.7)) {
    std::vector<int64_t> fit;
    for (const int64_t ep : {2, 4, 8}) {
      if (mesh.dp_shard * mesh.cp * mesh.tp % ep == 0) {
        fit.push_back(ep);
      }
    }
    mesh.ep = fit.empty() ? 1 : dice.one_of(fit);
  }
  return mesh;
}

bool is_nemotron_h(const std::string& name) {
  return name == "nemotron_h" || name == kNemotronHWithExperts;
}

// The bias for expert selection cannot be left out.
bool needs_expert_bias(const std::string& name) {
  return name == "deepseek_v3" || name == "glm4_moe" || name == "minimax_m2" || is_nemotron_h(name);
}

// Nemotron-H has a head of its own in any case.
bool can_tie(const std::string& name) {
  return !is_nemotron_h(name);
}

Overrides draw_shape(Dice& dice, const std::string& name, const Mesh& mesh, bool experts) {
  Overrides shape = family(name);
  const auto set = [&](const char* key, const std::string& value) {
    shape.emplace_back(std::string("model.args.") + key, value);
  };
  if (name != "deepseek_v3") {                   // whose latent attention has a key and a value per head
    const bool one = dice.allows(mesh.tp == 8);  // a head has 4 rows, one for each rank that shares it
    set("num_key_value_heads", dice.one_of<std::string>({one ? "1" : "8", "2", "4", "8"}));
  }
  set("intermediate_size", dice.one_of<std::string>({"32", "48"}));
  set("tie_word_embeddings", can_tie(name) ? dice.one_of<std::string>({"true", "false"}) : "false");
  if (experts) {
    set("num_experts_per_tok", dice.one_of<std::string>({"2", "3"}));
    set("expert_bias", needs_expert_bias(name) ? "true" : dice.one_of<std::string>({"true", "false"}));
  }
  if (name == "qwen3_moe" && dice.chance(0.3)) {
    set("mlp_only_layers", "[1]");
  }
  if (form_of(name).delta_net) {
    set("full_attention_interval", dice.one_of<std::string>({"2", "4"}));
  }
  return shape;
}

// Pairs: the sequences of an example, and those of a base or a teacher, which other runs change.
void draw_pairs(Dice& dice, Draw& draw) {
  draw.texts = dice.one_of<int64_t>({2, 2, 3});
  const auto set = [&](const char* key, const std::string& value) { draw.shape.emplace_back(key, value); };
  set("training.contrastive_temperature", "0.3");
  set("data.datasets.0.negative_key", draw.texts == 3 ? "\"negative\"" : "\"\"");
  set("training.local_batch_size", std::to_string(2 * draw.texts));
  set("training.global_batch_size", std::to_string(2 * draw.texts));
  set("validation.local_batch_size", std::to_string(draw.texts));
}

void draw_task(Dice& dice, Draw& draw, const std::filesystem::path& examples) {
  const auto set = [&](const std::string& key, const std::string& value) { draw.shape.emplace_back(key, value); };
  const std::string task = dice.one_of<std::string>(
      {"causal_lm", "causal_lm", "causal_lm", "classification", "token_classification", "embedding", "sft"});
  set("training.seq_len", task == "sft" ? "96" : "48");
  if (task == "causal_lm") {
    set("data.packing", dice.one_of<std::string>({"concat", "whole"}));
    set("data.datasets.0.split_documents", dice.one_of<std::string>({"\"\"", "\"blank_line\""}));
    return;
  }
  set("training.task", task);
  set("data.datasets.0.split_documents", "\"\"");
  set("data.validation_fraction", "0");
  if (task != "sft") {
    // Texts have the same padding on every mesh.
    const int64_t parts = (draw.mesh.cp > 1 ? 2 * draw.mesh.cp : 1) * draw.mesh.tp;
    set("data.datasets.0.pad_to_multiple_of", std::to_string(std::lcm<int64_t>(parts, 8)));
    set("data.datasets.0.path", '"' + (examples / (task + ".jsonl")).string() + '"');
    set("data.datasets.0.kind", task == "embedding" ? "pairs" : task);
    set("data.validation_path", '"' + (examples / (task + "_validation.jsonl")).string() + '"');
    if (task == "embedding") {
      draw_pairs(dice, draw);
      return;
    }
    set("training.num_labels", task == "token_classification" ? "3" : "2");
    draw.run.emplace_back("training.classifier_dropout", dice.one_of<std::string>({"0", "0.2"}));
    return;
  }
  set("model.args.vocab_size", "1024");
  set("model.args.max_position_embeddings", "128");
  set("tokenizer.path", "\"recipe/data/chat_tokenizer\"");
  set("data.validation_path", "\"recipe/data/instructions_validation.json\"");
  set("data.datasets.0.path", "\"recipe/data/instructions.json\"");
  set("data.datasets.0.kind", "\"chat\"");
  set("data.datasets.0.prompt_key", "\"instruction\"");
  set("data.datasets.0.input_key", "\"input\"");
  set("data.datasets.0.answer_key", "\"output\"");
}

void draw_optimizer(Dice& dice, Draw& draw) {
  const auto set = [&](const char* key, const std::string& value) {
    draw.run.emplace_back(std::string("optimizer.") + key, value);
  };
  const std::string name = dice.one_of<std::string>({"adamw", "adam", "sgd", "muon"});
  set("name", name);
  // Small enough that a step does not amplify rounding: adapters begin with large steps, those of Gemma 4 with the
  // largest, and contrasts have larger gradients. Muon gives all directions of a matrix the same size, also those of an
  // adapter that are rounding.
  const bool large_steps = draw.texts > 1 || (draw.adapters && draw.family.starts_with("gemma4"));
  const bool small_steps = large_steps || (draw.adapters && name == "muon");
  set("lr", name != "sgd" ? (small_steps ? "0.002" : "0.01") : large_steps ? "0.002" : draw.adapters ? "0.02" : "0.2");
  if (name == "sgd") {
    set("momentum", "0.9");
    set("nesterov", dice.one_of<std::string>({"true", "false"}));
  }
  if (draw.family == kGemma4Small && draw.adapters && name != "sgd") {
    set("eps", "1e-3");  // beside 1e-8, some gradients of adapters are so small that a step amplifies their rounding
  }
  if (name == "muon") {
    set("muon_scale", dice.one_of<std::string>({"original", "match_rms_adamw"}));
    if (dice.chance(0.3)) {
      set("muon_exclude", "\"norm\"");  // not the default: embeddings and head are updated by Muon, too
    }
  }
  if (dice.chance(0.3)) {
    const bool attention_only = std::any_of(draw.run.begin(), draw.run.end(), [](const auto& entry) {
      return entry.first == "peft.target_pattern" || entry.second == "full_tune";
    });
    const char* const pattern = attention_only ? "attn" : is_nemotron_h(draw.family) ? "mamba" : "mlp";
    set("param_groups", fmt::format(R"([{{pattern = "{}", lr_multiplier = 0.5, weight_decay = 0.01}}])", pattern));
  }
  draw.run.emplace_back("training.max_norm", dice.one_of<std::string>({"0", "0.5"}));
}

void draw_adapters(Dice& dice, Draw& draw, bool experts) {
  const auto set = [&](const char* key, const std::string& value) {
    draw.run.emplace_back(std::string("peft.") + key, value);
  };
  const bool mamba = is_nemotron_h(draw.family);
  draw.adapters = dice.chance(0.3);
  if (!draw.adapters) {
    if (dice.chance(0.1)) {
      set("method", "full_tune");
      set("full_tune_pattern", mamba ? R"('.*(mamba|attn|mlp).*|.*norm')" : R"('.*attn.*|.*\.norm')");
    }
    return;
  }
  set("method", "lora");
  // The experts of these families are stored in one tensor, and take no adapters.
  const bool experts_together = draw.family == "gpt_oss" || draw.family == kGemma4WithExperts;
  const bool attention_only = experts_together || dice.chance(0.3);
  // Qwen3.5 stores the input projections of gated DeltaNet in two tensors each, so these take none either.
  const bool stored_apart = draw.family.starts_with("qwen3_5");
  if (attention_only) {
    set("target_pattern", dice.allows(stored_apart) ? R"('.*attn\..*_proj.*')" : R"('.*attn\.(q|k|v|o|out)_proj')");
  } else if (mamba && !dice.allows(true)) {
    set("target_pattern", R"('.*\.(q|k|v|o|out|up|down)_proj')");  // mostly without in_proj
  }
  set("r", "3");
  const bool drops = dice.allows(experts && !attention_only);
  set("dropout", dice.one_of<std::string>({"0", drops ? "0.25" : "0"}));
  set("use_rslora", dice.one_of<std::string>({"true", "false"}));
  if (dice.chance(0.3)) {
    set("full_tune_pattern", R"('model\.norm')");
  }
}

void draw_recomputation(Dice& dice, Draw& draw) {
  const std::string mode = dice.one_of<std::string>({"auto", "none", "full", "selective", "selective"});
  draw.on_mesh.emplace_back("activation_checkpoint.mode", mode);
  if (mode == "selective") {
    draw.on_mesh.emplace_back(
        "activation_checkpoint.selective_ac_option",
        dice.one_of<std::string>({"\"1\"", "\"2\"", "\"op\"", "\"op 2\""}));
  }
}

// Layers are a multiple of the stages, or some more. Returns the number of stages.
int64_t draw_pipeline(Dice& dice, Draw& draw) {
  int64_t stages = 1, layers = 1;
  if (draw.mesh.pp > 1) {
    const Schedule schedule = dice.one_of(kSchedules);
    layers = stages = draw.mesh.pp * schedule.stages_per_rank;
    for (const auto& entry : of(schedule)) {
      draw.on_mesh.push_back(entry);
    }
    if (dice.chance(0.2)) {
      draw.on_mesh.emplace_back("parallelism.pipeline_parallel_balance", "cost");
    } else if (dice.chance(0.2)) {
      draw.on_mesh.emplace_back("parallelism.pipeline_parallel_last_stage_less_layers", "1");
      layers = 2 * stages - 1;  // two layers in each stage but the last
    }
  }
  const int64_t more = dice.one_of<int64_t>({0, 0, 1, 2});
  // Mamba-2, attention, experts if there are some, and a feed-forward block; or two layers that read the keys and
  // values of two others.
  const bool four = draw.family == kNemotronHWithExperts || draw.family == kGemma4Small;
  const int64_t fewest = four ? 4 : is_nemotron_h(draw.family) ? 3 : 2;
  draw.shape.emplace_back("model.args.num_hidden_layers", std::to_string(std::max(layers, fewest) + more));
  return stages;
}

void draw_memory(Dice& dice, Draw& draw) {
  const auto set = [&](const char* key, const std::string& value) {
    draw.on_mesh.emplace_back(std::string("parallelism.") + key, value);
  };
  set("fsdp_reshard_after_forward", dice.one_of<std::string>({"default", "always", "never"}));
  set("fsdp_reduce_each_microbatch", dice.one_of<std::string>({"true", "false"}));
  set("fsdp_cpu_offload", dice.chance(0.25) ? "true" : "false");
  set("tensor_parallel_regather", dice.one_of<std::string>({"true", "false"}));
  set("context_parallel_rotate_method", dice.one_of<std::string>({"allgather", "ring"}));
}

std::string value_of(const Overrides& overrides, const std::string& key) {
  const auto found =
      std::find_if(overrides.rbegin(), overrides.rend(), [&](const auto& one) { return one.first == key; });
  return found == overrides.rend() ? "" : found->second;
}

// A teacher of any family, which has the model's depth if layers are compared. `data` are the overrides of the task.
void draw_teacher(
    Dice& dice, Draw& draw, const std::vector<std::string>& families, const Overrides& data, int64_t stages) {
  const std::string task = value_of(data, "training.task");
  if (!dice.chance(0.25) || !dice.allows(!task.empty() && task != "sft")) {
    return;
  }
  const std::string of_family = dice.one_of(families);
  const bool compares_layers = dice.chance(0.6);
  const int64_t fewest = dice.allows(stages > 1) ? 1 : stages;
  const std::string layers = compares_layers ? value_of(draw.shape, "model.args.num_hidden_layers")
                                             : std::to_string(fewest + dice.one_of<int64_t>({0, 1, 2}));
  // The third layer of that flavor is the first with experts, whose keys a shorter model does not have.
  const bool too_short = of_family == kNemotronHWithExperts && std::stoll(layers) < 3;
  draw.teacher = family(too_short ? "nemotron_h" : of_family);
  draw.teacher->insert(draw.teacher->end(), data.begin(), data.end());
  draw.teacher->emplace_back("model.args.num_hidden_layers", layers);
  draw.teacher->emplace_back(
      "model.args.tie_word_embeddings", can_tie(of_family) ? dice.one_of<std::string>({"true", "false"}) : "false");
  const auto set = [&](const char* key, const std::string& value) {
    draw.run.emplace_back(std::string("distillation.") + key, value);
  };
  set("cosine_weight", compares_layers ? "0.7" : "0");
  set("loss_weight", dice.one_of<std::string>({"0", "0.3"}));
  set("temperature", dice.one_of<std::string>({"1", "1.5"}));
}

// Checks that must change nothing.
void draw_checks(Dice& dice, Draw& draw) {
  if (dice.chance(0.2)) {
    draw.on_mesh.emplace_back("reliability.hash_every_n_steps", "2");
  }
  if (dice.chance(0.2)) {
    draw.on_mesh.emplace_back("reliability.recompute_every_n_steps", "2");
  }
}

// Sequences of a step, of a forward pass on the mesh, and of one on one device. Losses over the tokens of a forward
// pass need the same ones there, and a contrast of pairs those of all data-parallel ranks; all others do not depend on
// them. Returns true if a pipeline's forwards are of single sequences.
bool draw_batches(Dice& dice, Draw& draw, bool depends_on_batch, bool router_losses) {
  const int64_t row_ranks = draw.mesh.dp_replicate * draw.mesh.dp_shard;
  const bool embeds = draw.texts > 1;
  // One pair alone has no negatives.
  const int64_t local = draw.texts * (embeds && row_ranks == 1 ? 2 : 1) * dice.one_of<int64_t>({1, 1, 2});
  const int64_t together = local * row_ranks;
  // Schedules need up to two micro-batches per stage of a rank.
  const int64_t rows = together * (draw.mesh.pp > 1 ? 2 * draw.mesh.pp : dice.one_of<int64_t>({1, 2, 3}));
  draw.run.emplace_back("training.global_batch_size", std::to_string(rows));
  draw.on_mesh.emplace_back("training.local_batch_size", std::to_string(local));
  const bool one_by_one =
      draw.mesh.pp > 1 && local > 1 && dice.allows(router_losses || embeds) && dice.chance(0.5);  // in the pipeline
  if (one_by_one) {
    draw.on_mesh.emplace_back("parallelism.pipeline_parallel_microbatch_size", "1");
  }
  const int64_t other = dice.one_of<int64_t>({1, 2, 4});
  const int64_t alone = embeds ? together : depends_on_batch ? (one_by_one ? 1 : local) : rows % other == 0 ? other : 1;
  draw.alone.emplace_back("training.local_batch_size", std::to_string(alone));
  const int64_t validated = draw.texts * dice.one_of<int64_t>({1, 2, 3, 8});
  draw.on_mesh.emplace_back("validation.local_batch_size", std::to_string(validated));
  draw.alone.emplace_back("validation.local_batch_size", std::to_string(embeds ? validated * row_ranks : validated));
  draw.run.emplace_back("validation.freq", "3");
  return one_by_one;
}

// Another mesh for the second half, with as many ranks along dp, so that batches fit.
std::optional<Mesh> draw_second(Dice& dice, const Mesh& mesh, bool experts) {
  if (!dice.chance(0.25)) {
    return std::nullopt;
  }
  Mesh then{.dp_replicate = mesh.dp_shard, .dp_shard = mesh.dp_replicate};
  then.tp = 2 * then.world() <= kMostRanks ? 2 : 1;
  then.ep = experts && then.tp * then.dp_shard % 2 == 0 ? 2 : 1;
  return then;
}

// Multi-token prediction, in families that have it.
void draw_mtp(Dice& dice, Draw& draw) {
  if (!debug_model(draw.family).keeps_mtp_modules()) {
    return;
  }
  const bool deepseek = draw.family == "deepseek_v3";
  const std::string task = draw.value("training.task");
  const bool other_task = !task.empty() && task != "sft";
  if (draw.adapters && other_task) {
    return;  // whose base would be refused, too, before the run is
  }
  const bool refused = draw.adapters || other_task;
  if (dice.chance(0.4) && dice.allows(refused)) {
    draw.shape.emplace_back("training.mtp_loss_coef", "0.3");
    draw.shape.emplace_back(
        "model.args.num_nextn_predict_layers", dice.one_of<std::string>({"1", deepseek ? "2" : "1"}));
  }
}

// One weight for embeddings and head, in a family that refuses it. A base of adapters could not be trained then.
void draw_tied(Dice& dice, Draw& draw) {
  if (!can_tie(draw.family) && !draw.adapters && dice.allows(true)) {
    draw.shape.emplace_back("model.args.tie_word_embeddings", "true");
  }
}

// Experts in parts, of which a rank has eight over its number; the second mesh has the same setting.
void draw_expert_parts(Dice& dice, Draw& draw) {
  const int64_t most = std::max(draw.mesh.ep, draw.then ? draw.then->ep : 1);
  if (draw.mesh.ep > 1 && dice.chance(0.5) && dice.allows(most == 8)) {
    const std::string parts = dice.one_of<std::string>({"2", most == 2 ? "4" : "2"});
    draw.on_mesh.emplace_back("parallelism.expert_parallel_parts", parts);
  }
}

// Settings that change where the second mesh takes over.
void draw_changes(Dice& dice, Draw& draw) {
  if (!draw.then || !dice.chance(0.5)) {
    return;
  }
  const auto rows = std::find_if(
      draw.run.begin(), draw.run.end(), [](const auto& entry) { return entry.first == "training.global_batch_size"; });
  draw.changed = {
      {"checkpoint.allow_changes", R"(["batch_size", "seq_len", "data"])"},
      {rows->first, std::to_string(2 * std::stoll(rows->second))}};
  if (dice.chance(0.5)) {
    draw.changed.emplace_back("training.seq_len", "64");
  }
  if (dice.chance(0.5)) {
    draw.changed.emplace_back("data.seed", "9");
  }
}

// Whether experts on this mesh have the tokens of several data ranks together, and not those of a micro-batch.
bool mixes_data_ranks(const Mesh& mesh) {
  return mesh.cp * mesh.tp % mesh.ep != 0;
}

// Scales of `rowwise` in the weight gradients of experts are those of one device on the other meshes.
void draw_float8_experts(Dice& dice, Draw& draw, const std::string& recipe) {
  const bool mixes = mixes_data_ranks(draw.mesh) || (draw.then && mixes_data_ranks(*draw.then));
  if (!recipe.empty() && dice.chance(0.6) && !(recipe == "rowwise" && mixes)) {
    draw.run.emplace_back("float8.moe_fqns", R"(['.*\.grouped_experts\..*'])");
    draw.shape.emplace_back("model.args.moe_intermediate_size", "16");  // also of a base for adapters
  }
}

std::string words(const Overrides& overrides) {
  std::string text;
  for (const auto& [key, value] : overrides) {
    text += fmt::format(" {}={}", key, value);
  }
  return text;
}
}  // namespace

Draw draw_run(
    uint64_t seed, int64_t number, const std::vector<std::string>& families, const std::filesystem::path& examples) {
  Dice dice(seed, number);
  Draw draw;
  draw.family = dice.one_of(families);
  const bool experts = debug_model(draw.family).has_experts();
  draw.mesh = draw_mesh(dice, experts);
  draw.shape = draw_shape(dice, draw.family, draw.mesh, experts);
  const auto model_keys = static_cast<std::ptrdiff_t>(draw.shape.size());
  draw_task(dice, draw, examples);
  const Overrides data(draw.shape.begin() + model_keys, draw.shape.end());
  const int64_t stages = draw_pipeline(dice, draw);
  draw_adapters(dice, draw, experts);
  draw_optimizer(dice, draw);
  draw_recomputation(dice, draw);
  draw_memory(dice, draw);
  // One device runs the pairs of all data-parallel ranks at once, and router losses and some scales of float8 would be
  // those of all.
  const bool several_forwards = draw.texts > 1 && draw.mesh.dp_replicate * draw.mesh.dp_shard > 1;
  const bool router_losses = experts && !several_forwards && dice.chance(0.6);
  if (experts && !router_losses) {
    draw.shape.emplace_back("training.router_aux_loss_coef", "0");
    draw.shape.emplace_back("training.router_z_loss_coef", "0");
  }
  std::string float8;
  if (dice.chance(0.25)) {
    float8 = several_forwards ? "rowwise_with_gw_hp" : dice.one_of<std::string>({"rowwise", "rowwise_with_gw_hp"});
    draw.run.emplace_back("float8.enable", "true");
    draw.run.emplace_back("float8.recipe", float8);
    if (!dice.allows(draw.family == "deepseek_v3" && draw.mesh.tp > 1)) {
      draw.run.emplace_back("float8.exclude", R"(['.*_a_proj.*'])");
    }
  }
  draw_teacher(dice, draw, families, data, stages);
  draw_checks(dice, draw);
  const bool one_by_one = draw_batches(dice, draw, router_losses || float8 == "rowwise", router_losses);
  draw.then = draw_second(dice, draw.mesh, experts);
  if (draw.then && float8 == "rowwise" && one_by_one) {
    draw.then.reset();  // it has no pipeline, so its forwards would be of several sequences
  }
  draw_changes(dice, draw);
  if (experts) {
    draw_float8_experts(dice, draw, float8);
  }
  draw_mtp(dice, draw);  // last, so that draws of other families are the same without it
  draw_tied(dice, draw);
  draw_expert_parts(dice, draw);
  return draw;
}

std::string Draw::text() const {
  return fmt::format(
      "{} on {}{}{}{}, both:{}{}; one device:{}; mesh:{}",
      family,
      mesh.name(),
      then ? ", then " + then->name() + words(changed) : "",
      adapters ? ", adapters" : "",
      teacher ? ", teacher:" + words(*teacher) : "",
      words(shape),
      words(run),
      words(alone),
      words(on_mesh));
}

std::string Draw::value(const std::string& key) const {
  for (const Overrides* const part : {&on_mesh, &run, &shape}) {
    if (const std::string found = value_of(*part, key); !found.empty()) {
      return found;
    }
  }
  return "";
}

}  // namespace lehr::train::testing
