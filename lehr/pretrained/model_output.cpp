#include "lehr/pretrained/model_output.h"

#include <algorithm>
#include <array>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/open_file.h"
#include "lehr/config/json.h"
#include "lehr/descriptor/config_update.h"
#include "lehr/descriptor/text_config.h"
#include "lehr/pretrained/save_model.h"
#include "lehr/pretrained/subblocks.h"
#include "lehr/state/output_file.h"

namespace lehr::pretrained {

namespace {
namespace fs = std::filesystem;

// The keys that block configs replace; transformers 5 has another name for one of them.
constexpr const char* kNumExperts = "num_experts";
constexpr const char* kNumLocalExperts = "num_local_experts";
constexpr std::array kSizes = {
    "num_key_value_heads",
    "intermediate_size",
    kNumExperts,
    kNumLocalExperts,
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size"};

fs::path without_slash(const fs::path& folder) {
  const fs::path path = fs::absolute(folder).lexically_normal();
  return path.has_filename() ? path : path.parent_path();  // "folder/" is "folder"
}

class TemporaryFolder {
 public:
  explicit TemporaryFolder(const fs::path& target)
      : target_(target), path_(target.parent_path() / ("." + target.filename().string() + ".converting")) {
    std::error_code error;
    fs::remove_all(path_, error);
    fs::create_directory(path_, error);
    if (error) {
      fail_runtime("{}: cannot be created: {}", path_.string(), error.message());
    }
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const fs::path& path() const { return path_; }
  void commit() const {
    state::sync_folder(path_);
    std::error_code error;
    fs::rename(path_, target_, error);
    if (error) {
      fail_runtime("{}: cannot be renamed to {}: {}", path_.string(), target_.string(), error.message());
    }
    state::sync_folder(target_.parent_path());
  }

 private:
  fs::path target_;
  fs::path path_;
};
}  // namespace

void require_new_folder(const fs::path& output) {
  const fs::path path = without_slash(output);
  require(!fs::exists(path), "{}: already exists; choose another folder", output.string());
  require(
      fs::is_directory(path.parent_path()),
      "{}: {}",
      path.parent_path().string(),
      fs::exists(path.parent_path()) ? "is not a folder" : "no such folder; create it first");
}

void set_blocks(Node& config, const descriptor::ModelArgs& args) {
  config.erase("per_layer_config");  // another format of the same data
  // The new model has no modules for multi-token prediction.
  for (const char* key : {descriptor::kMtpModulesKey, descriptor::kMtpLayersKey}) {
    if (config.find(key) != nullptr) {
      config.set(key, Node(int64_t{0}));
    }
  }
  if (args.is_heterogeneous()) {
    config.set("block_configs", descriptor::write_block_configs(args.block_configs()));
    return;
  }
  config.erase("block_configs");
  const Node plain = args.to_hf_config("");
  for (const char* key : kSizes) {
    const Node* size = plain.find(key);
    if (size == nullptr) {
      continue;
    }
    const bool as_transformers_5 = std::string_view(key) == kNumExperts && config.find(kNumLocalExperts) != nullptr;
    if (as_transformers_5) {
      config.set(kNumLocalExperts, *size);
    }
    if (!as_transformers_5 || config.find(key) != nullptr) {
      config.set(key, *size);
    }
  }
}

Node plain_text_config(const fs::path& model) {
  return descriptor::plain_config(descriptor::text_config_of(parse_json_file(model / "config.json")));
}

std::string config_text(const fs::path& source, const Node& config) {
  std::string text = read_file(source);
  return to_json(parse_json(text, source.string())) == to_json(config) ? text : to_json(config, true) + "\n";
}

WrittenModel write_model_folder(
    const ModelOutput& options,
    const descriptor::ModelArgs& args,
    const state::BoundMap& map,
    const state::TensorSource& source,
    const descriptor::ModelFamilies& families) {
  require_new_folder(options.output);
  state::FilePlan plan = options.subblocks
                             ? plan_subblock_files(args, families.descriptor_of_hf_folder(options.model), map.outputs())
                             : state::plan_files("model", map.outputs(), options.max_shard_bytes);
  const TemporaryFolder folder(without_slash(options.output));
  state::SafetensorsWriter writer(folder.path(), std::move(plan));
  writer.create();
  state::stream(map, source, [&, sink = state::file_sink(writer)](const state::MappedTensor& tensor) {
    if (options.before_each) {
      options.before_each();
    }
    sink(tensor);
  });
  writer.sync();
  WrittenModel written{
      .num_tensors = static_cast<int64_t>(map.map().outputs().size()),
      .num_files = static_cast<int64_t>(writer.plan().files.size()),
      .num_bytes = writer.plan().total_bytes,
      .companions = {}};
  for (const auto& [name, text] : options.texts) {
    state::write_synced(folder.path() / name, text);
    written.companions.push_back(name);
  }
  for (const std::string& name : companions_of(options.model)) {
    const fs::path copy = folder.path() / name;
    fs::create_directories(copy.parent_path());
    state::write_synced(copy, read_file(path_beneath(options.model, name)));
    state::sync_folder(copy.parent_path());
    written.companions.push_back(name);
  }
  folder.commit();
  return written;
}

}  // namespace lehr::pretrained
