#include "lehr/prune/model_scorer.h"

#include <fmt/ranges.h>

#include "lehr/base/error.h"
#include "lehr/nn/attention.h"
#include "lehr/nn/gated_delta_net.h"
#include "lehr/nn/gelu.h"
#include "lehr/nn/latent_attention.h"
#include "lehr/nn/linear_subblock.h"
#include "lehr/nn/mamba2.h"
#include "lehr/nn/relu_squared.h"
#include "lehr/nn/swiglu.h"
#include "lehr/prune/score_channels.h"
#include "lehr/prune/score_experts.h"

namespace lehr::prune {

namespace {
using See = std::function<void(const at::Tensor& input, const at::Tensor& output)>;

// A hook that observes a module's calls without changing them.
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

// Hooks stay in the model after the scorer is gone, so its destructor clears their callbacks.
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
    const descriptor::SubblockModules children = descriptor.subblock_modules();
    for (layer_ = 0; layer_ < model.num_local_layers(); ++layer_) {
      path_ = descriptor.layer_block_name(layer_);
      const auto of_attention = modules_of(children.attention, children.shared);
      const auto of_ffn = modules_of(children.ffn, children.shared);
      if (auto* attention = first_of<nn::GroupedQueryAttentionImpl>(of_attention)) {
        look_at_attention(*attention, of_attention);
      }
      observe_if_there<nn::MultiHeadLatentAttentionImpl>(Kind::attention, of_attention);
      observe_if_there<nn::GatedDeltaNetImpl>(Kind::attention, of_attention);
      observe_if_there<nn::Mamba2Impl>(Kind::attention, of_attention);
      observe_if_there<nn::LinearSubblockImpl>(Kind::attention, of_attention);
      if (auto* ffn = first_of<nn::SwiGLUImpl>(of_ffn)) {
        look_at_ffn(*ffn, of_ffn);
      }
      if (auto* ffn = first_of<nn::GeGLUImpl>(of_ffn)) {
        look_at_ffn(*ffn, of_ffn);
      }
      if (auto* ffn = first_of<nn::ReluSquaredMlpImpl>(of_ffn)) {
        look_at_ffn(*ffn, of_ffn);
      }
      if (auto* moe_layer = first_of<nn::MoELayerImpl>(of_ffn)) {
        look_at_moe_layer(*moe_layer, of_ffn);
      }
      observe_if_there<nn::LinearSubblockImpl>(Kind::ffn, of_ffn);
    }
    require(!there_.empty(), "scores: no layer of the model has attention or a feed-forward block that can be scored");
    for (const Kind kind : options.kinds) {
      require(
          there_.contains(kind),
          "scores of {}: no layer of the model has them; it has {}",
          name_of(kind),
          fmt::join(names_of(there_), ", "));
    }
  }

  at::Tensor counted;  // mask of the current forward; undefined: all tokens count
  int64_t bytes_per_token = 0;

  std::map<std::pair<int64_t, Kind>, at::Tensor> scores() const {
    std::map<std::pair<int64_t, Kind>, at::Tensor> all;
    for (const auto& [place, of_part] : scores_) {
      all[place] = of_part().to(at::kCPU);
    }
    return all;
  }

 private:
  using Modules = std::vector<torch::nn::Module*>;

  // The modules of a sub-block that the layer has: its own, and those that it shares.
  Modules modules_of(const std::vector<std::string>& own, const std::vector<std::string>& shared) const {
    Modules found;
    for (const auto* names : {&own, &shared}) {
      for (const std::string& name : *names) {
        if (const auto module = modules_.find(path_ + "." + name); module != modules_.end()) {
          found.push_back(module->second.get());
        }
      }
    }
    return found;
  }

  template <class Part>
  static Part* first_of(const Modules& modules) {
    for (torch::nn::Module* module : modules) {
      if (auto* part = dynamic_cast<Part*>(module)) {
        return part;
      }
    }
    return nullptr;
  }

  // Returns whether scores of that kind are wanted, and records that the model has it.
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

  // A sub-block's part in a call of its layer: the residual stream that it read, and its output, which was added to it.
  struct Branch {
    at::Tensor read, added;
  };

  // The residual stream is the input of a sub-block's first module, and the output of its last is added to it. So norms
  // may be before the block, after it, or both.
  void observe_subblock(Kind kind, nn::Module& half, const Modules& modules) {
    const auto layer = modules_.find(path_);
    if (layer == modules_.end() || !wants(kind)) {
      return;
    }
    const auto influence = std::make_shared<BlockInfluence>();
    const auto branch = std::make_shared<Branch>();
    keep(kind, influence);
    const auto pass = [branch](const at::Tensor& input, const at::Tensor& output) {
      branch->read = branch->read.defined() ? branch->read : input;
      branch->added = output;
    };
    for (torch::nn::Module* module : modules) {
      if (auto* norm = dynamic_cast<nn::RMSNormImpl*>(module)) {
        look(*norm, pass);
      }
    }
    look(half, pass);
    look(dynamic_cast<nn::Module&>(*layer->second), [this, influence, branch](const at::Tensor&, const at::Tensor&) {
      influence->accumulate(branch->read, branch->read + branch->added, counted);
      *branch = {};
    });
  }

  // A sub-block that is scored as a whole only.
  template <class Part>
  void observe_if_there(Kind kind, const Modules& modules) {
    if (auto* part = first_of<Part>(modules)) {
      observe_subblock(kind, *part, modules);
    }
  }

  void look_at_attention(nn::GroupedQueryAttentionImpl& attention, const Modules& modules) {
    if (wants(Kind::kv_heads)) {
      look_at_channels(
          Kind::kv_heads,
          *attention.o_proj,
          std::make_shared<IndependentKvHeadContribution>(attention.num_key_value_heads()));
    }
    observe_subblock(Kind::attention, attention, modules);
  }

  template <class FeedForward>
  void look_at_ffn(FeedForward& ffn, const Modules& modules) {
    if (wants(Kind::ffn_channels)) {
      look_at_channels(
          Kind::ffn_channels, *ffn.down_proj, channel_hook(options_.ffn, ffn.down_proj->weight.size(1), batches_));
    }
    observe_subblock(Kind::ffn, ffn, modules);
  }

  void look_at_moe_layer(nn::MoELayerImpl& moe_layer, const Modules& modules) {
    std::vector<std::shared_ptr<ExpertHook>> hooks;
    if (wants(Kind::expert_channels)) {
      hooks.push_back(std::make_shared<IndependentExpertChannelContribution>());
      keep(Kind::expert_channels, hooks.back());
    }
    const int64_t groups = moe_layer.router->options().n_group;
    require(
        groups == 1 || !options_.kinds.contains(Kind::experts),
        "scores of experts: routers that choose among groups of experts (n_group = {}) do not support them; leave out "
        "experts",
        groups);
    if (groups == 1 && wants(Kind::experts)) {
      hooks.push_back(expert_hook(options_.experts));
      keep(Kind::experts, hooks.back());
      if (options_.experts == ExpertMethod::voting) {
        bytes_per_token += RankedChoiceVoting::bytes_per_token(moe_layer.num_experts());
      }
    }
    if (!hooks.empty()) {
      const auto inner = std::make_shared<at::Tensor>();
      look(*moe_layer.grouped_experts->down_proj, [inner](const at::Tensor& input, const at::Tensor&) {
        *inner = input;
      });
      look(moe_layer, [this, &moe_layer, hooks, inner](const at::Tensor& input, const at::Tensor& output) {
        const MoECall call{
            .tokens = input.reshape({-1, input.size(-1)}),
            .output = output.reshape({-1, output.size(-1)}),
            .inner = *inner,
            .routing = moe_layer.last_routing(),
            .counted = counted.defined() ? counted.flatten() : counted};
        for (const auto& hook : hooks) {
          hook->accumulate(moe_layer, call);
        }
        *inner = at::Tensor();  // free it; a hook may have recomputed the experts for its scores
      });
    }
    look_at_shared_expert(moe_layer);
    observe_subblock(Kind::ffn, moe_layer, modules);
  }

  // The channels are those of a feed-forward block, but its rows (N, I) are the tokens of all sequences.
  void look_at_shared_expert(nn::MoELayerImpl& moe_layer) {
    nn::LinearImpl* down = moe_layer.shared_expert         ? moe_layer.shared_expert->down_proj.get()
                           : moe_layer.shared_relu_squared ? moe_layer.shared_relu_squared->down_proj.get()
                                                           : nullptr;
    if (down == nullptr || !wants(Kind::shared_channels)) {
      return;
    }
    const std::shared_ptr<ChannelHook> hook = channel_hook(options_.ffn, down->weight.size(1), batches_);
    const auto inner = std::make_shared<at::Tensor>();
    keep(Kind::shared_channels, hook);
    look(*down, [inner](const at::Tensor& input, const at::Tensor&) { *inner = input; });
    look(moe_layer, [this, down, hook, inner](const at::Tensor& input, const at::Tensor&) {
      hook->accumulate(inner->view({input.size(0), input.size(1), -1}), down->weight, counted);
      *inner = at::Tensor();
    });
  }

  int64_t batches_;
  ScoreOptions options_;
  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules_;
  int64_t layer_ = 0;  // the layer that is being hooked
  std::string path_;   // its name
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
  // An undefined mask avoids an index_select of all rows.
  parts_->counted = counted.all().item<bool>() ? at::Tensor() : counted;
  model_.forward(inputs);
}

int64_t ModelScorer::bytes_per_token() const {
  return parts_->bytes_per_token;
}

std::map<std::pair<int64_t, Kind>, at::Tensor> ModelScorer::scores() const {
  return parts_->scores();
}

}  // namespace lehr::prune
