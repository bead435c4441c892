// ModelArgs shared by decoder-only families: a family supplies its types and a function from config.json's fields to
// its layer's parameters.
#pragma once

#include <algorithm>
#include <string_view>

#include "lehr/base/error.h"
#include "lehr/config/node.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/model/config_values.h"
#include "lehr/model/decoder_blocks.h"
#include "lehr/model/decoder_config.h"
#include "lehr/model/decoder_descriptor.h"
#include "lehr/model/decoder_state_map.h"
#include "lehr/model/family_layers.h"
#include "lehr/model/heads.h"
#include "lehr/model/mtp_names.h"

namespace lehr::model {

/// Counts parameters and FLOPs of a decoder; `model` is an instance with all stages on meta.
descriptor::ModelCounts count_decoder(const DecoderConfig& config, nn::Module& model, int64_t seq_len);

/// Returns `form`, which has the family's flags, with the sizes of the config.
descriptor::DecoderForm with_sizes(descriptor::DecoderForm form, const DecoderConfig& config);

/// Throws a usage error for a key that is absent, or null and not one of `nullable`. A config.json with block_configs
/// may lack all of them.
void require_keys(const Node& config, std::span<const char* const> keys, std::span<const char* const> nullable = {});

/// Returns num_key_value_heads; `otherwise` without the key, or if block_configs have it. Throws a usage error for
/// null.
int64_t read_key_value_heads(const Node& config, int64_t otherwise);

/// The key of config.json for the differences of single layers, which read_blocks reads unless it is one of kOwnKeys.
inline constexpr const char* kPerLayerConfig = "per_layer_config";

/// The name of the only segment of a vocabulary that is not split.
inline constexpr const char* kWholeVocabulary = "default";

/// `Family` has kModelType, kArchitecture (such as "Qwen3") and Layer (a module holder). It may have
/// - static layer_parameters(const DecoderConfig&), if its layers are not built from DenseLayerParameters;
/// - kRequiredKeys, names of keys without which its config.json is refused: keys whose default in transformers is not
///   the one of DecoderConfig::from_hf, unless block_configs has the sizes of layers;
/// - kNullableKeys, those of them that may be null: num_key_value_heads, if transformers reads it as the number of
///   heads;
/// - kKeyValueHeads, the num_key_value_heads of a config.json without it, if that is not the number of heads;
/// - kBosToken, kEosToken and kPadToken, the tokens of a config.json without these keys; null says that there are none;
/// - kNormEps, the rms_norm_eps of a config.json without it;
/// - kForm, a DecoderForm with the flags of its sub-blocks, which enables closed-form accounting of its models;
/// - kOwnKeys, names of keys that DecoderConfig::from_hf would refuse or misread, and static read(const Node& config,
///   DecoderConfig& shape), which reads them and sets defaults of its own; static write(const DecoderConfig&, Node&),
///   which writes them;
/// - kNormWeight, the kind of the final norm's weight, and static embedding_factor(const DecoderConfig&);
/// - static adjust(DecoderConfig&), which makes settings fit the number of layers after it was overridden;
/// - kMtpNames, if published folders have modules for multi-token prediction, which read and write count.
template <class Family_>
class DecoderArgs : public descriptor::ModelArgs {
 public:
  using Family = Family_;
  using Backbone = BackboneOf<Family>;

  explicit DecoderArgs(DecoderConfig config) : config_(std::move(config)) {}

  std::string model_type() const override { return Family::kModelType; }
  descriptor::Head head() const override { return config_.head; }
  void set_classification(int64_t num_labels, double dropout) override {
    config_.head = descriptor::Head::classification;
    config_.num_labels = num_labels;
    config_.classifier_dropout = dropout;
  }
  void set_token_classification(int64_t num_labels, double dropout) override {
    set_classification(num_labels, dropout);
    config_.head = descriptor::Head::token_classification;
  }
  void set_embedding() override { config_.head = descriptor::Head::embedding; }
  int64_t num_labels() const override { return config_.num_labels; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  bool has_experts() const override { return config_.moe.has_value(); }
  void keep_mtp_modules(bool keep) override { config_.keeps_mtp_modules = keep && kMayPredictAhead; }
  bool keeps_mtp_modules() const override { return config_.keeps_mtp_modules; }
  int64_t num_mtp_modules() const override { return config_.mtp_modules(); }
  int64_t max_position_ids() const override { return config_.max_position_embeddings; }
  std::optional<int64_t> pad_token_id() const override { return config_.pad_token_id; }
  std::vector<int64_t> eos_token_ids() const override { return config_.eos_token_id; }
  void set_special_tokens(std::optional<int64_t> bos, std::optional<int64_t> eos, std::optional<int64_t> pad) override {
    config_.bos_token_id = bos;
    config_.eos_token_id = eos ? std::vector<int64_t>{*eos} : std::vector<int64_t>{};
    config_.pad_token_id = pad;
  }
  void set_pad_token(int64_t pad) override { config_.pad_token_id = pad; }
  void apply(const descriptor::ModelOverrides& overrides) override {
    config_.apply(overrides);
    if constexpr (requires { Family::adjust(config_); }) {
      Family::adjust(config_);
    }
  }
  void check(const std::string& where) const override {
    config_.check(where);
    try {
      layer_parameters_of<Family>(config_);  // a family may require more
    } catch (const Error& error) {
      fail("{}{}", where, error.what());
    }
    require(
        requires { Family::layer_parameters(config_); } || !config_.moe,
        "{}num_experts_per_tok: models of type {} have no experts; remove this key",
        where,
        Family::kModelType);
    check_mtp(config_, where);
    require(
        !config_.output_bias || requires(LayerParameters p) { p.output_bias; },
        "{}attention_bias: expected false, found true; this is not supported",
        where);
    require(
        kLayersMayDiffer<LayerParameters> || config_.block_configs.empty(),
        "{}block_configs: models of type {} do not support layers that differ",
        where,
        Family::kModelType);
    for (size_t layer = 0; layer < config_.block_configs.size(); ++layer) {
      const descriptor::BlockConfig& block = config_.block_configs[layer];
      require(
          kMayBeLinear<typename Family::Layer> || (!block.attention_is_linear() && !block.ffn_is_linear()),
          "{}block_configs[{}]: models of type {} do not support replace_with_linear, linear layers in place of "
          "sub-blocks",
          where,
          layer,
          Family::kModelType);
      const auto* attention = std::get_if<descriptor::AttentionSubblock>(&block.attention);
      require(
          attention == nullptr || attention->window == 0 || layers_may_have_windows(),
          "{}block_configs[{}].attention.window_length: the attention of models of type {} has no windows; remove the "
          "key",
          where,
          layer,
          Family::kModelType);
    }
  }
  std::vector<descriptor::BlockConfig> block_configs() const override { return config_.blocks(); }
  bool is_heterogeneous() const override { return !config_.block_configs.empty(); }
  void set_block_configs(std::vector<descriptor::BlockConfig> blocks) override {
    config_.num_hidden_layers = static_cast<int64_t>(blocks.size());
    config_.set_blocks(std::move(blocks));
  }
  bool layers_may_have_windows() const override {
    return requires(LayerParameters p) {
      p.pattern;
    };
  }
  void shift_layers(int64_t count) override { config_.shift_layers(count); }

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
    using CausalLM = typename ForCausalLM<Backbone>::Impl;
    using Classification = typename ForClassification<Backbone>::Impl;
    using Embedding = typename ForEmbedding<Backbone>::Impl;
    auto backbone = parameters();
    backbone.pipeline_num_virtual_layers_pre = options.num_virtual_layers_pre;
    backbone.pipeline_num_virtual_layers_post = options.num_virtual_layers_post;
    if (config_.head == descriptor::Head::causal_lm) {
      return std::make_shared<CausalLM>(
          typename CausalLM::Parameters{
              .model = backbone,
              .tie_word_embeddings = config_.tie_word_embeddings,
              .mtp = mtp_parameters(),
              .logit_softcap = config_.final_logit_softcapping},
          options.stage,
          options.hidden_states_snapshot_mode,
          options.checkpointing);
    }
    if (config_.head == descriptor::Head::embedding) {
      return std::make_shared<Embedding>(
          typename Embedding::Parameters{.model = backbone},
          options.stage,
          options.hidden_states_snapshot_mode,
          options.checkpointing);
    }
    const bool per_token = config_.head == descriptor::Head::token_classification;
    return std::make_shared<Classification>(
        typename Classification::Parameters{
            .model = backbone,
            .num_labels = config_.num_labels,
            .classifier_dropout = config_.classifier_dropout,
            .per_token = per_token,
            .score_bias = per_token && config_.token_classification_bias},
        options.stage,
        options.hidden_states_snapshot_mode,
        options.checkpointing);
  }

  state::StateMap state_map(descriptor::ExpertLayout layout) const override {
    const state::StateMap map = decoder_state_map(*build({}), parameters().vocabulary(), layout, config_.head);
    if constexpr (kMayPredictAhead) {
      return with_mtp_names(map, Family::kMtpNames, config_.num_hidden_layers);
    }
    return map;
  }

  state::StateMap stored_copies() const override {
    if constexpr (kMayPredictAhead) {
      return mtp_copies(Family::kMtpNames, config_);
    }
    return {};
  }

  Node to_hf_config(const std::string& dtype) const override {
    Node node = to_hf(config_, Family::kModelType, Family::kArchitecture, dtype);
    if constexpr (requires { Family::write(config_, node); }) {
      Family::write(config_, node);
    }
    if constexpr (requires { Family::kPadToken; }) {  // absent, it would be that one
      node.set("pad_token_id", number_or_null(config_.pad_token_id));
    }
    return node;
  }

  /// The backbone's parameters for this shape.
  typename Backbone::Impl::Parameters parameters() const {
    const bool whole = config_.split_vocab_order.empty();
    typename Backbone::Impl::Parameters backbone{
        .layer = layer_parameters_of<Family>(config_),
        .num_hidden_layers = config_.num_hidden_layers,
        .rope_base = config_.rope_theta,
        .max_position_ids = config_.max_position_embeddings,
        .split_vocab_size =
            whole ? std::map{std::pair(std::string(kWholeVocabulary), config_.vocab_size)} : config_.split_vocab_size,
        .split_vocab_order = whole ? std::vector<std::string>{kWholeVocabulary} : config_.split_vocab_order,
        .rope_scaling = config_.rope_scaling,
        .layers = own_layers(),
        .pattern = config_.pattern,
        .sliding_rope = config_.sliding_rope};
    if constexpr (requires { Family::kNormWeight; }) {
      backbone.norm_weight = Family::kNormWeight;
    }
    if constexpr (requires { Family::embedding_factor(config_); }) {
      backbone.embedding_factor = Family::embedding_factor(config_);
    }
    return backbone;
  }
  const DecoderConfig& config() const { return config_; }

 private:
  using LayerParameters = decltype(layer_parameters_of<Family>(std::declval<const DecoderConfig&>()));
  static constexpr bool kMayPredictAhead = requires { Family::kMtpNames; };

  std::optional<MtpParameters<LayerParameters>> mtp_parameters() const {
    if (config_.mtp_modules() == 0) {
      return std::nullopt;
    }
    DecoderConfig of_layer = config_;
    if (of_layer.linear_attention) {
      of_layer.linear_attention->layers = {false};
    }
    return MtpParameters<LayerParameters>{
        .modules = config_.mtp_modules(),
        .layer = layer_parameters_of<Family>(of_layer),
        .first_index = config_.num_hidden_layers};
  }

  // One entry per layer, if layers differ.
  std::vector<LayerParameters> own_layers() const {
    std::vector<LayerParameters> layers;
    for (const descriptor::BlockConfig& block : config_.block_configs) {
      layers.push_back(layer_parameters_of<Family>(config_.of_block(block)));
      if constexpr (kLayersMayDiffer<LayerParameters>) {
        set_forms(block, layers.back());
      }
    }
    return layers;
  }

  DecoderConfig config_;
};

/// The descriptor of a family, derived from its layers and its state map. `Args` is DecoderArgs<Family>, or a subclass
/// with a state map of its own; its LayerParameters have no-op flags.
template <class Args>
class DecoderDescriptor : public DecoderNames {
  using Family = typename Args::Family;
  using Holder = typename Family::Layer;
  using Layer = typename Holder::Impl;

 public:
  /// `shape` is any valid model of the family.
  explicit DecoderDescriptor(DecoderConfig shape) : DecoderNames(std::move(shape)) {}

  const std::type_info& decoder_layer_cls() const override { return typeid(Layer); }

  void attn_no_op_post_init(torch::nn::Module& decoder_layer) const override {
    drop_attention(as_layer(decoder_layer, "attn_no_op_post_init"));
  }
  void mlp_no_op_post_init(torch::nn::Module& decoder_layer) const override {
    drop_ffn(as_layer(decoder_layer, "mlp_no_op_post_init"));
  }
  std::shared_ptr<torch::nn::Module> create_dummy_block(
      const torch::nn::Module& original_layer, int64_t /*block_index*/) const override {
    as_layer(original_layer, "create_dummy_block");
    return make(shape(), {.attention = descriptor::NoOpSubblock{}, .ffn = descriptor::NoOpSubblock{}}).ptr();
  }

 protected:
  std::vector<std::string> children(const DecoderConfig& shape, const descriptor::BlockConfig& block) const override {
    return make(shape, block)->named_children().keys();
  }
  std::vector<std::string> stored_names(const DecoderConfig& shape, descriptor::ExpertLayout layout) const override {
    return Args(shape).state_map(layout).input_names();
  }

 private:
  static Holder make(const DecoderConfig& shape, const descriptor::BlockConfig& block) {
    auto params = layer_parameters_of<Family>(shape.of_block(block));
    set_forms(block, params);
    return make_layer<Holder>(params, 0);
  }

  template <class Module>
  static auto& as_layer(Module& module, const char* what) {
    using Wanted = std::conditional_t<std::is_const_v<Module>, const Layer, Layer>;
    auto* layer = dynamic_cast<Wanted*>(&module);
    require(layer != nullptr, "{}: expected a decoder layer of this family, found {}", what, module.name());
    return *layer;
  }
};

/// Reads the shape of a model of `Family` from config.json.
template <class Family>
DecoderConfig read_config(const Node& config) {
  if constexpr (requires { Family::kRequiredKeys; }) {
    if constexpr (requires { Family::kNullableKeys; }) {
      require_keys(config, Family::kRequiredKeys, Family::kNullableKeys);
    } else {
      require_keys(config, Family::kRequiredKeys);
    }
  }
  std::span<const char* const> own_keys;
  if constexpr (requires { Family::kOwnKeys; }) {
    own_keys = Family::kOwnKeys;
  }
  DecoderConfig shape = DecoderConfig::from_hf(config, own_keys);
  if constexpr (requires { Family::kKeyValueHeads; }) {
    shape.num_key_value_heads = read_key_value_heads(config, Family::kKeyValueHeads);
  }
  if constexpr (requires { Family::kBosToken; }) {
    shape.bos_token_id = config.find("bos_token_id") == nullptr ? Family::kBosToken : shape.bos_token_id;
  }
  if constexpr (requires { Family::kEosToken; }) {
    if (config.find("eos_token_id") == nullptr) {
      shape.eos_token_id = {Family::kEosToken};
    }
  }
  if constexpr (requires { Family::kPadToken; }) {
    shape.pad_token_id = config.find("pad_token_id") == nullptr ? Family::kPadToken : shape.pad_token_id;
  }
  if constexpr (requires { Family::kNormEps; }) {
    shape.rms_norm_eps = double_or(config, "rms_norm_eps", Family::kNormEps);
  }
  if constexpr (requires { Family::read(config, shape); }) {
    Family::read(config, shape);
  }
  if (std::find(own_keys.begin(), own_keys.end(), std::string_view(kPerLayerConfig)) == own_keys.end()) {
    read_blocks(config, shape);
  }
  return shape;
}

/// Makes a family with these flavors, at least one. It reads config.json files with its own model_type and with other
/// model types of equivalent models. It has a descriptor if its layers may differ. `Args` may be a subclass of
/// DecoderArgs<Family> with a state map of its own.
template <class Family, class Args = DecoderArgs<Family>>
descriptor::ModelFamily make_decoder_family(
    const std::string& name,
    std::map<std::string, DecoderConfig> flavors,
    const std::vector<std::string>& other_model_types = {}) {
  require(!flavors.empty(), "model family '{}': expected one flavor or more", name);
  descriptor::ModelFamily family{
      .name = name, .hf_model_types = {Family::kModelType}, .flavors = {}, .from_hf_config = {}, .descriptor = {}};
  if constexpr (kLayersMayDiffer<decltype(layer_parameters_of<Family>(flavors.begin()->second))>) {
    family.descriptor = std::make_shared<DecoderDescriptor<Args>>(flavors.begin()->second);
  }
  family.hf_model_types.insert(family.hf_model_types.end(), other_model_types.begin(), other_model_types.end());
  for (auto& [flavor, config] : flavors) {
    family.flavors[flavor] = [shape = config] { return std::make_unique<Args>(shape); };
  }
  family.from_hf_config = [](const Node& config) { return std::make_unique<Args>(read_config<Family>(config)); };
  return family;
}

}  // namespace lehr::model
