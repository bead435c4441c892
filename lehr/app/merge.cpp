// lehr merge --adapter DIR --output DIR
#include <algorithm>
#include <map>

#include "lehr/app/command.h"
#include "lehr/app/model_and_data.h"
#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/base/value_of.h"
#include "lehr/config/command_line.h"
#include "lehr/config/json.h"
#include "lehr/descriptor/config_update.h"
#include "lehr/descriptor/text_config.h"
#include "lehr/peft/adapter_folder.h"
#include "lehr/peft/inject.h"
#include "lehr/pretrained/save_model.h"
#include "lehr/state/checkpoint.h"
#include "lehr/state/dtype.h"
#include "lehr/state/safetensors_header.h"
#include "lehr/state/weights.h"
#include "lehr/train/train_spec.h"

namespace lehr::app {

namespace {
namespace fs = std::filesystem;

struct MergeOptions {
  std::optional<std::string> model;
  std::string adapter;
  std::string output;
  std::optional<std::string> dtype;
  int64_t max_shard_size_mb = 5000;
  void fields(FieldVisitor& v) {
    v.optional("model", model, "Folder of the base model; unset: the folder that the adapter names.");
    v.required("adapter", adapter, "Folder with adapter_config.json and adapter_model.safetensors.");
    v.required("output", output, "Folder to write; it must not exist.");
    v.optional(
        "dtype",
        dtype,
        "Data type of the weights; unset: that of the base.",
        one_of({"float32", "float64", "bfloat16"}));
    v.optional(
        "max_shard_size_mb", max_shard_size_mb, "Largest size of a weights file, in MB.", between(1, 1'000'000'000));
  }
};

at::ScalarType type_of(const MergeOptions& options, const state::WeightReader& base) {
  if (options.dtype) {
    return value_of(state::type_from_torch_name(*options.dtype), "--dtype");
  }
  require(!base.names().empty(), "{}: holds no tensor", base.path().string());
  // That of most elements: some families have a few tensors in float32 beside weights in bfloat16.
  std::map<at::ScalarType, int64_t> elements;
  for (const std::string& name : base.names()) {
    const state::TensorInfo& info = base.info(name);
    const auto type = state::scalar_type(info.dtype);
    if (type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf) {
      elements[*type] += state::num_elements(info.shape, name);
    }
  }
  const auto most = std::max_element(
      elements.begin(), elements.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  require(
      most != elements.end(),
      "{}: expected weights in float32, float64, bfloat16 or float16; choose one with --dtype",
      base.path().string());
  return most->first;
}

void merge(const MergeOptions& options, const descriptor::ModelFamilies& families) {
  if (!peft::is_adapter_folder(options.adapter)) {
    fail(
        "lehr merge: --adapter: {} holds no adapter (adapter_config.json){}",
        options.adapter,
        state::meant_checkpoint(options.adapter));
  }
  require(!fs::exists(options.output), "lehr merge: --output: {} exists already; name a new folder", options.output);
  const auto folder = pretrained::ModelFolder::open(options.adapter, families, options.model.value_or(""));
  Logger log;
  warn_of_another_base(folder, log);
  const at::ScalarType type = type_of(options, state::WeightReader(folder.base));
  const auto model = folder.load(at::kCPU, type == at::kDouble ? at::kDouble : at::kFloat);
  if (const auto left_out = folder.adapters_of_encoder(); !left_out.empty()) {
    log.warn(
        "{}: {} tensors of adapters of the image encoder are left out, such as {}: the merged model is the text model",
        options.adapter,
        left_out.size(),
        *left_out.begin());
  }
  const int64_t merged = peft::merge_peft(*model);
  pretrained::save_model(
      *model,
      *folder.args,
      {.output = options.output,
       .dtype = type,
       .config = descriptor::updated_config(
           descriptor::text_config_of(parse_json_file(folder.base / "config.json")),
           families.of_hf_folder(folder.base),
           *folder.args,
           state::torch_name(type)),
       .max_shard_bytes = options.max_shard_size_mb * 1000 * 1000,
       .copies = pretrained::files_beside(folder)});
  log.info(
      "{}: {} adapters merged into {}, in {}", options.output, merged, folder.base.string(), state::torch_name(type));
}
}  // namespace

int merge(const std::vector<std::string>& args, const train::TrainSpecs& specs) {
  MergeOptions options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options));
  if (arguments.help) {
    return print_help(
        "lehr merge --adapter DIR --output DIR [--model BASE]\n\n"
        "Merges adapters (of a run with [peft], or of Hugging Face PEFT) into the weights of their base model, and\n"
        "writes an ordinary model folder.\n\n",
        ConfigObject::of(options));
  }
  require(
      arguments.positionals.empty() && arguments.overrides.empty(),
      "lehr merge: takes options only; see lehr merge --help");
  merge(options, specs.families());
  return 0;
}

}  // namespace lehr::app
