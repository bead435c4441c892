// ModelArgs of a decoder-only family, written once: a family gives its types and how its layer's parameters follow from
// config.json's fields.
#pragma once

#include "lehr/base/error.h"
#include "lehr/base/node.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/model/decoder_config.h"
#include "lehr/model/decoder_state_map.h"
#include "lehr/model/heads.h"

namespace lehr::model {

/// Counts for a decoder; `model` is any stage-complete instance on meta.
descriptor::ModelCounts count_decoder(const DecoderConfig& config, nn::Module& model, int64_t seq_len);

/// `form`, which has the family's flags, with the sizes of the config.
descriptor::DecoderForm with_sizes(descriptor::DecoderForm form, const DecoderConfig& config);

/// The name of the only vocabulary segment of a model that was not split.
inline constexpr const char* kWholeVocabulary = "default";

/// Whether the parameters of a layer can say that it lacks sub-blocks: then each layer may have its own.
template <class LayerParameters>
inline constexpr bool kLayersMayDiffer = requires(LayerParameters p) {
  p.attention_no_op;
  p.ffn_no_op;
};

/// `Family` has: kModelType, kArchitecture (as "Qwen3"), Backbone, CausalLM, Classification, Embedding (module
/// holders), LayerParameters and static layer_parameters(const DecoderConfig&). It may have kForm, a DecoderForm with
/// the flags of its sub-blocks: then its models are accounted for in closed form.
template <class Family>
class DecoderArgs : public descriptor::ModelArgs {
 public:
  explicit DecoderArgs(DecoderConfig config) : config_(std::move(config)) {}

  std::string model_type() const override { return Family::kModelType; }
  descriptor::Head head() const override { return config_.head; }
  void set_classification(int64_t num_labels, double dropout) override {
    config_.head = descriptor::Head::classification;
    config_.num_labels = num_labels;
    config_.classifier_dropout = dropout;
  }
  int64_t num_labels() const override { return config_.num_labels; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  bool has_experts() const override { return config_.moe.has_value(); }
  int64_t max_position_ids() const override { return config_.max_position_embeddings; }
  std::optional<int64_t> pad_token_id() const override { return config_.pad_token_id; }
  std::vector<int64_t> eos_token_ids() const override { return config_.eos_token_id; }
  void set_special_tokens(std::optional<int64_t> bos, std::optional<int64_t> eos, std::optional<int64_t> pad) override {
    config_.bos_token_id = bos;
    config_.eos_token_id = eos ? std::vector<int64_t>{*eos} : std::vector<int64_t>{};
    config_.pad_token_id = pad;
  }
  void apply(const descriptor::ModelOverrides& overrides) override { config_.apply(overrides); }
  void check(const std::string& where) const override {
    config_.check(where);
    require(
        kLayersMayDiffer<LayerParameters> || config_.block_configs.empty(),
        "{}block_configs: the layers of models of type {} are all alike",
        where,
        Family::kModelType);
  }
  std::vector<descriptor::BlockConfig> block_configs() const override { return config_.blocks(); }
  bool is_heterogeneous() const override { return !config_.block_configs.empty(); }
  void set_block_configs(std::vector<descriptor::BlockConfig> blocks) override {
    config_.set_blocks(std::move(blocks));
  }

  std::optional<descriptor::DecoderForm> decoder_form() const override {
    if constexpr (requires { Family::kForm; }) {
      return with_sizes(Family::kForm, config_);
    }
    return std::nullopt;
  }

  descriptor::ModelCounts get_nparams_and_flops(int64_t seq_len) const override {
    return count_decoder(config_, *build({}), seq_len);
  }

  std::shared_ptr<nn::Model> build(const descriptor::BuildOptions& options) const override {
    auto backbone = parameters();
    backbone.pipeline_num_virtual_layers_pre = options.num_virtual_layers_pre;
    backbone.pipeline_num_virtual_layers_post = options.num_virtual_layers_post;
    if (config_.head == descriptor::Head::causal_lm) {
      return std::make_shared<typename Family::CausalLM::Impl>(
          typename Family::CausalLM::Impl::Parameters{
              .model = backbone, .tie_word_embeddings = config_.tie_word_embeddings},
          options.stage,
          options.hidden_states_snapshot_mode,
          options.checkpointing);
    }
    if (config_.head == descriptor::Head::embedding) {
      return std::make_shared<typename Family::Embedding::Impl>(
          typename Family::Embedding::Impl::Parameters{.model = backbone},
          options.stage,
          options.hidden_states_snapshot_mode,
          options.checkpointing);
    }
    return std::make_shared<typename Family::Classification::Impl>(
        typename Family::Classification::Impl::Parameters{
            .model = backbone, .num_labels = config_.num_labels, .classifier_dropout = config_.classifier_dropout},
        options.stage,
        options.hidden_states_snapshot_mode,
        options.checkpointing);
  }

  state::StateMap state_map(descriptor::ExpertLayout layout) const override {
    return decoder_state_map(*build({}), parameters().vocabulary(), layout, config_.head);
  }

  Node to_hf_config(const std::string& dtype) const override {
    return to_hf(config_, Family::kModelType, Family::kArchitecture, dtype);
  }

  /// The backbone's parameters that the shape stands for.
  typename Family::Backbone::Impl::Parameters parameters() const {
    const bool whole = config_.split_vocab_order.empty();
    return {
        .layer = Family::layer_parameters(config_),
        .num_hidden_layers = config_.num_hidden_layers,
        .rope_base = config_.rope_theta,
        .max_position_ids = config_.max_position_embeddings,
        .split_vocab_size =
            whole ? std::map{std::pair(std::string(kWholeVocabulary), config_.vocab_size)} : config_.split_vocab_size,
        .split_vocab_order = whole ? std::vector<std::string>{kWholeVocabulary} : config_.split_vocab_order,
        .rope_scaling = config_.rope_scaling,
        .layers = own_layers()};
  }
  const DecoderConfig& config() const { return config_; }

 private:
  using LayerParameters = decltype(Family::layer_parameters(std::declval<const DecoderConfig&>()));

  // Of each layer, where they differ.
  std::vector<LayerParameters> own_layers() const {
    std::vector<LayerParameters> layers;
    for (const descriptor::BlockConfig& block : config_.block_configs) {
      layers.push_back(Family::layer_parameters(config_.of_block(block)));
      if constexpr (kLayersMayDiffer<LayerParameters>) {
        layers.back().attention_no_op = block.attention_is_no_op();
        layers.back().ffn_no_op = block.ffn_is_no_op();
      }
    }
    return layers;
  }

  DecoderConfig config_;
};

/// A family whose flavors are the given shapes. It reads config.json files of its own model_type and of others that
/// mean the same models.
template <class Family>
descriptor::ModelFamily make_decoder_family(
    const std::string& name,
    std::map<std::string, DecoderConfig> flavors,
    std::shared_ptr<const descriptor::ModelDescriptor> descriptor,
    const std::vector<std::string>& other_model_types = {}) {
  descriptor::ModelFamily family{
      .name = name,
      .hf_model_types = {Family::kModelType},
      .flavors = {},
      .from_hf_config = {},
      .descriptor = std::move(descriptor)};
  family.hf_model_types.insert(family.hf_model_types.end(), other_model_types.begin(), other_model_types.end());
  for (auto& [flavor, config] : flavors) {
    family.flavors[flavor] = [shape = config] { return std::make_unique<DecoderArgs<Family>>(shape); };
  }
  family.from_hf_config = [](const Node& config) {
    return std::make_unique<DecoderArgs<Family>>(DecoderConfig::from_hf(config));
  };
  return family;
}

}  // namespace lehr::model
