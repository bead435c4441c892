#include "python/module/model.h"

#include "lehr/app/models.h"
#include "lehr/base/error.h"
#include "lehr/base/json.h"
#include "lehr/state/dtype.h"
#include "lehr/train/device.h"
#include "lehr/train/generate.h"
#include "lehr/train/model_folder.h"

namespace lehr::python {

std::vector<int64_t> Tokenizer::encode(const std::string& text) const {
  const std::vector<int32_t> ids = tokenizer_->encode(text);
  return {ids.begin(), ids.end()};
}

std::string Tokenizer::decode(const std::vector<int64_t>& ids, bool skip_special) const {
  const std::vector<int32_t> narrow(ids.begin(), ids.end());
  return tokenizer_->decode(narrow, skip_special);
}

c10::intrusive_ptr<Model> Model::load(const std::string& folder, const std::string& device, at::ScalarType dtype) {
  const auto opened = std::make_shared<train::ModelFolder>(train::ModelFolder::open(folder, app::models().families()));
  Parts parts{
      .model = opened->load(train::choose_device(device), dtype),
      .args = {opened, opened->args.get()},
      .has_adapters = opened->has_adapters(),
      .files = {.output = {}, .dtype = dtype, .copies = train::files_beside(*opened)}};
  return c10::make_intrusive<Model>(std::move(parts));
}

NamedTensors Model::forward(
    const at::Tensor& input_ids,
    const std::optional<at::Tensor>& targets,
    const std::optional<at::Tensor>& position_ids,
    const std::optional<at::Tensor>& attention_mask,
    const std::optional<at::Tensor>& document_ids,
    const std::optional<at::Tensor>& pooling_mask) const {
  require(
      input_ids.dim() == 2 && input_ids.scalar_type() == at::kLong,
      "input_ids: expected (B, T) int64, found {} dimensions of {}",
      input_ids.dim(),
      c10::toString(input_ids.scalar_type()));
  require(
      !targets || (targets->sizes() == input_ids.sizes() && targets->scalar_type() == at::kLong),
      "targets: expected the shape of input_ids, int64");
  nn::ModelInputs inputs;
  inputs.input_ids = input_ids;
  inputs.labels = targets.value_or(at::Tensor());
  inputs.position_ids = position_ids.value_or(at::Tensor());
  inputs.pooling_mask = pooling_mask.value_or(at::Tensor());
  inputs.attention_mask.document_ids = document_ids.value_or(at::Tensor());
  if (attention_mask) {
    inputs.attention_mask.key_padding = attention_mask->to(at::kBool);
  }
  NamedTensors outputs;
  for (const auto& [name, tensor] : parts_.model->forward(inputs).to_dict()) {
    outputs.insert(name == "logps" ? "nll" : name, tensor);
  }
  return outputs;
}

std::vector<int64_t> Model::generate(
    const std::vector<int64_t>& prompt,
    int64_t max_new_tokens,
    double temperature,
    int64_t top_k,
    double top_p,
    int64_t seed,
    const std::optional<std::vector<int64_t>>& stop_ids,
    int64_t on_token) const {
  require(
      parts_.args->head() == descriptor::Head::causal_lm,
      "generate: expected a model with a language-model head, found one without");
  require(
      max_new_tokens > 0 && temperature >= 0 && top_k >= 0 && top_p > 0 && top_p <= 1 && seed >= 0,
      "generate: expected max_new_tokens > 0, temperature, top_k and seed >= 0, and top_p in (0, 1]");
  const bool training = parts_.model->is_training();
  parts_.model->eval();
  const auto restored = std::shared_ptr<void>(nullptr, [&](void*) { parts_.model->train(training); });
  const Callback callback(on_token);
  return train::generate(
      *parts_.model,
      prompt,
      {.max_new_tokens = max_new_tokens,
       .temperature = temperature,
       .top_k = top_k,
       .top_p = top_p,
       .seed = static_cast<uint64_t>(seed),
       .stop_ids = stop_ids.value_or(parts_.args->eos_token_ids()),
       .max_positions = parts_.args->max_position_ids()},
      [&](int64_t token) {
        if (callback) {
          callback(token);
        }
        return true;
      });
}

std::vector<std::tuple<std::string, at::Tensor>> Model::named_parameters() const {
  std::vector<std::tuple<std::string, at::Tensor>> named;
  for (const auto& [name, parameter] : nn::named_parameters(*parts_.model)) {
    named.emplace_back(name, parameter->value());
  }
  return named;
}

void Model::save(const std::string& folder, at::ScalarType dtype) const {
  require(
      !parts_.has_adapters,
      "save: the model has adapters, which a model folder does not hold; merge them first: lehr merge --adapter ...");
  train::SaveOptions options = parts_.files;
  options.output = folder;
  options.dtype = dtype;
  train::save_model(*parts_.model, *parts_.args, options);
}

std::string Model::config() const {
  return to_json(parts_.args->to_hf_config(state::torch_name(parts_.files.dtype)));
}

}  // namespace lehr::python
