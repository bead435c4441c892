#include "lehr/prune/model_scorer.h"

#include <fmt/ranges.h>

#include "lehr/base/error.h"
#include "lehr/nn/attention.h"
#include "lehr/prune/score_channels.h"
#include "lehr/prune/score_experts.h"

namespace lehr::prune {

namespace {
using See = std::function<void(const at::Tensor& input, const at::Tensor& output)>;

// Sees a module's calls, which go on as they would.
class Onlooker : public nn::CallHook {
 public:
  explicit Onlooker(See see) : see_(std::move(see)) {}
  at::Tensor call(const at::Tensor& input, const Forward& forward) override {
    at::Tensor output = forward(input);
    if (see_) {
      see_(input, output);
    }
    return output;
  }
  void look_away() { see_ = nullptr; }

 private:
  See see_;
};

// Hooks stay in the model; what they see must not outlive who looks.
struct Onlookers {
  std::vector<std::shared_ptr<Onlooker>> all = {};
  ~Onlookers() {
    for (const auto& one : all) {
      one->look_away();
    }
  }
};

std::unique_ptr<ChannelHook> channel_hook(FfnMethod method, int64_t channels, int64_t batches) {
  switch (method) {
    case FfnMethod::iterative:
      return std::make_unique<IterativeChannelContribution>(channels, batches);
    case FfnMethod::independent:
      return std::make_unique<IndependentChannelContribution>();
    case FfnMethod::l2:
      break;
  }
  return std::make_unique<L2Norm>();
}

std::unique_ptr<ExpertHook> expert_hook(ExpertMethod method) {
  using Distance = RemoveExpertsIndependent::Distance;
  if (method == ExpertMethod::voting) {
    return std::make_unique<RankedChoiceVoting>();
  }
  return std::make_unique<RemoveExpertsIndependent>(method == ExpertMethod::mse ? Distance::mse : Distance::cosine);
}

std::vector<const char*> names_of(const std::set<Kind>& kinds) {
  std::vector<const char*> names;
  for (const Kind kind : kinds) {
    names.push_back(name_of(kind));
  }
  return names;
}
}  // namespace

// The hooks of a model, layer by layer.
class ModelScorer::Parts {
 public:
  Parts(nn::Model& model, const descriptor::ModelDescriptor& descriptor, int64_t batches, const ScoreOptions& options)
      : batches_(batches), options_(options) {
    for (const auto& item : model.named_modules("", /*include_self=*/false)) {
      modules_.emplace(item.key(), item.value());
    }
    for (layer_ = 0; layer_ < model.num_local_layers(); ++layer_) {
      path_ = descriptor.layer_block_name(layer_) + ".";
      if (const auto attention = part<nn::GroupedQueryAttentionImpl>("self_attn")) {
        look_at_attention(*attention);
      }
      if (const auto ffn = part<nn::SwiGLUImpl>("mlp")) {
        look_at_ffn(*ffn);
      }
      if (const auto mixture = part<nn::MoELayerImpl>("mlp")) {
        look_at_mixture(*mixture);
      }
    }
    require(!there_.empty(), "scores: no layer of the model has attention or a feed-forward block that is scored");
    for (const Kind kind : options.kinds) {
      require(
          there_.contains(kind),
          "scores of {}: the model has none of them; it has {}",
          name_of(kind),
          fmt::join(names_of(there_), ", "));
    }
  }

  at::Tensor counted;  // of the present forward; undefined: all
  int64_t bytes_a_token = 0;

  std::map<std::pair<int64_t, Kind>, at::Tensor> scores() const {
    std::map<std::pair<int64_t, Kind>, at::Tensor> all;
    for (const auto& [place, of_part] : scores_) {
      all[place] = of_part().to(at::kCPU);
    }
    return all;
  }

 private:
  template <class Part>
  std::shared_ptr<Part> part(const std::string& name) const {
    const auto found = modules_.find(path_ + name);
    return found == modules_.end() ? nullptr : std::dynamic_pointer_cast<Part>(found->second);
  }

  // Whether the present layer's scores of that kind are wanted.
  bool wants(Kind kind) {
    there_.insert(kind);
    return options_.kinds.empty() || options_.kinds.contains(kind);
  }

  void look(nn::Module& module, See see) {
    onlookers_.all.push_back(std::make_shared<Onlooker>(std::move(see)));
    module.add_call_hook(onlookers_.all.back());
  }

  template <class Hook>
  void keep(Kind kind, std::shared_ptr<Hook> hook) {
    scores_[{layer_, kind}] = [hook] { return hook->scores(); };
  }

  void look_at_channels(Kind kind, nn::LinearImpl& linear, std::shared_ptr<ChannelHook> hook) {
    keep(kind, hook);
    look(linear, [this, &linear, hook](const at::Tensor& input, const at::Tensor&) {
      hook->accumulate(input, linear.weight, counted);
    });
  }

  // A half adds to the residual stream what it makes of the norm of it.
  void look_at_half(Kind kind, nn::Module& half, const char* norm_name) {
    const auto norm = part<nn::RMSNormImpl>(norm_name);
    if (!norm || !wants(kind)) {
      return;
    }
    const auto influence = std::make_shared<BlockInfluence>();
    const auto before = std::make_shared<at::Tensor>();
    keep(kind, influence);
    look(*norm, [before](const at::Tensor& input, const at::Tensor&) { *before = input; });
    look(half, [this, influence, before](const at::Tensor&, const at::Tensor& output) {
      influence->accumulate(*before, *before + output, counted);
      *before = at::Tensor();
    });
  }

  void look_at_attention(nn::GroupedQueryAttentionImpl& attention) {
    if (wants(Kind::kv_heads)) {
      look_at_channels(
          Kind::kv_heads,
          *attention.o_proj,
          std::make_shared<IndependentKvHeadContribution>(attention.num_key_value_heads()));
    }
    look_at_half(Kind::attention, attention, "input_layernorm");
  }

  void look_at_ffn(nn::SwiGLUImpl& ffn) {
    if (wants(Kind::ffn_channels)) {
      look_at_channels(
          Kind::ffn_channels, *ffn.down_proj, channel_hook(options_.ffn, ffn.down_proj->weight.size(1), batches_));
    }
    look_at_half(Kind::ffn, ffn, "post_attention_layernorm");
  }

  void look_at_mixture(nn::MoELayerImpl& mixture) {
    std::vector<std::shared_ptr<ExpertHook>> hooks;
    if (wants(Kind::expert_channels)) {
      hooks.push_back(std::make_shared<IndependentExpertChannelContribution>());
      keep(Kind::expert_channels, hooks.back());
    }
    if (wants(Kind::experts)) {
      hooks.push_back(expert_hook(options_.experts));
      keep(Kind::experts, hooks.back());
      if (options_.experts == ExpertMethod::voting) {
        bytes_a_token += RankedChoiceVoting::bytes_a_token(mixture.num_experts());
      }
    }
    if (!hooks.empty()) {
      const auto inner = std::make_shared<at::Tensor>();
      look(
          *mixture.grouped_experts->down_proj, [inner](const at::Tensor& input, const at::Tensor&) { *inner = input; });
      look(mixture, [this, &mixture, hooks, inner](const at::Tensor& input, const at::Tensor& output) {
        const MixtureCall call{
            .tokens = input.reshape({-1, input.size(-1)}),
            .output = output.reshape({-1, output.size(-1)}),
            .inner = *inner,
            .routing = mixture.last_routing(),
            .counted = counted.defined() ? counted.flatten() : counted};
        for (const auto& hook : hooks) {
          hook->accumulate(mixture, call);
        }
        *inner = at::Tensor();  // experts may have run again for their scores
      });
    }
    look_at_half(Kind::ffn, mixture, "post_attention_layernorm");
  }

  int64_t batches_;
  ScoreOptions options_;
  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules_;
  int64_t layer_ = 0;  // that is looked at
  std::string path_;   // of its parts
  std::set<Kind> there_;
  std::map<std::pair<int64_t, Kind>, std::function<at::Tensor()>> scores_;
  Onlookers onlookers_;
};

ModelScorer::ModelScorer(
    nn::Model& model, const descriptor::ModelDescriptor& descriptor, int64_t batches, const ScoreOptions& options)
    : model_(model), parts_(std::make_unique<Parts>(model, descriptor, batches, options)) {}

ModelScorer::~ModelScorer() = default;

void ModelScorer::forward(const nn::ModelInputs& inputs, const at::Tensor& counted) {
  at::NoGradGuard no_grad;
  model_.eval();
  parts_->counted = counted.all().item<bool>() ? at::Tensor() : counted;  // then no rows need to be picked
  model_.forward(inputs);
}

int64_t ModelScorer::bytes_a_token() const {
  return parts_->bytes_a_token;
}

std::map<std::pair<int64_t, Kind>, at::Tensor> ModelScorer::scores() const {
  return parts_->scores();
}

}  // namespace lehr::prune
