#include "lehr/app/model_and_data.h"

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/state/checkpoint.h"
#include "lehr/train/builders.h"

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

ModelAndData open_model_and_data(
    const train::TrainConfig& config,
    const std::filesystem::path& folder,
    const descriptor::ModelFamilies& families,
    Logger& log) {
  ModelAndData opened;
  opened.model = pretrained::ModelFolder::open(folder, families);
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
  opened.data = train::open_run_data(
      config, *opened.tokenizer, shape->vocab_size(), [&](const std::string& text) { log.info("{}", text); });
  opened.task = train::build_task(config);
  return opened;
}

}  // namespace lehr::app
