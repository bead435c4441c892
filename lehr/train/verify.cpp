#include "lehr/train/verify.h"

#include "lehr/base/error.h"
#include "lehr/base/json.h"
#include "lehr/nn/moe.h"
#include "lehr/ops/attention/attention_sequences.h"
#include "lehr/optim/adamw.h"
#include "lehr/optim/clip.h"
#include "lehr/state/weights.h"
#include "lehr/train/generate.h"
#include "lehr/train/model_folder.h"
#include "lehr/train/verify_reference.h"
#include "lehr/train/weights.h"

namespace lehr::train {

namespace {
using Path = std::filesystem::path;

class Verifier {
 public:
  Verifier(const VerifyOptions& options, const descriptor::ModelFamilies& families)
      : options_(options),
        folder_of_model_(ModelFolder::open(options.model, families)),
        args_(folder_of_model_.args.get()) {
    require(
        args_->head() != descriptor::Head::embedding,
        "{}: config.json names a backbone without a head (architectures); verify compares language models and "
        "classifiers",
        options.model.string());
    const Path file = options.reference.value_or(options.model / "oracle.safetensors");
    folder_ = file.parent_path();
    reference_ = std::make_unique<ReferenceFile>(file);
    reload();
  }

  VerifyReport run() {
    forward_rows();
    gradient_rows();
    balancing_rows();
    padding_rows();
    packing_rows();
    generation_rows();
    trajectory_rows();
    require(
        !report_.rows.empty(),
        "{}: contains no tensor that verify can compare; docs/verify.md lists them",
        (folder_ / "oracle.safetensors").string());
    note_unread(*reference_);
    return std::move(report_);
  }

 private:
  bool classifier() const { return args_->head() == descriptor::Head::classification; }

  void reload() {
    model_ = folder_of_model_.load(options_.device, options_.dtype);
    model_->train();
    model_->eval();
  }

  bool has(const std::string& name) const { return reference_->has(name); }
  at::Tensor input(const std::string& name) const { return reference_->tensor(name).to(options_.device); }

  void compare(const std::string& name, const at::Tensor& computed, const at::Tensor& expected) {
    report_.computed[name] = computed.detach().cpu().contiguous();
    report_.rows.push_back(compare_tensors(name, computed, expected, options_.dtype, options_.atol, options_.rtol));
  }

  /// Compares with the file's tensor of that name, and with its float64 version when computing in float64; both times
  /// `visible`, if it is defined. Returns false if the file has neither.
  bool compare_in(
      ReferenceFile& file, const std::string& name, const at::Tensor& computed, const at::Tensor& visible = {}) {
    const auto shown = [&](const at::Tensor& x) { return visible.defined() ? x * visible.to(x.device()) : x; };
    const std::string twin = name + kFloat64Suffix;
    if (file.has(name)) {
      compare(file.prefix() + name, shown(computed), shown(file.tensor(name)));
    }
    if (options_.dtype == at::kDouble && file.has(twin)) {
      compare(file.prefix() + twin, shown(computed), shown(file.tensor(twin)));
    }
    return file.has(name) || file.has(twin);
  }

  void compare(const std::string& name, const at::Tensor& computed) { compare_in(*reference_, name, computed); }

  /// Compares tensors of a checkpoint, each of which must be in the file.
  void compare_all(ReferenceFile& file, const std::vector<std::pair<std::string, at::Tensor>>& computed) {
    for (const auto& [name, tensor] : computed) {
      require(
          compare_in(file, name, tensor),
          "{}: has no tensor {}, which the model has",
          file.reader().path().string(),
          name);
    }
    note_unread(file);
  }

  void note_unread(const ReferenceFile& file) {
    for (std::string& name : file.unread(options_.dtype == at::kDouble)) {
      report_.left_out.push_back(std::move(name));
    }
  }

  /// labels[t] is the target of position t.
  static at::Tensor shifted(const at::Tensor& labels) {
    at::Tensor next = at::full_like(labels, -100);
    next.narrow(1, 0, labels.size(1) - 1).copy_(labels.narrow(1, 1, labels.size(1) - 1));
    return next;
  }

  /// `mask` is on the host.
  nn::ModelInputs classifier_inputs(const at::Tensor& input_ids, const at::Tensor& mask) const {
    nn::ModelInputs inputs;
    inputs.input_ids = input_ids;
    inputs.attention_mask = ops::row_mask({}, mask.to(at::kBool), options_.device);
    // The rightmost token that is not padding.
    const int64_t pad = args_->pad_token_id().value_or(-1);
    const at::Tensor positions = at::arange(input_ids.size(1), input_ids.options());
    const at::Tensor last = (positions * input_ids.ne(pad)).argmax(1, /*keepdim=*/true);
    inputs.pooling_mask = at::zeros_like(input_ids).scatter_(1, last, 1);
    return inputs;
  }

  at::Tensor logits_of(nn::ModelInputs inputs) {
    at::NoGradGuard no_grad;
    return model_->logits(model_->forward(inputs).hidden_states);
  }

  /// The loss and its graph, with `mask` on the host, for one batch of a trajectory or of the reference's main inputs.
  at::Tensor loss_of(const at::Tensor& input_ids, const at::Tensor& labels, const at::Tensor& mask) {
    if (classifier()) {
      const at::Tensor scores = model_->forward(classifier_inputs(input_ids, mask)).scores;
      return at::cross_entropy_loss(scores, labels);
    }
    nn::ModelInputs inputs;
    inputs.input_ids = input_ids;
    inputs.labels = shifted(labels);
    return model_->forward(inputs).logps.sum() / inputs.labels.ne(-100).sum();
  }

  void forward_rows() {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> layer_inputs;
    nn::ModelInputs inputs;
    if (classifier()) {
      inputs = classifier_inputs(input("input_ids"), reference_->tensor("attention_mask"));
    } else {
      inputs.input_ids = input("input_ids");
    }
    inputs.layer_inputs = &layer_inputs;
    const nn::ModelOutputs outputs = model_->forward(inputs);
    const bool masked = inputs.attention_mask.key_padding.defined();
    const at::Tensor visible = masked ? inputs.attention_mask.key_padding.unsqueeze(-1) : at::Tensor();
    auto compare_hidden = [&](const std::string& name, const at::Tensor& computed) {
      compare_in(*reference_, name, computed, visible);
    };
    routing_rows();
    for (size_t i = 0; i < layer_inputs.size(); ++i) {
      compare_hidden("hidden." + std::to_string(i), layer_inputs[i]);
    }
    compare_hidden("hidden.final_norm", outputs.hidden_states);
    if (classifier()) {
      compare("logits", outputs.scores);
      return;
    }
    compare("logits", model_->logits(outputs.hidden_states));
    if (has("logps")) {
      nn::ModelInputs scored;
      scored.input_ids = inputs.input_ids;
      scored.labels = shifted(inputs.input_ids);
      compare("logps", -model_->forward(scored).logps.narrow(1, 0, inputs.input_ids.size(1) - 1));
    }
    if (has("loss_sum")) {
      nn::ModelInputs scored;
      scored.input_ids = inputs.input_ids;
      scored.labels = shifted(input("labels"));
      compare("loss_sum", model_->forward(scored).logps.sum());
    }
  }

  /// Compares the decisions of the last forward's routers.
  void routing_rows() {
    for (const auto& module : model_->named_modules("", /*include_self=*/false)) {
      const auto* experts = dynamic_cast<const nn::MoELayerImpl*>(module.value().get());
      const std::string& path = module.key();  // ...layers.3.mlp
      const size_t at = path.rfind("layers.");
      if (experts != nullptr && at != std::string::npos) {
        const std::string layer = std::to_string(std::stoll(path.substr(at + std::string("layers.").size())));
        compare("router_logits." + layer, experts->last_routing().logits);
        compare("topk_index." + layer, experts->last_routing().selected_expert_indices);
      }
    }
  }

  /// The parameters that an optimizer changes: without state, such as the bias of a router.
  std::vector<nn::NamedParameter> trained() const {
    auto parameters = nn::named_parameters(*model_);
    std::erase_if(parameters, [](const nn::NamedParameter& one) { return one.parameter->is_state(); });
    return parameters;
  }

  /// Returns gradients with the names and the expert layout of `expected`.
  std::vector<std::pair<std::string, at::Tensor>> gradients(const state::WeightReader& expected) const {
    std::vector<std::pair<std::string, at::Tensor>> values;
    state::NameSet names;
    for (const auto& [name, parameter] : trained()) {
      const at::Tensor& gradient = parameter->value().grad();
      values.emplace_back(name, gradient.defined() ? gradient : at::zeros_like(parameter->value()));
      names.insert(name);
    }
    return stored_tensors_of(values, checkpoint_map(*args_, expected).to(names));
  }

  void clear_gradients() {
    for (const auto& [name, parameter] : nn::named_parameters(*model_)) {
      at::Tensor value = parameter->value();
      value.mutable_grad().reset();
    }
  }

  void gradient_rows() {
    if (!has("labels")) {
      return;
    }
    const at::Tensor mask = has("attention_mask") ? reference_->tensor("attention_mask") : at::Tensor();
    const at::Tensor loss = loss_of(input("input_ids"), input("labels"), mask);
    compare("loss", loss);
    const Path file = folder_ / "grads.safetensors";
    if (!std::filesystem::exists(file)) {
      return;
    }
    loss.backward();
    ReferenceFile expected(file, "grad:");
    compare_all(expected, gradients(expected.reader()));
    clear_gradients();
  }

  /// Compares the loss including the load-balancing loss of all routers, and the routers' gradients.
  void balancing_rows() {
    nn::RouterLosses* losses = model_->router_losses();
    const Node config = parse_json_file(folder_of_model_.base / "config.json");
    const Node* coefficient = config.find("router_aux_loss_coef");
    if (!has("aux_loss") || losses == nullptr || coefficient == nullptr || coefficient->as_double() == 0) {
      return;
    }
    losses->begin({.load_balancing = coefficient->as_double()});
    const at::Tensor loss = loss_of(input("input_ids"), input("labels"), at::Tensor());
    const at::Tensor balancing = losses->load_balancing_loss();
    compare("aux_loss", balancing);
    compare("loss_with_aux", loss + coefficient->as_double() * balancing);
    loss.backward();
    for (const auto& [name, gradient] : gradients(reference_->reader())) {
      compare("grad_with_aux:" + name, gradient);
    }
    losses->begin({});
    clear_gradients();
  }

  void padding_rows() {
    if (!has("padded_input_ids")) {
      return;
    }
    for (const std::string side : {"padded_right", "padded_left"}) {
      nn::ModelInputs inputs;
      inputs.input_ids = input("padded_input_ids");
      inputs.attention_mask = ops::row_mask({}, reference_->tensor(side + "_mask").to(at::kBool), options_.device);
      if (has(side + "_position_ids")) {
        inputs.position_ids = input(side + "_position_ids");
      }
      compare(side + "_logits", logits_of(inputs) * inputs.attention_mask.key_padding.unsqueeze(-1));
    }
  }

  void packing_rows() {
    if (!has("packed_input_ids")) {
      return;
    }
    at::NoGradGuard no_grad;
    nn::ModelInputs inputs;
    inputs.input_ids = input("packed_input_ids");
    inputs.position_ids = input("packed_position_ids");
    inputs.attention_mask = ops::row_mask(reference_->tensor("packed_doc_ids"), {}, options_.device);
    const at::Tensor& documents = inputs.attention_mask.document_ids;
    compare("packed_logits", logits_of(inputs));
    const int64_t tokens = documents.size(1);
    at::Tensor labels = shifted(inputs.input_ids);
    const at::Tensor crosses = documents.narrow(1, 1, tokens - 1).ne(documents.narrow(1, 0, tokens - 1));
    labels.narrow(1, 0, tokens - 1).masked_fill_(crosses, -100);
    inputs.labels = labels;
    compare("packed_loss", model_->forward(inputs).logps.sum() / labels.ne(-100).sum());
  }

  void generation_rows() {
    for (int i = 0; has("gen_prompt." + std::to_string(i)); ++i) {
      const at::Tensor prompt = reference_->tensor("gen_prompt." + std::to_string(i)).contiguous();
      const at::Tensor expected = reference_->tensor("gen_tokens." + std::to_string(i));
      const SamplingOptions greedy{.max_new_tokens = expected.size(0), .temperature = 0};
      const int64_t* ids = prompt.data_ptr<int64_t>();
      const auto tokens = generate(*model_, {ids, ids + prompt.numel()}, greedy);
      compare("gen_tokens." + std::to_string(i), at::tensor(tokens, at::kLong), expected);
    }
  }

  void trajectory_rows() {
    const Path settings_file = folder_ / "oracle.json";
    if (!has("train_input_ids") || !std::filesystem::exists(settings_file)) {
      return;
    }
    const Node settings = parse_json_file(settings_file);
    for (const std::string name : {"train", "train_clip"}) {
      if (has(name + "_losses")) {
        trajectory(name, settings.at("adamw").at(name));
      }
    }
  }

  void trajectory(const std::string& name, const Node& settings) {
    reload();
    optim::OptimizerConfig config;
    config.lr = settings.at("lr").as_double();
    config.beta1 = settings.at("betas").at(0).as_double();
    config.beta2 = settings.at("betas").at(1).as_double();
    config.eps = settings.at("eps").as_double();
    config.weight_decay = settings.at("weight_decay").as_double();
    const Node& max_norm = settings.at("max_grad_norm");
    std::vector<std::string> names;
    for (const auto& [parameter_name, parameter] : trained()) {
      names.push_back(parameter_name);
    }
    optim::AdamW optimizer(config, names);
    const at::Tensor ids = input("train_input_ids");
    const at::Tensor labels = input("train_labels");
    std::vector<at::Tensor> losses;
    std::vector<at::Tensor> norms;
    for (int64_t step = 0; step < ids.size(0); ++step) {
      const at::Tensor mask =
          has("train_attention_mask") ? reference_->tensor("train_attention_mask")[step] : at::Tensor();
      const at::Tensor loss = loss_of(ids[step], labels[step], mask);
      loss.backward();
      std::vector<optim::NamedParameter> parameters;
      std::vector<at::Tensor> gradients;
      for (const auto& [parameter_name, parameter] : trained()) {
        parameters.push_back({.name = parameter_name, .value = parameter->value(), .grad = parameter->value().grad()});
        gradients.push_back(parameter->value().grad());
      }
      const at::Tensor norm = optim::global_norm(gradients);
      losses.push_back(loss.detach().to(at::kDouble));
      norms.push_back(norm.detach());
      optim::StepOptions step_options;
      if (!max_norm.is_null()) {
        step_options.grad_divisor = optim::clip_divisor(norm, max_norm.as_double());
      }
      optimizer.step(parameters, step_options);
      clear_gradients();
    }
    compare(name + "_losses", at::stack(losses));
    compare(name + "_grad_norms", at::stack(norms));
    const Path final_file = folder_ / "final_params.safetensors";
    if (name == "train_clip" && std::filesystem::exists(final_file)) {
      ReferenceFile expected(final_file, "final_param:");
      compare_all(expected, stored_tensors(*model_, checkpoint_map(*args_, expected.reader())));
    }
  }

  VerifyOptions options_;
  ModelFolder folder_of_model_;
  const descriptor::ModelArgs* args_;
  Path folder_;
  std::unique_ptr<ReferenceFile> reference_;
  std::shared_ptr<nn::Model> model_;
  VerifyReport report_;
};
}  // namespace

VerifyReport verify(const VerifyOptions& options, const descriptor::ModelFamilies& families) {
  return Verifier(options, families).run();
}

}  // namespace lehr::train
