#include "lehr/train/convert.h"

#include <algorithm>
#include <array>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/json.h"
#include "lehr/state/map_stream.h"
#include "lehr/state/output_file.h"
#include "lehr/train/model_parts.h"
#include "lehr/train/subblocks.h"
#include "lehr/train/weights.h"

namespace lehr::train {

namespace {
namespace fs = std::filesystem;

// What belongs to a model beside its weights, by the beginning of the name.
constexpr std::array<std::string_view, 11> kCompanions = {
    "LICENSE",
    "README",
    "added_tokens.json",
    "chat_template.",
    "generation_config.json",
    "merges.txt",
    "preprocessor_config.json",
    "special_tokens_map.json",
    "tokenizer.",
    "tokenizer_config.json",
    "vocab.json"};

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
  std::sort(names.begin(), names.end());
  return names;
}

// config.json as it is, but for the type and for layers that were replaced. transformers 4 says torch_dtype, 5 says
// dtype.
std::string converted_config(const ConvertOptions& options, const descriptor::ModelArgs& args) {
  const fs::path file = options.model / "config.json";
  if (!options.dtype && options.replacements.empty()) {
    return read_file(file);
  }
  Node config = parse_json_file(file);
  if (options.dtype) {
    const std::string name = state::torch_name(*options.dtype);
    const bool is_new = config.find("dtype") != nullptr;
    if (is_new) {
      config.set("dtype", Node(name));
    }
    if (!is_new || config.find("torch_dtype") != nullptr) {
      config.set("torch_dtype", Node(name));
    }
  }
  if (!options.replacements.empty()) {
    const bool had_blocks = config.find("block_configs") != nullptr || config.find("per_layer_config") != nullptr;
    config.erase("per_layer_config");  // another dialect of the same
    if (had_blocks || args.is_heterogeneous()) {
      config.set("block_configs", descriptor::write_block_configs(args.block_configs()));
    }
  }
  return to_json(config, true) + "\n";
}

bool is_floating(state::DType dtype) {
  const auto type = state::scalar_type(dtype);
  return type.has_value() && at::isFloatingType(*type);
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

ConvertReport convert_checkpoint(const ConvertOptions& options, const descriptor::ModelFamilies& families) {
  const ModelParts parts(options.model, options.replacements, families);
  const descriptor::ModelArgs& args = parts.args();
  if (!options.dtype) {
    parts.require_own_types();
  }
  const auto state = stored_state(*args.build({}), parts.map());  // keeps its type

  fs::path output = fs::absolute(options.output).lexically_normal();
  if (!output.has_filename()) {
    output = output.parent_path();  // "folder/" is "folder"
  }
  require(!fs::exists(output), "{}: is already there; choose another folder", options.output.string());
  require(fs::is_directory(output.parent_path()), "{}: no such folder; make it first", output.parent_path().string());

  state::TensorSpecs stored = parts.specs();
  for (auto& [name, spec] : stored) {
    if (options.dtype && is_floating(spec.dtype) && !state.contains(name)) {
      spec.dtype = state::dtype_of(*options.dtype);
    }
  }
  const auto layout = options.layout.value_or(parts.layout());
  const state::BoundMap map(state::sequential({parts.map(), args.state_map(layout).inverse()}), stored);
  state::FilePlan plan = options.subblocks
                             ? plan_subblock_files(args, families.descriptor_of_hf_folder(options.model), map.outputs())
                             : state::plan_files("model", map.outputs(), options.max_shard_bytes);
  const TemporaryFolder folder(output);
  state::SafetensorsWriter writer(folder.path(), std::move(plan));
  writer.create();
  state::stream(map, parts, state::file_sink(writer));
  writer.sync();
  state::write_synced(folder.path() / "config.json", converted_config(options, args));
  ConvertReport report{.left_out = parts.left_out(), .companions = companions_of(options.model)};
  for (const std::string& name : report.companions) {
    state::write_synced(folder.path() / name, read_file(options.model / name));
  }
  folder.commit();
  report.companions.insert(report.companions.begin(), "config.json");
  report.num_tensors = static_cast<int64_t>(map.map().outputs().size());
  report.num_files = static_cast<int64_t>(writer.plan().files.size());
  report.num_bytes = writer.plan().total_bytes;
  return report;
}

}  // namespace lehr::train
