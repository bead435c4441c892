#include "lehr/train/staged_model.h"

#include "lehr/base/error.h"
#include "lehr/nn/moe.h"
#include "lehr/pipeline/communication.h"
#include "lehr/pipeline/executor.h"
#include "lehr/pipeline/progress.h"

namespace lehr::train {

namespace {
// The sequences [first, first + count) of each input that has a batch dimension.
nn::ModelInputs rows_of(const nn::ModelInputs& inputs, int64_t first, int64_t count) {
  nn::ModelInputs part = inputs;
  ops::AttentionMask& mask = part.attention_mask;
  mask.cumulative_lengths.reset();  // describes the whole batch
  for (at::Tensor* tensor :
       {&part.input_ids,
        &part.position_ids,
        &part.labels,
        &part.pooling_mask,
        &part.token_mask,
        &part.hidden_states_agg_mask,
        &mask.document_ids,
        &mask.key_padding,
        &mask.allowed,
        &mask.bias,
        &mask.sequence_ends}) {
    if (tensor->defined() && tensor->size(0) == inputs.input_ids.size(0)) {  // otherwise shared by all sequences
      *tensor = tensor->narrow(0, first, count);
    }
  }
  return part;
}

// A program that runs every stage's forward for each micro-batch.
pipeline::Program forward_program(const std::vector<int64_t>& rank_of_stage, int64_t num_ranks, int64_t parts) {
  pipeline::Program program{.num_microbatches = parts, .rank_of_stage = rank_of_stage};
  program.ranks.resize(static_cast<size_t>(num_ranks));
  for (size_t stage = 0; stage < rank_of_stage.size(); ++stage) {
    for (int64_t m = 0; m < parts; ++m) {
      program.ranks[static_cast<size_t>(rank_of_stage[stage])].push_back(
          {{.kind = pipeline::ActionKind::forward, .stage = static_cast<int64_t>(stage), .microbatch = m}});
    }
  }
  return pipeline::add_communication(program);
}
}  // namespace

StagedModel::StagedModel(std::vector<Stage> stages, std::vector<int64_t> rank_of_stage, const mesh::Group& pp)
    : stages_(std::move(stages)), rank_of_stage_(std::move(rank_of_stage)), pp_(pp) {
  for (const auto& [number, model] : stages_) {
    register_module("stage_" + std::to_string(number), model);
  }
}

int64_t StagedModel::num_local_layers() const {
  int64_t layers = 0;
  for (const auto& stage : stages_) {
    layers += stage.model->num_local_layers();
  }
  return layers;
}

at::Tensor StagedModel::moe_tokens_per_expert() {
  return nn::moe_tokens_per_expert(*this);
}

void StagedModel::reset_moe_stats() {
  nn::reset_moe_stats(*this);
}

// Runs a stage without gradients.
class StagedModel::Runner : public pipeline::StageRunner {
 public:
  Runner(nn::Model& model, int64_t number, const std::vector<nn::ModelInputs>& inputs, nn::KeyValueCaches* caches)
      : model_(model), number_(number), inputs_(inputs), caches_(caches) {}

  pipeline::TensorDict input_specs(int64_t part) const override {
    const auto& shapes = dynamic_cast<const pipeline::ModuleSupportsPipelining&>(model_);
    const auto& inputs = inputs_[static_cast<size_t>(part)];
    return shapes.infer_stage_inputs_from_pipeline_inputs({{"input_ids", inputs.input_ids}}, 1);
  }
  pipeline::TensorDict output_specs(int64_t /*part*/) const override { return {}; }
  pipeline::TensorDict forward(int64_t part, pipeline::TensorDict received) override {
    nn::ModelInputs inputs = inputs_[static_cast<size_t>(part)];
    inputs.receive(std::move(received));
    inputs.caches = caches_;
    outputs.push_back(model_.forward(inputs));
    pipeline::TensorDict sent;
    for (auto& [name, tensor] : outputs.back().to_dict()) {
      sent[name] = tensor;
    }
    if (!kept_) {
      outputs.clear();
    }
    return sent;
  }
  pipeline::TensorDict backward(int64_t, pipeline::TensorDict, bool) override {
    fail("stage {}: no gradients", number_);
  }
  void backward_weight(int64_t) override { fail("stage {}: no gradients", number_); }

  void keep() { kept_ = true; }
  std::vector<nn::ModelOutputs> outputs;

 private:
  nn::Model& model_;
  int64_t number_;
  const std::vector<nn::ModelInputs>& inputs_;
  nn::KeyValueCaches* caches_;
  bool kept_ = false;
};

// Broadcasts a tensor from the last stage's rank, which alone knows its shape and dtype.
void StagedModel::from_last(at::Tensor& tensor, at::Device device) const {
  constexpr int64_t kMaxDims = 8;
  at::Tensor header = at::full({kMaxDims + 2}, -1, at::kLong);
  auto* fields = header.data_ptr<int64_t>();
  if (has_last() && tensor.defined()) {
    fields[0] = static_cast<int64_t>(tensor.scalar_type());
    fields[1] = tensor.dim();
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), fields + 2);
    tensor = tensor.contiguous();
  }
  pp_.broadcast(header, last_rank());
  if (fields[0] < 0) {
    return;
  }
  if (!has_last()) {
    tensor = at::empty(
        at::IntArrayRef(fields + 2, static_cast<size_t>(fields[1])),
        at::TensorOptions().dtype(static_cast<at::ScalarType>(fields[0])).device(device));
  }
  if (tensor.numel() > 0) {  // a rank of context parallelism may have no pooled position
    pp_.broadcast(tensor, last_rank());
  }
}

nn::ModelOutputs StagedModel::forward(const nn::ModelInputs& inputs) {
  const at::NoGradGuard no_grad;
  require(
      inputs.input_ids.defined(), "input_ids: required on every rank of a pipeline, for the shape of hidden states");
  device_ = inputs.input_ids.device();
  const int64_t rows = inputs.input_ids.size(0);
  const int64_t parts = inputs.caches != nullptr ? 1 : std::min(rows, 4 * pp_.size());
  std::vector<nn::ModelInputs> all;
  for (int64_t p = 0; p < parts; ++p) {
    const int64_t first = rows * p / parts;
    all.push_back(rows_of(inputs, first, rows * (p + 1) / parts - first));
  }
  // The caches of this rank's layers, per stage.
  std::vector<nn::KeyValueCaches> caches(stages_.size());
  std::map<int64_t, std::unique_ptr<Runner>> runners;
  std::map<int64_t, pipeline::StageRunner*> by_stage;
  size_t next_cache = 0;
  for (size_t i = 0; i < stages_.size(); ++i) {
    const auto& [number, model] = stages_[i];
    if (inputs.caches != nullptr) {
      for (int64_t layer = 0; layer < model->num_local_layers(); ++layer) {
        caches[i].push_back(std::move(inputs.caches->at(next_cache++)));
      }
    }
    runners[number] = std::make_unique<Runner>(*model, number, all, inputs.caches != nullptr ? &caches[i] : nullptr);
    by_stage[number] = runners[number].get();
  }
  const int64_t last_stage = static_cast<int64_t>(rank_of_stage_.size()) - 1;
  if (has_last()) {
    runners.at(last_stage)->keep();
  }
  auto program = programs_.find(parts);
  if (program == programs_.end()) {
    auto built = forward_program(rank_of_stage_, pp_.size(), parts);
    const bool bound_sends = pipeline::sends_may_wait(built);
    program = programs_.emplace(parts, ForwardProgram{std::move(built), bound_sends}).first;
  }
  pipeline::run_program(
      program->second.program,
      pp_.rank(),
      &pp_,
      by_stage,
      {.device = inputs.input_ids.device(), .bound_sends = program->second.bound_sends});
  next_cache = 0;
  for (auto& of_stage : caches) {
    for (auto& cache : of_stage) {
      inputs.caches->at(next_cache++) = std::move(cache);
    }
  }
  nn::ModelOutputs outputs;
  for (const auto member :
       {&nn::ModelOutputs::logps,
        &nn::ModelOutputs::scores,
        &nn::ModelOutputs::embeddings,
        &nn::ModelOutputs::hidden_states}) {
    if (has_last()) {
      std::vector<at::Tensor> tensors;
      for (const auto& output : runners.at(last_stage)->outputs) {
        if ((output.*member).defined()) {
          tensors.push_back(output.*member);
        }
      }
      if (!tensors.empty()) {
        outputs.*member = at::cat(tensors);
      }
    }
    if (member != &nn::ModelOutputs::hidden_states || inputs.caches != nullptr) {
      from_last(outputs.*member, device_);
    }
  }
  return outputs;
}

at::Tensor StagedModel::logits(const at::Tensor& final_hidden_states) {
  at::Tensor logits;
  if (has_last()) {
    logits = stages_.back().model->logits(final_hidden_states);
  }
  from_last(logits, device_);
  return logits;
}

}  // namespace lehr::train
