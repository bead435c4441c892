#include "lehr/train/builders.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/config/json.h"
#include "lehr/data/tokenize_corpus.h"
#include "lehr/descriptor/config_keys.h"
#include "lehr/descriptor/text_config.h"
#include "lehr/optim/lr_schedule.h"
#include "lehr/train/embedding_task.h"

namespace lehr::train {

namespace {
// The key that names the run's tokenizer, and its value.
std::pair<std::string, std::string> tokenizer_of(const TrainConfig& config) {
  return config.tokenizer.path.empty() ? std::pair("model.hf_assets_path", config.model.hf_assets_path)
                                       : std::pair("tokenizer.path", config.tokenizer.path);
}

void choose_head(const TrainConfig& config, descriptor::ModelArgs& args) {
  const TrainingConfig& training = config.training;
  switch (head_of(training.task)) {
    case descriptor::Head::classification:
      args.set_classification(training.num_labels, training.classifier_dropout);
      return;
    case descriptor::Head::token_classification:
      args.set_token_classification(training.num_labels, training.classifier_dropout);
      return;
    case descriptor::Head::embedding:
      args.set_embedding();
      return;
    case descriptor::Head::causal_lm:
      break;
  }
  require(
      args.head() == descriptor::Head::causal_lm,
      "model.hf_assets_path: {} holds {}; set training.task = \"{}\"",
      config.model.hf_assets_path,
      descriptor::model_with(args.head()),
      descriptor::name_of(args.head()));
}

// The id that pads texts. A classifier's is never an ordinary token: transformers pools the last token that is not the
// padding id, so a text may not end with one.
int32_t padding_id(const TrainConfig& config, const data::Tokenizer& tokenizer) {
  const int32_t id = tokenizer.padding_id();
  const bool is_named = tokenizer.pad_id() || tokenizer.eos_id();
  const std::vector<int32_t> twice(2, id);  // some decoders leave a space at the start out
  require(
      is_named || config.training.task != TaskKind::classification || tokenizer.decode(twice, true).empty(),
      "{}: the tokenizer names no pad_token and no eos_token, and its id 0 is an ordinary token, so nothing can pad the "
      "texts of a classifier; name a pad_token in tokenizer_config.json beside tokenizer.json",
      tokenizer_of(config).first);
  return id;
}

// Whether the padding token of a model is its family's default, since its config.json has none. `path` is the folder or
// the file.
bool lacks_padding(const std::filesystem::path& path) {
  const auto file = std::filesystem::is_directory(path) ? path / "config.json" : path;
  return descriptor::text_config_of(parse_json_file(file)).find("pad_token_id") == nullptr;
}

// A new model uses the tokenizer's special tokens; a model folder has its own.
void choose_special_tokens(const TrainConfig& config, const data::Tokenizer& tokenizer, descriptor::ModelArgs& args) {
  // transformers finds the last token of a classifier's sequence by the padding id
  const bool needs_pad = reads_whole_texts(config.training.task);
  if (!config.model.hf_assets_path.empty()) {
    if (needs_pad && (!args.pad_token_id() || lacks_padding(config.model.hf_assets_path))) {
      args.set_pad_token(padding_id(config, tokenizer));
    }
    return;
  }
  auto pad = tokenizer.pad_id();
  if (needs_pad && !pad) {
    pad = padding_id(config, tokenizer);
  }
  args.set_special_tokens(tokenizer.bos_id(), tokenizer.eos_id(), pad);
}

// Checked here, because a family could only report that the key has no effect.
void require_mtp_is_trained(const TrainConfig& config) {
  const Node* modules = config.model.args.config_keys.find("num_nextn_predict_layers");
  require(
      config.training.mtp_loss_coef > 0 || modules == nullptr || (modules->is_int() && modules->as_int() == 0),
      "model.args.num_nextn_predict_layers: modules for multi-token prediction are left out unless they are trained; set "
      "training.mtp_loss_coef above 0 (such as 0.1), or remove this key");
}

// The router losses are computed over all MoE layers together.
void require_like_moe_layers(const descriptor::ModelArgs& args) {
  const auto blocks = args.block_configs();
  std::optional<int64_t> experts;
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    const auto* moe = std::get_if<descriptor::MoESubblock>(&blocks[layer].ffn);
    if (moe == nullptr) {
      continue;
    }
    experts = experts.value_or(moe->num_local_experts);
    require(
        *experts == moe->num_local_experts,
        "training.router_aux_loss_coef: this loss and training.router_z_loss_coef count the choices of all MoE layers "
        "together, and the model's have different numbers of experts ({}; layer {} has {}); leave both at 0, and use "
        "model.args.expert_bias",
        *experts,
        layer,
        moe->num_local_experts);
  }
}
}  // namespace

std::unique_ptr<data::Tokenizer> build_tokenizer(const TrainConfig& config) {
  const auto [key, path] = tokenizer_of(config);
  require(!path.empty(), "tokenizer.path: expected \"byte\" or a folder with tokenizer.json, found nothing");
  return data::load_tokenizer(path, key);
}

std::string other_tokenizer_warning(
    const TrainConfig& config, const data::Tokenizer& tokenizer, const std::filesystem::path& folder) {
  const auto [key, path] = tokenizer_of(config);
  if (path == folder || !data::has_other_tokenizer(folder, tokenizer)) {
    return "";
  }
  return fmt::format("{}: {} gives other ids than the tokenizer of the model, in {}", key, path, folder.string());
}

std::string other_settings_warning(
    const descriptor::ModelFamily& family, const descriptor::ModelArgs& args, const std::filesystem::path& folder) {
  // What a new run may choose: names, ids, length, and what acts in training or on new weights only.
  static const std::set<std::string> kFree{
      "architectures",
      "attention_dropout",
      "bos_token_id",
      "classifier_dropout",
      "dtype",
      "eos_token_id",
      "id2label",
      "initializer_range",
      "label2id",
      "max_position_embeddings",
      "model_type",
      "num_labels",
      "pad_token_id",
      "problem_type",
      "router_aux_loss_coef",
      "torch_dtype",
      "transformers_version",
      "use_cache",
      "vocab_size"};
  constexpr size_t kShort = 40;
  std::unique_ptr<descriptor::ModelArgs> of_weights;
  try {
    of_weights = family.from_hf_folder(folder);
    of_weights->keep_mtp_modules(args.keeps_mtp_modules());
  } catch (const Error&) {
    return "";
  }
  const Node theirs = of_weights->to_hf_config("float32"), ours = args.to_hf_config("float32");
  std::vector<std::string> differences;
  for (const auto& [key, value] : theirs.entries()) {
    const Node* const other = ours.find(key);
    if (other == nullptr || kFree.contains(key)) {
      continue;
    }
    const std::string there = to_json(value), here = to_json(*other);
    if (there != here) {
      const bool is_short = std::max(there.size(), here.size()) <= kShort;
      differences.push_back(is_short ? fmt::format("{} is {} there and {} here", key, there, here) : key);
    }
  }
  return differences.empty()
             ? ""
             : fmt::format(
                   "checkpoint.initial_load_path: the model in {} has other settings than this run: {}; change "
                   "[model.args], or set model.hf_assets_path to the folder, unless this is meant",
                   folder.string(),
                   fmt::join(differences, ", "));
}

std::unique_ptr<descriptor::ModelArgs> build_model_args(
    const TrainConfig& config, const descriptor::ModelFamily& family, const data::Tokenizer& tokenizer) {
  const ModelConfig& model = config.model;
  auto args =
      model.hf_assets_path.empty() ? family.from_flavor(model.flavor) : family.from_hf_folder(model.hf_assets_path);
  args->keep_mtp_modules(config.training.mtp_loss_coef > 0);
  args->apply(model.args);
  if (model.args.config_keys.size() > 0) {
    require_mtp_is_trained(config);
    args = family.with_config_keys(*args, model.args.config_keys, "model.args");
    args->apply(model.args);  // again, since config.json has no segments of the vocabulary
  }
  choose_head(config, *args);
  choose_special_tokens(config, tokenizer, *args);
  args->check("model.args.");
  descriptor::require_in_effect(*args, model.args.config_keys, "model.args");
  require(
      args->vocab_size() >= tokenizer.vocab_size(),
      "model.args.vocab_size: expected at least {}, the size of the tokenizer's vocabulary, found {}",
      tokenizer.vocab_size(),
      args->vocab_size());
  require(
      config.training.seq_len <= args->max_position_ids(),
      "training.seq_len: {} tokens do not fit into the model's {} positions (model.args.max_position_embeddings)",
      config.training.seq_len,
      args->max_position_ids());
  require(
      config.training.mtp_loss_coef == 0 || args->num_mtp_modules() > 0,
      "training.mtp_loss_coef: the model has no modules for multi-token prediction: {}; set it to 0",
      args->keeps_mtp_modules()
          ? "num_nextn_predict_layers of its config.json, or of model.args, is 0"
          : "families that have them are deepseek_v3, glm4_moe, qwen3_next, qwen3_5 and qwen3_5_moe");
  const bool balances = config.training.router_aux_loss_coef > 0 || config.training.router_z_loss_coef > 0;
  require(
      !balances || args->has_experts(),
      "training.router_aux_loss_coef: the model has no experts to balance; leave it and training.router_z_loss_coef at "
      "0");
  if (balances) {
    require_like_moe_layers(*args);
  }
  return args;
}

std::shared_ptr<nn::Model> build_model(
    const TrainConfig& config, const descriptor::ModelArgs& args, const pipeline::PipelineStageInfo& stage) {
  nn::ActivationCheckpointing checkpointing = config.activation_checkpoint.policy();
  checkpointing.regather = config.parallelism.tensor_parallel_regather;
  return args.build(
      {.stage = stage,
       .checkpointing = checkpointing,
       .num_virtual_layers_pre = config.parallelism.pipeline_parallel_first_stage_less_layers,
       .num_virtual_layers_post = config.parallelism.pipeline_parallel_last_stage_less_layers});
}

std::unique_ptr<TrainTask> build_task(const TrainConfig& config) {
  if (config.training.task == TaskKind::classification) {
    return std::make_unique<ClassificationTask>();
  }
  if (config.training.task == TaskKind::token_classification) {
    return std::make_unique<TokenClassificationTask>();
  }
  if (config.training.task == TaskKind::embedding) {
    return std::make_unique<EmbeddingTask>(EmbeddingTask::Options{
        .num_texts = config.data.rows_per_example(), .temperature = config.training.contrastive_temperature});
  }
  return std::make_unique<CausalLMTask>(config.training.mtp_loss_coef);
}

LearningRateFactor build_lr_schedule(const TrainConfig& config) {
  return [schedule = optim::LRSchedule(config.lr_scheduler, config.training.steps)](int64_t step) {
    return schedule.factor(step);
  };
}

}  // namespace lehr::train
