#include "lehr/train/distillation.h"

#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/nn/head.h"
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
    const TrainTask& task, const DistillationConfig& config, std::map<int64_t, TeacherStage> stages)
    : task_(task), stages_(std::move(stages)), cosine_weight_(config.cosine_weight) {}

DistillationTask::DistillationTask(
    const TrainTask& task, const DistillationConfig& config, std::shared_ptr<nn::Model> teacher)
    : task_(task), cosine_weight_(config.cosine_weight) {
  const int64_t layers = teacher->num_local_layers();
  stages_.emplace(0, TeacherStage(std::move(teacher), nullptr, /*is_last=*/true, {.first = 0, .all = layers}, config));
}

at::Tensor DistillationTask::compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const {
  const nn::Distilled& distilled = outputs.distilled;
  require(
      distilled.loss.defined() && (cosine_weight_ == 0 || distilled.cosine_distance.defined()),
      "distillation: the model returned no comparison with the teacher; its family does not support distillation");
  at::Tensor loss = distilled.loss.sum();
  if (outputs.future_nll.defined()) {
    // What the task adds to the cross-entropy: the gradient of multi-token prediction.
    loss = loss + (task_.compute_loss(outputs, batch) - outputs.nll().sum());
  }
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
