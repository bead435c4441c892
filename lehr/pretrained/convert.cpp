#include "lehr/pretrained/convert.h"

#include <algorithm>

#include "lehr/pretrained/model_parts.h"
#include "lehr/pretrained/mtp_weights.h"
#include "lehr/pretrained/weights.h"
#include "lehr/state/map_stream.h"

namespace lehr::pretrained {

namespace {
namespace fs = std::filesystem;

// The config.json of the source's text model with the new dtype and replaced layers. The key is torch_dtype in
// transformers 4 and dtype in transformers 5.
std::string converted_config(const ConvertOptions& options, const descriptor::ModelArgs& args) {
  Node config = plain_text_config(options.model);
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
    set_blocks(config, args);
  }
  return config_text(options.model / "config.json", config);
}

bool is_floating(state::DType dtype) {
  const auto type = state::scalar_type(dtype);
  return type.has_value() && at::isFloatingType(*type);
}
}  // namespace

ConvertReport convert_checkpoint(const ConvertOptions& options, const descriptor::ModelFamilies& families) {
  const bool whole = options.replacements.empty() && !options.subblocks;
  const ModelParts parts(options.model, options.replacements, families, /*keep_mtp_modules=*/whole);
  const descriptor::ModelArgs& args = parts.args();
  if (!options.dtype) {
    parts.require_own_types();
  }
  const auto state = stored_state(*args.build({}), parts.map());  // state keeps its dtype

  require_new_folder(options.output);
  state::TensorSpecs stored = parts.specs();
  for (auto& [name, spec] : stored) {
    if (options.dtype && is_floating(spec.dtype) && !state.contains(name)) {
      spec.dtype = state::dtype_of(*options.dtype);
    }
  }
  const auto layout = options.layout.value_or(parts.layout());
  const state::BoundMap map(state::sequential({parts.map(), written_map(args, layout).inverse()}), stored);
  const auto written = map.map().output_names();
  require(
      options.layout != descriptor::ExpertLayout::per_expert || descriptor::expert_layout_of(written) == options.layout,
      "{}: models of this type have one layout of experts, fused; leave the expert layout out, or choose fused",
      options.model.string());
  auto left_out = parts.left_out();
  std::erase_if(left_out, [&](const std::string& name) {  // a copy, which is written again
    return std::find(written.begin(), written.end(), name) != written.end();
  });
  return {
      write_model_folder(
          {.model = options.model,
           .output = options.output,
           .max_shard_bytes = options.max_shard_bytes,
           .subblocks = options.subblocks,
           .texts = {{"config.json", converted_config(options, args)}},
           .before_each = options.before_each},
          args,
          map,
          parts,
          families),
      std::move(left_out)};
}

}  // namespace lehr::pretrained
