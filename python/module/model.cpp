#include "python/module/model.h"

#include <ATen/autocast_mode.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>

#include "lehr/app/models.h"
#include "lehr/base/error.h"
#include "lehr/config/json.h"
#include "lehr/data/decode_after.h"
#include "lehr/pretrained/model_folder.h"
#include "lehr/state/dtype.h"
#include "lehr/train/device.h"
#include "lehr/train/generate.h"

namespace lehr::python {

namespace {
std::string layout_name(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided ? "a dense one" : "another layout";
}

// Positions (1, T), as transformers takes them, are those of every sequence.
at::Tensor of_all_sequences(const at::Tensor& position_ids, const at::Tensor& input_ids) {
  const bool one = position_ids.dim() == 2 && position_ids.size(0) == 1 && position_ids.size(1) == input_ids.size(1);
  return one ? position_ids.expand({input_ids.size(0), -1}).contiguous() : position_ids;
}

// Refuses tensors that the model would misread (another dtype or layout), or read out of bounds.
void check_like_ids(
    const char* name, const std::optional<at::Tensor>& given, const at::Tensor& input_ids, bool of_any_type = false) {
  if (!given) {
    return;
  }
  require(
      given->sizes() == input_ids.sizes() && (of_any_type || given->scalar_type() == at::kLong),
      "{}: expected ({}, {}){}, as input_ids; found {} of ({})",
      name,
      input_ids.size(0),
      input_ids.size(1),
      of_any_type ? "" : " int64",
      c10::toString(given->scalar_type()),
      fmt::format("{}", fmt::join(given->sizes(), ", ")));
  require(
      given->device() == input_ids.device() && given->layout() == at::kStrided,
      "{}: expected a dense tensor on {}, as input_ids; found {} on {}",
      name,
      input_ids.device().str(),
      layout_name(*given),
      given->device().str());
}

void check_ids(const at::Tensor& input_ids) {
  require(
      input_ids.dim() == 2 && input_ids.scalar_type() == at::kLong && input_ids.numel() > 0,
      "input_ids: expected (B, T) int64 with at least one token, found {} of ({})",
      c10::toString(input_ids.scalar_type()),
      fmt::format("{}", fmt::join(input_ids.sizes(), ", ")));
  const at::Device device = input_ids.device();
  require(
      (device.is_cpu() || device.is_cuda()) && input_ids.layout() == at::kStrided,
      "input_ids: expected a dense tensor on cpu or cuda, where the model is; found {} on {}",
      layout_name(input_ids),
      device.str());
  require(
      !at::autocast::is_autocast_enabled(device.type()),
      "torch.autocast: a model of Lehr computes in one dtype; leave the context, and load the model with "
      "dtype=torch.bfloat16 (in a Trainer: training.mixed_precision_param)");
}
}  // namespace

std::vector<int64_t> Tokenizer::encode(const std::string& text) const {
  const std::vector<int32_t> ids = tokenizer_->encode(text);
  return {ids.begin(), ids.end()};
}

std::tuple<std::vector<int64_t>, std::vector<int64_t>> Tokenizer::special_tokens() const {
  const data::SpecialTokens special = tokenizer_->special_tokens();
  return {{special.before.begin(), special.before.end()}, {special.after.begin(), special.after.end()}};
}

namespace {
std::vector<int32_t> narrow(const std::vector<int64_t>& ids) {
  for (const int64_t id : ids) {
    require(
        id >= 0 && id <= std::numeric_limits<int32_t>::max(),
        "decode: expected ids from 0 on that are int32, found {}",
        id);
  }
  return {ids.begin(), ids.end()};
}
}  // namespace

std::string Tokenizer::decode(const std::vector<int64_t>& ids, bool skip_special) const {
  return tokenizer_->decode(narrow(ids), skip_special);
}

std::string Tokenizer::decode_after(
    const std::vector<int64_t>& before, const std::vector<int64_t>& ids, bool skip_special) const {
  return data::decode_after(*tokenizer_, narrow(before), narrow(ids), skip_special);
}

c10::intrusive_ptr<Model> Model::load(const std::string& folder, const std::string& device, at::ScalarType dtype) {
  const auto opened =
      std::make_shared<pretrained::ModelFolder>(pretrained::ModelFolder::open(folder, app::models().families()));
  Parts parts{
      .model = opened->load(train::choose_device(device), dtype),
      .args = {opened, opened->args.get()},
      .has_adapters = opened->has_adapters(),
      .stop_ids = opened->stop_ids(),
      .files = {.output = {}, .dtype = dtype, .copies = pretrained::files_beside(*opened)}};
  return c10::make_intrusive<Model>(std::move(parts));
}

NamedTensors Model::forward(
    const at::Tensor& input_ids,
    const std::optional<at::Tensor>& targets,
    const std::optional<at::Tensor>& position_ids,
    const std::optional<at::Tensor>& attention_mask,
    const std::optional<at::Tensor>& document_ids,
    const std::optional<at::Tensor>& pooling_mask) const {
  check_ids(input_ids);
  check_like_ids("targets", targets, input_ids);
  const at::Tensor positions = position_ids ? of_all_sequences(*position_ids, input_ids) : at::Tensor();
  check_like_ids("position_ids", position_ids ? std::optional(positions) : std::nullopt, input_ids);
  check_like_ids("attention_mask", attention_mask, input_ids, /*of_any_type=*/true);
  check_like_ids("document_ids", document_ids, input_ids);
  check_like_ids("pooling_mask", pooling_mask, input_ids, /*of_any_type=*/true);
  nn::ModelInputs inputs;
  inputs.input_ids = input_ids;
  inputs.labels = targets.value_or(at::Tensor());
  inputs.position_ids = positions;
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
  require(max_new_tokens > 0, "max_new_tokens: expected more than 0, found {}", max_new_tokens);
  require(temperature >= 0 && std::isfinite(temperature), "temperature: expected at least 0, found {}", temperature);
  require(top_k >= 0, "top_k: expected at least 0 (0: all tokens), found {}", top_k);
  require(top_p > 0 && top_p <= 1, "top_p: expected more than 0, at most 1, found {}", top_p);
  require(seed >= 0, "seed: expected at least 0, found {}", seed);
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
       .stop_ids = stop_ids.value_or(parts_.stop_ids.empty() ? parts_.args->eos_token_ids() : parts_.stop_ids),
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
  pretrained::SaveOptions options = parts_.files;
  options.output = folder;
  options.dtype = dtype;
  pretrained::save_model(*parts_.model, *parts_.args, options);
}

std::string Model::config() const {
  return to_json(parts_.args->to_hf_config(state::torch_name(parts_.files.dtype)));
}

}  // namespace lehr::python
