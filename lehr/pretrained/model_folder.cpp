#include "lehr/pretrained/model_folder.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/base/open_file.h"
#include "lehr/config/json.h"
#include "lehr/data/tokenizer_file.h"
#include "lehr/descriptor/config_update.h"
#include "lehr/descriptor/text_config.h"
#include "lehr/peft/adapter_folder.h"
#include "lehr/pretrained/declared_shape.h"
#include "lehr/pretrained/weights.h"
#include "lehr/state/weights.h"

namespace lehr::pretrained {

namespace {
namespace fs = std::filesystem;

constexpr const char* kConfigFile = "config.json";

fs::path base_of(const fs::path& folder, const fs::path& given) {
  if (!given.empty()) {
    return given;
  }
  const std::string named = peft::read_adapter_config(folder).base_model;
  require(
      fs::is_directory(named),
      "{}: base_model_name_or_path: \"{}\" is not a folder on this machine; set it to the folder of the base model, or "
      "merge both: lehr merge --model BASE --adapter {} --output MERGED",
      (folder / "adapter_config.json").string(),
      named,
      folder.string());
  return named;
}
}  // namespace

ModelFolder ModelFolder::open(const fs::path& path, const descriptor::ModelFamilies& families, const fs::path& base) {
  require(
      !fs::is_regular_file(path), "{}: expected the folder of a model, found a file; name the folder", path.string());
  ModelFolder folder{.path = path, .base = path, .args = nullptr};
  if (!peft::is_adapter_folder(path)) {
    folder.args = families.from_hf_folder(path);
    return folder;
  }
  folder.base = base_of(path, base);
  require(
      !peft::is_adapter_folder(folder.base),
      "{}: is the base of the adapters in {}, but holds adapters itself; merge it with `lehr merge` first",
      folder.base.string(),
      path.string());
  if (fs::exists(path / peft::kModelConfigFile)) {
    folder.args = families.from_hf_folder(path_beneath(path, peft::kModelConfigFile));
    return folder;
  }
  folder.args = families.from_hf_folder(folder.base);
  const state::WeightReader reader(path, peft::kAdapterStem);
  const auto has_any = [&](const std::string& prefix) {
    return std::any_of(reader.names().begin(), reader.names().end(), [&](const std::string& name) {
      return name.starts_with(peft::kAdapterPrefix + prefix);
    });
  };
  if (has_any("layers.")) {  // PEFT names the modules of a backbone without its prefix (FEATURE_EXTRACTION)
    folder.args->set_embedding();
  }
  const std::string head = std::string(peft::kAdapterPrefix) + "score.";
  if (reader.has(head + "weight") && !descriptor::is_classifier(folder.args->head())) {
    const int64_t num_labels = reader.info(head + "weight").shape.front();
    if (reader.has(head + "bias")) {  // as token classifiers have
      folder.args->set_token_classification(num_labels, /*dropout=*/0);
    } else {
      folder.args->set_classification(num_labels, /*dropout=*/0);
    }
  }
  return folder;
}

const fs::path& ModelFolder::tokenizer_folder() const {
  return data::find_file(path, "tokenizer.json") ? path : base;
}

std::vector<int64_t> ModelFolder::stop_ids() const {
  std::vector<int64_t> ids = args->eos_token_ids();
  for (const fs::path& folder : {base, path}) {  // adapters of conversations end at the end of a turn
    const fs::path file = path_beneath(folder, "generation_config.json");
    if (!fs::exists(file)) {
      continue;
    }
    const Node config = parse_json_file(file);
    for (const int64_t id : config.is_table() ? descriptor::eos_token_ids(config) : std::vector<int64_t>{}) {
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) {
        ids.push_back(id);
      }
    }
  }
  return ids;
}

std::set<std::string> ModelFolder::adapters_of_encoder() const {
  std::set<std::string> found;
  if (!has_adapters()) {
    return found;
  }
  const auto encoder = descriptor::image_encoder_prefixes(parse_json_file(path_beneath(base, kConfigFile)));
  const state::WeightReader reader(path, peft::kAdapterStem);
  for (const std::string& name : reader.names()) {
    if (std::any_of(encoder.begin(), encoder.end(), [&](const std::string& prefix) {
          return name.starts_with(peft::kAdapterPrefix + prefix);
        })) {
      found.insert(name);
    }
  }
  return found;
}

ModelFolder::Built ModelFolder::build() const {
  Built built{.model = args->build({}), .adapter_names = {}};
  if (has_adapters()) {
    const auto names = peft::stored_names(path, *args);
    built.adapter_names = peft::add_adapters_of(peft::read_adapter_config(path), *built.model, names);
  }
  return built;
}

void ModelFolder::fill(nn::Model& model, const Built& built, const std::function<void()>& allocate) const {
  const state::WeightReader reader(base);
  const state::StateMap map = checkpoint_map(*args, reader);
  if (!has_adapters()) {
    check_declared_shape(path / kConfigFile, *args, model, map, reader);
    allocate();
    load_weights(model, map, reader);
    model.eval();
    return;
  }
  // The base may lack tensors that the adapter folder holds: a classifier's head.
  LoadRules rules{.may_have = heads_beside(*args)};
  state::NameSet tuned;
  for (const auto& entry : built.adapter_names) {
    tuned.insert(entry.parameter);
  }
  for (const state::StateGroup& group : map.groups()) {
    const auto is_tuned = [&](const std::string& parameter) { return tuned.contains(parameter); };
    if (std::any_of(group.outputs.begin(), group.outputs.end(), is_tuned)) {
      rules.may_lack.insert(group.inputs.begin(), group.inputs.end());
    }
  }
  const fs::path own_config = path / peft::kModelConfigFile;
  check_declared_shape(
      fs::exists(own_config) ? own_config : base / kConfigFile,
      *args,
      model,
      map,
      reader,
      with_state(rules, model, map));
  allocate();
  load_or_start_weights(model, *args, reader, rules, /*seed=*/0);
  load_weights(
      model,
      peft::to_map(built.adapter_names),
      state::WeightReader(path, peft::kAdapterStem),
      {.may_have = adapters_of_encoder()});
  model.eval();
}

std::shared_ptr<nn::Model> ModelFolder::load(at::Device device, at::ScalarType dtype) const {
  const Built built = build();
  fill(*built.model, built, [&] { nn::materialize(*built.model, device, dtype); });
  return built.model;
}

}  // namespace lehr::pretrained
