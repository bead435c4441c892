#include "lehr/train/distillation.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/nn/head.h"
#include "lehr/shard/fully_shard.h"
#include "lehr/train/precision.h"

namespace lehr::train {

namespace {
constexpr const char* kKey = "distillation.teacher";

// The sizes of a model, from its modules: every family has them.
struct Sizes {
  int64_t layers;
  int64_t hidden;
  std::vector<int64_t> segments;  // of the vocabulary

  explicit Sizes(const descriptor::ModelArgs& args) {
    const auto model = args.build({});  // on meta
    layers = model->num_local_layers();
    hidden = model->head_weight().size(1);
    for (const auto& module : model->modules()) {
      if (const auto* head = module->as<nn::SplitLanguageModellingHeadImpl>()) {
        for (const nn::Linear& segment : head->segments) {
          segments.push_back(segment->weight.size(0));
        }
      }
    }
  }
};

// Each rank of tensor parallelism has a part of each segment, of both heads.
void check_segments(const std::string& path, const Sizes& teacher, const Sizes& student) {
  require(
      teacher.segments == student.segments,
      "{}: with parallelism.tensor_parallel_degree above 1 both vocabularies must be split alike, but {} has segments of "
      "{} tokens, and the model of {} (ModelOverrides::split_vocab_size)",
      kKey,
      path,
      fmt::join(teacher.segments, ", "),
      fmt::join(student.segments, ", "));
}
}  // namespace

std::optional<pretrained::ModelFolder> open_teacher(
    const TrainConfig& config, const descriptor::ModelFamilies& families, const descriptor::ModelArgs& student) {
  if (!config.distillation.teacher) {
    return std::nullopt;
  }
  const std::string& path = *config.distillation.teacher;
  require(std::filesystem::is_directory(path), "{}: {} is not a folder; set it to the folder of a model", kKey, path);
  pretrained::ModelFolder teacher = pretrained::ModelFolder::open(path, families);
  const descriptor::ModelArgs& args = *teacher.args;
  require(
      args.head() == descriptor::Head::causal_lm,
      "{}: {} holds no causal language model, but the model learns its token distribution",
      kKey,
      path);
  require(
      args.vocab_size() == student.vocab_size(),
      "{}: the vocabulary of {} has {} tokens, but the model's has {} (model.args.vocab_size); both need the same one",
      kKey,
      path,
      args.vocab_size(),
      student.vocab_size());
  require(
      config.training.seq_len <= args.max_position_ids(),
      "{}: training.seq_len = {} tokens do not fit into the {} positions of {}",
      kKey,
      config.training.seq_len,
      args.max_position_ids(),
      path);
  if (config.parallelism.tensor_parallel_degree > 1) {
    check_segments(path, Sizes(args), Sizes(student));
  }
  if (config.distillation.cosine_weight > 0) {
    const Sizes of_teacher(args), of_student(student);
    require(
        of_teacher.layers == of_student.layers && of_teacher.hidden == of_student.hidden,
        "distillation.cosine_weight: hidden states are compared layer by layer, but {} has {} layers of size {}, and "
        "the model {} of size {}; set it to 0",
        path,
        of_teacher.layers,
        of_teacher.hidden,
        of_student.layers,
        of_student.hidden);
  }
  return teacher;
}

int64_t teacher_bytes(
    const TrainConfig& config, const descriptor::ModelArgs& teacher, const mesh::DistributedContext* context) {
  const Sizes sizes(teacher);
  const int64_t parameters = teacher.get_nparams_and_flops(config.training.seq_len).num_parameters;
  const mesh::DeviceMeshParameters mesh = context == nullptr ? mesh::DeviceMeshParameters{} : context->parameters();
  const int64_t shards = mesh.data_parallel_shard * mesh.context_parallel * mesh.tensor_parallel;
  int64_t weights = parameters;
  if (config.parallelism.fsdp_reshard_after_forward == shard::ReshardPolicy::never) {
    weights = parameters / mesh.tensor_parallel;
  } else if (shards > 1) {
    // The head stays unsharded until the model has computed its loss; a layer is unsharded while the one before runs.
    const int64_t head = teacher.vocab_size() * sizes.hidden;
    const int64_t whole = head + 2 * (parameters - head) / sizes.layers;
    weights = std::min(parameters, parameters / shards + whole / mesh.tensor_parallel);
  }
  const int64_t tokens =
      config.training.local_batch_size * config.training.seq_len / (mesh.context_parallel * mesh.tensor_parallel);
  const int64_t kept = config.distillation.cosine_weight > 0 ? sizes.layers + 1 : 1;  // hidden states
  return (weights + kept * tokens * sizes.hidden) *
         static_cast<int64_t>(c10::elementSize(compute_type(config.training)));
}

std::string describe_teacher(
    const TrainConfig& config, const pretrained::ModelFolder& teacher, const mesh::DistributedContext* context) {
  return fmt::format(
      "{} ({}): {} parameters, {} in a step",
      teacher.path.string(),
      teacher.args->model_type(),
      human_count(static_cast<double>(teacher.args->get_nparams_and_flops(1).num_parameters)),
      human_bytes(static_cast<double>(teacher_bytes(config, *teacher.args, context))));
}

DistillationTask::DistillationTask(
    const TrainTask& task,
    const DistillationConfig& config,
    std::shared_ptr<nn::Model> teacher,
    shard::FullySharded* sharded)
    : task_(task),
      teacher_(std::move(teacher)),
      sharded_(sharded),
      loss_{
          .temperature = config.temperature,
          .kl_weight = config.kl_weight * config.temperature * config.temperature,
          .nll_weight = config.loss_weight,
          .ignore_index = nn::kIgnoreIndex},
      cosine_weight_(config.cosine_weight) {
  if (sharded_ == nullptr) {
    at::NoGradGuard no_grad;
    head_weight_ = teacher_->head_weight();
  }
}

nn::ModelInputs DistillationTask::build_forward_inputs(const Batch& batch) const {
  nn::ModelInputs inputs = task_.build_forward_inputs(batch);
  auto targets = std::make_shared<nn::DistillationTargets>();
  {
    at::NoGradGuard no_grad;
    nn::ModelInputs of_teacher = inputs;
    of_teacher.labels = at::Tensor();  // no loss of its own
    of_teacher.layer_outputs = cosine_weight_ > 0 ? &targets->layer_outputs : nullptr;
    if (sharded_ != nullptr) {
      sharded_->reset();  // the head is unsharded since the last batch
    }
    targets->hidden_states = teacher_->forward(of_teacher).hidden_states;
    // A sharded head is whole since the final norm ran, because both are one unit, and the head was not called.
    targets->head_weight = sharded_ == nullptr ? head_weight_ : teacher_->head_weight();
  }
  targets->loss = loss_;
  inputs.distillation = std::move(targets);
  return inputs;
}

at::Tensor DistillationTask::compute_loss(const nn::ModelOutputs& outputs, const Batch& /*batch*/) const {
  const nn::Distilled& distilled = outputs.distilled;
  require(
      distilled.loss.defined() && (cosine_weight_ == 0 || distilled.cosine_distance.defined()),
      "distillation: the model returned no comparison with the teacher; its family does not support distillation");
  const at::Tensor loss = distilled.loss.sum();
  return cosine_weight_ > 0 ? loss + cosine_weight_ * distilled.cosine_distance.sum() : loss;
}

std::map<std::string, at::Tensor> DistillationTask::compute_metrics(
    const nn::ModelOutputs& outputs, const Batch& batch) const {
  auto metrics = task_.compute_metrics(outputs, batch);
  const nn::Distilled& distilled = outputs.distilled;
  metrics["kl"] = distilled.kl.sum();
  metrics["ce"] = outputs.nll().sum();
  metrics["agreement"] = distilled.agrees.sum();
  if (distilled.cosine_distance.defined()) {
    metrics["cosine"] = distilled.cosine_distance.detach().sum();
  }
  return metrics;
}

}  // namespace lehr::train
