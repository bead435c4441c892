#include "lehr/verify/verify.h"

#include "lehr/base/error.h"
#include "lehr/config/json.h"
#include "lehr/descriptor/text_config.h"
#include "lehr/optim/adamw.h"
#include "lehr/optim/clip.h"
#include "lehr/pretrained/model_folder.h"
#include "lehr/pretrained/weights.h"
#include "lehr/state/weights.h"
#include "lehr/train/load_on_ranks.h"
#include "lehr/verify/outputs.h"

namespace lehr::verify {

namespace {
using Path = std::filesystem::path;

/// The parameters that an optimizer changes: without state, such as the bias of a router.
std::vector<nn::NamedParameter> trained(const nn::Model& model) {
  auto parameters = nn::named_parameters(model);
  std::erase_if(parameters, [](const nn::NamedParameter& one) { return one.parameter->is_state(); });
  return parameters;
}

at::Tensor gradient_of(const nn::Parameter& parameter) {
  const at::Tensor& gradient = parameter.value().grad();
  return gradient.defined() ? gradient : at::zeros_like(parameter.value());
}

/// Returns gradients, one for each trained parameter, with the names and the expert layout of `expected`.
std::vector<std::pair<std::string, at::Tensor>> stored_gradients(
    const std::vector<std::pair<std::string, at::Tensor>>& gradients,
    const descriptor::ModelArgs& args,
    const state::WeightReader& expected) {
  state::NameSet names;
  for (const auto& [name, gradient] : gradients) {
    names.insert(name);
  }
  return pretrained::stored_tensors_of(gradients, pretrained::checkpoint_map(args, expected).to(names));
}

/// The gradients of the reference's loss, or nullopt if it has none, or if they are of other weights than those that
/// are trained here.
std::optional<ReferenceFile> gradients_of_reference(Comparison& comparison, const pretrained::ModelFolder& folder) {
  const Path file = comparison.folder() / "grads.safetensors";
  if (!comparison.has("labels") || !std::filesystem::exists(file)) {
    return std::nullopt;
  }
  if (folder.has_adapters()) {
    comparison.leave_out("grads.safetensors, since the model has adapters");
    return std::nullopt;
  }
  return ReferenceFile(file, "grad:");
}

at::Tensor loss_of_reference(
    Comparison& comparison, nn::Model& model, const descriptor::ModelArgs& args, const train::Ranks& ranks) {
  const auto host = [&](const std::string& name) { return comparison.reference().tensor(name); };
  const at::Tensor mask = comparison.has("attention_mask") ? host("attention_mask") : at::Tensor();
  return reference_loss(model, args, ranks, comparison.options().device, host("input_ids"), host("labels"), mask);
}

/// Returns the whole gradients of a sharded model, in host memory: all ranks add their shards, and divide by the number
/// of ranks that have an element.
std::vector<std::pair<std::string, at::Tensor>> whole_gradients(const nn::Model& model, const train::Ranks& ranks) {
  std::vector<std::pair<std::string, at::Tensor>> gradients;
  for (const auto& [name, parameter] : trained(model)) {
    std::vector<int64_t> shape = parameter->shape();
    shape.insert(shape.begin(), 2);  // sums, and ranks that have the element
    const at::Tensor whole = at::zeros(shape, parameter->value().options());
    at::Tensor own = whole;
    for (size_t dim = 0; dim < parameter->box().size(); ++dim) {
      const Range& range = parameter->box()[dim];
      own = own.narrow(static_cast<int64_t>(dim) + 1, range.begin, range.size());
    }
    own[0].copy_(gradient_of(*parameter));
    own[1].fill_(1);
    ranks.sum_over_world(whole);
    gradients.emplace_back(name, (whole[0] / whole[1]).cpu());
  }
  return gradients;
}

/// Compares the gradients of a model without pipeline stages.
void compare_sharded_gradients(
    Comparison& comparison,
    train::ModelOnRanks& sharded,
    nn::Model& model,
    const pretrained::ModelFolder& folder,
    const train::Ranks& ranks) {
  if (ranks.context()->size(mesh::axis::pp) > 1) {
    return;
  }
  std::optional<ReferenceFile> expected;
  std::exception_ptr unreadable;  // thrown when the others know, since they would wait in collectives
  try {
    expected = gradients_of_reference(comparison, folder);
  } catch (const Error&) {
    unreadable = std::current_exception();
  }
  const bool lacked = ranks.any(!expected);
  if (unreadable) {
    std::rethrow_exception(unreadable);
  }
  if (lacked || !expected) {
    return;
  }
  sharded.stages().front().sharded.begin_step();
  // Gradients are sums over the data-parallel ranks, which all have the same sequences.
  const auto same = static_cast<double>(ranks.context()->parameters().data_parallel_shard);
  (loss_of_reference(comparison, model, *folder.args, ranks) / same).backward();
  sharded.stages().front().sharded.finish_backward();
  comparison.compare_all(*expected, stored_gradients(whole_gradients(model, ranks), *folder.args, expected->reader()));
}

/// Compares a whole model on one device.
class Verifier {
 public:
  Verifier(const VerifyOptions& options, const pretrained::ModelFolder& folder)
      : options_(options), folder_of_model_(folder), args_(*folder.args), comparison_(options) {
    reload();
  }

  VerifyReport run() {
    compare_outputs(comparison_, *model_, args_, one_device_);
    gradient_rows();
    if (!folder_of_model_.has_adapters()) {
      balancing_rows();
      trajectory_rows();
    }
    return comparison_.finish();
  }

 private:
  void reload() {
    model_ = folder_of_model_.load(options_.device, options_.dtype);
    model_->train();
    model_->eval();
  }

  bool has(const std::string& name) const { return comparison_.has(name); }
  at::Tensor host(const std::string& name) { return comparison_.reference().tensor(name); }
  at::Tensor loss_of(const at::Tensor& input_ids, const at::Tensor& labels, const at::Tensor& mask) {
    return reference_loss(*model_, args_, one_device_, options_.device, input_ids, labels, mask);
  }

  std::vector<std::pair<std::string, at::Tensor>> gradients(const state::WeightReader& expected) const {
    std::vector<std::pair<std::string, at::Tensor>> values;
    for (const auto& [name, parameter] : trained(*model_)) {
      values.emplace_back(name, gradient_of(*parameter));
    }
    return stored_gradients(values, args_, expected);
  }

  void clear_gradients() {
    for (const auto& [name, parameter] : nn::named_parameters(*model_)) {
      at::Tensor value = parameter->value();
      value.mutable_grad().reset();
    }
  }

  void gradient_rows() {
    if (auto expected = gradients_of_reference(comparison_, folder_of_model_)) {
      loss_of_reference(comparison_, *model_, args_, one_device_).backward();
      comparison_.compare_all(*expected, gradients(expected->reader()));
      clear_gradients();
    }
  }

  /// Compares the loss including the load-balancing loss of all routers, and the routers' gradients.
  void balancing_rows() {
    nn::RouterLosses* losses = model_->router_losses();
    const Node config = descriptor::text_config_of(parse_json_file(folder_of_model_.base / "config.json"));
    const Node* coefficient = config.find("router_aux_loss_coef");
    if (!has("aux_loss") || !has("labels") || losses == nullptr || coefficient == nullptr ||
        coefficient->as_double() == 0) {
      return;
    }
    losses->begin({.load_balancing = coefficient->as_double()});
    const at::Tensor loss = loss_of(host("input_ids"), host("labels"), at::Tensor());
    const at::Tensor balancing = losses->load_balancing_loss();
    comparison_.compare("aux_loss", balancing);
    comparison_.compare("loss_with_aux", loss + coefficient->as_double() * balancing);
    loss.backward();
    for (const auto& [name, gradient] : gradients(comparison_.reference().reader())) {
      comparison_.compare("grad_with_aux:" + name, gradient);
    }
    losses->begin({});
    clear_gradients();
  }

  void trajectory_rows() {
    const Path settings_file = comparison_.folder() / "oracle.json";
    if (!has("train_input_ids") || !has("train_labels") || !std::filesystem::exists(settings_file)) {
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
    for (const auto& [parameter_name, parameter] : trained(*model_)) {
      names.push_back(parameter_name);
    }
    optim::AdamW optimizer(config, names);
    const at::Tensor ids = host("train_input_ids");
    const at::Tensor labels = host("train_labels");
    std::vector<at::Tensor> losses;
    std::vector<at::Tensor> norms;
    for (int64_t step = 0; step < ids.size(0); ++step) {
      const at::Tensor mask = has("train_attention_mask") ? host("train_attention_mask")[step] : at::Tensor();
      const at::Tensor loss = loss_of(ids[step], labels[step], mask);
      loss.backward();
      std::vector<optim::NamedParameter> parameters;
      std::vector<at::Tensor> gradients;
      for (const auto& [parameter_name, parameter] : trained(*model_)) {
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
    comparison_.compare(name + "_losses", at::stack(losses));
    comparison_.compare(name + "_grad_norms", at::stack(norms));
    const Path final_file = comparison_.folder() / "final_params.safetensors";
    if (name == "train_clip" && std::filesystem::exists(final_file)) {
      ReferenceFile expected(final_file, "final_param:");
      comparison_.compare_all(
          expected, pretrained::stored_tensors(*model_, pretrained::checkpoint_map(args_, expected.reader())));
    }
  }

  const VerifyOptions& options_;
  const pretrained::ModelFolder& folder_of_model_;
  const descriptor::ModelArgs& args_;
  const train::Ranks one_device_ = {};
  Comparison comparison_;
  std::shared_ptr<nn::Model> model_;
};

pretrained::ModelFolder open_model(const VerifyOptions& options, const descriptor::ModelFamilies& families) {
  pretrained::ModelFolder folder = pretrained::ModelFolder::open(options.model, families);
  require(
      folder.args->head() != descriptor::Head::embedding,
      "{}: config.json names a backbone without a head (architectures); verify compares language models and "
      "classifiers",
      options.model.string());
  return folder;
}
}  // namespace

VerifyReport verify_folder(const VerifyOptions& options, const descriptor::ModelFamilies& families) {
  const pretrained::ModelFolder folder = open_model(options, families);
  return Verifier(options, folder).run();
}

VerifyReport verify_on_ranks(
    const VerifyOptions& options,
    const train::TrainSpecs& specs,
    const train::ParallelismConfig& parallelism,
    const train::Ranks& ranks) {
  if (ranks.context() == nullptr) {
    return verify_folder(options, specs.families());
  }
  const pretrained::ModelFolder folder = open_model(options, specs.families());
  Comparison comparison(options);
  train::ModelOnRanks sharded(
      folder,
      specs,
      train::config_for_whole_sequences(folder, parallelism, options.dtype, ranks),
      ranks,
      options.device);
  const auto model = sharded.load();
  compare_outputs(comparison, *model, *folder.args, ranks);
  compare_sharded_gradients(comparison, sharded, *model, folder, ranks);
  return comparison.finish();
}

}  // namespace lehr::verify
