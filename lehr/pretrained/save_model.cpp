#include "lehr/pretrained/save_model.h"

#include "lehr/base/error.h"
#include "lehr/base/open_file.h"
#include "lehr/config/json.h"
#include "lehr/pretrained/mtp_weights.h"
#include "lehr/pretrained/weights.h"
#include "lehr/state/checkpoint_contents.h"
#include "lehr/state/dtype.h"

namespace lehr::pretrained {

namespace fs = std::filesystem;

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

std::vector<std::pair<std::string, fs::path>> files_beside(const ModelFolder& folder) {
  std::vector<std::pair<std::string, fs::path>> files;
  for (const char* name :
       {"generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template.jinja",
        "vocab.json",
        "merges.txt"}) {
    for (const fs::path& where : {folder.path, folder.base}) {
      if (fs::is_regular_file(where / name)) {
        files.emplace_back(name, path_beneath(where, name));
        break;
      }
    }
  }
  return files;
}

}  // namespace lehr::pretrained
