#include "lehr/app/model_and_data.h"

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/data/chat_template.h"
#include "lehr/pretrained/weights.h"
#include "lehr/state/checkpoint.h"
#include "lehr/state/weights.h"
#include "lehr/train/builders.h"
#include "lehr/train/run_state.h"

namespace lehr::app {

std::filesystem::path newest_checkpoint(const train::TrainConfig& config) {
  const auto root = std::filesystem::path(config.job.dump_folder) / config.checkpoint.folder;
  const state::CheckpointStore store(root);
  const auto latest = store.latest();
  require(latest.has_value(), "{}: has no complete checkpoint; name a model with --model", root.string());
  return value_of(latest, "latest").path;
}

std::filesystem::path folder_of_model(
    const train::TrainConfig& config, const std::optional<std::string>& given, const train::Ranks& ranks) {
  return given ? *given : ranks.from_main("the newest checkpoint", [&] { return newest_checkpoint(config).string(); });
}

void warn_of_another_base(const pretrained::ModelFolder& model, Logger& log) {
  if (!model.has_adapters() || !std::filesystem::exists(model.path / train::kRunStateFile)) {
    return;
  }
  try {
    const std::string trained_on = train::read_run_state(model.path).base_fingerprint;
    if (!trained_on.empty() && trained_on != pretrained::weights_fingerprint(state::WeightReader(model.base))) {
      log.warn(
          "{}: has other weights, or another dtype, than the base that the adapters in {} were trained on",
          model.base.string(),
          model.path.string());
    }
  } catch (const Error&) {  // the file of another program or version, which nothing else reads
  }
}

ModelAndData open_model_and_data(
    train::TrainConfig config,
    const std::filesystem::path& folder,
    const train::TrainSpecs& specs,
    Logger& log,
    bool is_main) {
  ModelAndData opened;
  opened.model = pretrained::ModelFolder::open(folder, specs.families());
  opened.build = &specs.of_hf_folder(opened.model.base).build;
  if (is_main) {
    warn_of_another_base(opened.model, log);
  }
  const auto& shape = opened.model.args;
  require(
      config.training.seq_len <= shape->max_position_ids(),
      "training.seq_len: {} tokens do not fit into the {} positions of {}",
      config.training.seq_len,
      shape->max_position_ids(),
      folder.string());
  const train::TaskKind task = config.training.task;
  require(
      shape->head() == train::head_of(task),
      "training.task: {} is {}, but the task is {}",
      folder.string(),
      descriptor::model_with(shape->head()),
      train::name_of(task));
  opened.tokenizer = data::load_tokenizer(
      config.tokenizer.path.empty() ? opened.model.tokenizer_folder().string() : config.tokenizer.path);
  const auto own = opened.model.tokenizer_folder();
  if (is_main && !config.tokenizer.path.empty()) {
    if (const auto warning = train::other_tokenizer_warning(config, *opened.tokenizer, own); !warning.empty()) {
      log.warn("{}", warning);
    }
  }
  // The template of another model would render conversations with tokens that this tokenizer may not have.
  if (config.tokenizer.path.empty() && data::has_chat_template(own.string())) {
    config.tokenizer.path = own.string();
  }
  if (descriptor::is_classifier(shape->head())) {
    config.training.num_labels = shape->num_labels();
  }
  opened.data = opened.build->data(
      config, *opened.tokenizer, train::ModelIds::of(*shape), [&](const std::string& text) { log.info("{}", text); });
  opened.task = opened.build->task(config);
  return opened;
}

}  // namespace lehr::app
