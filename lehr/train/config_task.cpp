// Keys of the tasks other than language modelling, and the rules between training.task and other sections.
#include <string_view>
#include <tuple>

#include "lehr/train/config.h"

namespace lehr::train {

void TrainingConfig::task_fields(FieldVisitor& v) {
  v.optional(
      "dataset",
      dataset,
      "torchtitan's name of a dataset, in place of [[data.datasets]]: \"c4\" or \"c4_test\". Without dataset_path it "
      "is the sample of 40 documents of C4 in Lehr's recipe/data, and without a tokenizer it is read as bytes.");
  v.optional("dataset_path", dataset_path, "The file or folder of training.dataset.");
  v.optional("num_labels", num_labels, "Classification: number of classes, of texts or of words.", at_least(2));
  v.optional(
      "classifier_dropout",
      classifier_dropout,
      "Classification: dropout probability before the head.",
      from_below(0, 1));
  v.optional(
      "contrastive_temperature",
      contrastive_temperature,
      "Embedding: temperature of the contrastive loss, which divides the cosine similarities.",
      positive());
}

namespace {
// Sequences are counted, of which a pair takes several.
void check_pairs(const TrainConfig& config, Problems& problems) {
  const auto& [training, data, validation] = std::tie(config.training, config.data, config.validation);
  const bool embeds = training.task == TaskKind::embedding;
  if (embeds != data.has(data::DatasetKind::pairs) && !data.datasets.empty()) {
    problems.add(
        "data.datasets.0.kind",
        embeds ? "training.task = \"embedding\" needs pairs: set kind = \"pairs\""
               : "pairs need training.task = \"embedding\"");
    return;
  }
  const int64_t texts = data.rows_per_example();
  for (const auto& [key, rows] :
       {std::pair("training.local_batch_size", training.local_batch_size),
        std::pair("validation.local_batch_size", validation.local_batch_size)}) {
    const bool used = key != std::string_view("validation.local_batch_size") || !data.validation_path.empty();
    if (used && rows % texts != 0) {
      constexpr auto kText = "each example takes {} sequences ({}), so expected a multiple of {}, found {}";
      problems.add(
          key, fmt::format(kText, texts, texts == 2 ? "anchor, positive" : "anchor, positive, negative", texts, rows));
    }
  }
}

void check_keys_of_task(const TrainingConfig& training, Problems& problems) {
  const TrainingConfig usual;
  const bool scores = descriptor::is_classifier(head_of(training.task)), embeds = training.task == TaskKind::embedding;
  for (const auto& [key, is_set, is_used] :
       {std::tuple("num_labels", training.num_labels != usual.num_labels, scores),
        std::tuple("classifier_dropout", training.classifier_dropout != usual.classifier_dropout, scores),
        std::tuple(
            "contrastive_temperature", training.contrastive_temperature != usual.contrastive_temperature, embeds)}) {
    if (is_set && !is_used) {
      problems.add(
          std::string("training.") + key,
          fmt::format("has no effect while training.task is \"{}\"; remove it", name_of(training.task)));
    }
  }
}

void check_mtp(const TrainConfig& config, Problems& problems) {
  if (config.training.mtp_loss_coef == 0) {
    return;
  }
  const char* key = "training.mtp_loss_coef";
  if (head_of(config.training.task) != descriptor::Head::causal_lm) {
    constexpr auto kText =
        "modules for multi-token prediction score tokens by a language model's head, but {}; set it to 0";
    problems.add(key, fmt::format(kText, fmt::format("training.task is \"{}\"", name_of(config.training.task))));
  }
  if (config.peft.has_adapters()) {
    problems.add(
        key,
        "peft's format has no names for adapters of modules for multi-token prediction; set it to 0, or remove "
        "peft.method");
  }
}
}  // namespace

void TrainConfig::check_task(Problems& problems) const {
  if (training.task == TaskKind::sft && !data.has(data::DatasetKind::chat)) {
    problems.add("training.task", "sft needs conversations: a dataset with kind = \"chat\"");
  }
  for (size_t i = 0; i < data.datasets.size() && training.task != TaskKind::sft; ++i) {
    if (data.datasets[i].kind == data::DatasetKind::chat) {
      problems.add("data.datasets." + std::to_string(i) + ".kind", "conversations need training.task = \"sft\"");
    }
  }
  check_keys_of_task(training, problems);
  check_mtp(*this, problems);
  if (sample.prompt && reads_whole_texts(training.task)) {
    problems.add(
        "sample.prompt",
        fmt::format(
            "only a causal language model can continue a prompt, but training.task is \"{}\"", name_of(training.task)));
  }
  check_pairs(*this, problems);
}

}  // namespace lehr::train
