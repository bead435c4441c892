// The section [distillation].
#include "lehr/train/config.h"

namespace lehr::train {

void DistillationConfig::fields(FieldVisitor& v) {
  v.optional(
      "teacher",
      teacher,
      "Hugging Face folder of a model with the same vocabulary, of any family; the model learns its predictions. On "
      "several ranks it is sharded like the model. Unset: no distillation.");
  v.optional(
      "kl_weight", kl_weight, "Weight of temperature^2 KL(teacher || model) per token in the loss.", at_least(0));
  v.optional(
      "cosine_weight",
      cosine_weight,
      "Weight of the mean over layers of 1 - cos(model, teacher), of the hidden states after a layer. 0: not computed; "
      "else both models need the same number of layers and the same hidden size.",
      at_least(0));
  v.optional("loss_weight", loss_weight, "Weight of the usual cross-entropy with the labels.", at_least(0));
  v.optional("temperature", temperature, "Softmax temperature of both models in the divergence.", positive());
}

void DistillationConfig::check(Problems& problems) const {
  const DistillationConfig usual;
  if (!teacher) {
    if (kl_weight != usual.kl_weight || cosine_weight != usual.cosine_weight || loss_weight != usual.loss_weight ||
        temperature != usual.temperature) {
      problems.add("distillation.teacher", "the other keys of [distillation] need a teacher; set its folder");
    }
    return;
  }
  if (kl_weight == 0 && cosine_weight == 0 && loss_weight == 0) {
    problems.add("distillation.kl_weight", "all weights of the loss are 0; set one of them");
  }
}

void DistillationConfig::check_run(Problems& problems, const TrainingConfig& training) const {
  if (!teacher) {
    return;
  }
  if (reads_whole_texts(training.task)) {
    problems.add(
        "distillation.teacher",
        fmt::format(
            "{} has no token distribution to compare; use training.task = \"causal_lm\" or \"sft\", or remove the key",
            descriptor::model_with(head_of(training.task))));
  }
  if (training.cuda_graphs) {
    problems.add("distillation.teacher", "the teacher's work is not recorded; remove training.cuda_graphs");
  }
}

}  // namespace lehr::train
