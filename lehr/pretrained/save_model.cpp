#include "lehr/pretrained/save_model.h"

#include <algorithm>
#include <array>
#include <set>

#include "lehr/base/error.h"
#include "lehr/base/open_file.h"
#include "lehr/config/json.h"
#include "lehr/pretrained/mtp_weights.h"
#include "lehr/pretrained/weights.h"
#include "lehr/state/checkpoint_contents.h"
#include "lehr/state/dtype.h"

namespace lehr::pretrained {

namespace fs = std::filesystem;

namespace {
// Name prefixes of the files of a model folder other than weights.
constexpr std::array<std::string_view, 14> kCompanions = {
    "LICENSE",
    "README",
    "added_tokens.json",
    "chat_template.",
    "config_sentence_transformers.json",
    "generation_config.json",
    "merges.txt",
    "modules.json",
    "preprocessor_config.json",
    "sentence_bert_config.json",
    "special_tokens_map.json",
    "tokenizer.",
    "tokenizer_config.json",
    "vocab.json"};
// The pooling of a model of embeddings; without it, sentence-transformers takes the mean over tokens.
constexpr const char* kPooling = "1_Pooling/config.json";
}  // namespace

void save_model(const nn::Model& model, const descriptor::ModelArgs& args, const SaveOptions& options) {
  fs::path output = fs::absolute(options.output).lexically_normal();
  if (!output.has_filename()) {
    output = output.parent_path();  // "folder/" is "folder"
  }
  require(!fs::exists(output), "{}: exists already; name a new folder", options.output.string());
  const state::StateMap map = written_map(args, descriptor::ExpertLayout::per_expert);
  const auto state = stored_state(model, map);  // keeps its dtype
  auto tensors = stored_tensors(model, map);
  for (auto& [name, tensor] : tensors) {
    tensor = state.contains(name) ? tensor : tensor.to(options.dtype);
  }
  state::CheckpointContents contents{.step = 0, .weights = {}, .texts = options.texts, .copies = options.copies};
  contents.weights.push_back(
      {.stem = "model", .tensors = std::move(tensors), .max_shard_bytes = options.max_shard_bytes});
  const Node config = options.config.is_null() ? args.to_hf_config(state::torch_name(options.dtype)) : options.config;
  contents.texts.emplace_back("config.json", to_json(config, true) + "\n");
  // Written to another folder and renamed, so that the output folder is always complete.
  const fs::path aside = output.string() + ".saving";
  state::CheckpointStore store(aside);
  write_checkpoint(store, contents);
  fs::rename(store.path_of(0), output);
  fs::remove(aside);
}

std::vector<std::string> companions_of(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool known = std::any_of(
        kCompanions.begin(), kCompanions.end(), [&](std::string_view prefix) { return name.starts_with(prefix); });
    if (known && entry.is_regular_file()) {
      names.push_back(name);
    }
  }
  if (fs::is_regular_file(folder / kPooling)) {
    names.emplace_back(kPooling);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::pair<std::string, fs::path>> files_beside(const ModelFolder& folder) {
  std::vector<std::pair<std::string, fs::path>> files;
  std::set<std::string> known;
  for (const fs::path& where : {folder.path, folder.base}) {
    for (const std::string& name : companions_of(where)) {
      const bool is_of_adapters = name.starts_with("README") && where != folder.base;  // written by PEFT
      if (!is_of_adapters && known.insert(name).second) {
        files.emplace_back(name, path_beneath(where, name));
      }
    }
  }
  return files;
}

}  // namespace lehr::pretrained
