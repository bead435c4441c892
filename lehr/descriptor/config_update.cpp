#include "lehr/descriptor/config_update.h"

#include <algorithm>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/config/json.h"
#include "lehr/config/node_list.h"

namespace lehr::descriptor {

namespace {
bool equal(const Node& a, const Node& b) {
  return to_json(a) == to_json(b);
}

// What does not hold for a folder that we write: its weights are not quantized, and it has no code of its own.
constexpr const char* kLeftOut[] = {"quantization_config", "auto_map"};

// Values of model_type that only the code of published folders knows (auto_map), and those of the same models in
// transformers.
constexpr std::pair<const char*, const char*> kTypesOfOwnCode[] = {{"kimi_k2", "deepseek_v3"}};

std::unique_ptr<ModelArgs> read(const Node& config, const ModelFamily& family, bool keeps_mtp_modules) {
  auto args = family.from_hf_config(parse_json(to_json(config), "config.json"));
  args->keep_mtp_modules(keeps_mtp_modules);
  return args;
}

// Returns what the family reads of a config.json, in the form in which it writes it; nullopt if it cannot be read.
std::optional<Node> as_written(
    const Node& config, const ModelFamily& family, bool keeps_mtp_modules, const std::string& dtype) {
  try {
    return read(config, family, keeps_mtp_modules)->to_hf_config(dtype);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// The dtype of the weights has two names, of which a file should have one. A key that is there keeps its place.
void set_dtype(Node& config, const Node& source, const std::string& dtype) {
  const bool is_newer = source.find("dtype") != nullptr;
  config.erase(is_newer ? "torch_dtype" : "dtype");
  config.set(is_newer ? "dtype" : "torch_dtype", Node(dtype));
}
}  // namespace

bool is_of_family(const Node& config, const ModelFamily& family) {
  const Node* type = config.is_table() ? config.find("model_type") : nullptr;
  const auto& types = family.hf_model_types;
  return type != nullptr && type->is_string() &&
         std::find(types.begin(), types.end(), type->as_string()) != types.end();
}

Node plain_config(Node config) {
  for (const char* key : kLeftOut) {
    config.erase(key);
  }
  const Node* type = config.find("model_type");
  const std::string name = type != nullptr && type->is_string() ? type->as_string() : "";
  for (const auto& [own, plain] : kTypesOfOwnCode) {
    if (name == own) {
      config.set("model_type", Node(plain));
    }
  }
  return config;
}

std::string dtype_of(const Node& config, const std::string& otherwise) {
  for (const char* name : {"dtype", "torch_dtype"}) {
    const Node* found = config.find(name);
    if (found != nullptr && found->is_string()) {
      return found->as_string();
    }
  }
  return otherwise;
}

Node updated_config(const Node& given, const ModelFamily& family, const ModelArgs& args, const std::string& dtype) {
  const Node now = args.to_hf_config(dtype);
  if (!is_of_family(given, family)) {
    return now;
  }
  const Node source = plain_config(given);
  const bool keeps = args.keeps_mtp_modules();
  const auto before = as_written(source, family, keeps, dtype);
  if (!before) {
    return now;
  }
  Node result = source;
  for (const auto& [key, value] : before->entries()) {
    if (now.find(key) == nullptr) {
      result.erase(key);
    }
  }
  for (const auto& [key, value] : now.entries()) {
    const Node* old = before->find(key);
    if (old == nullptr || !equal(*old, value)) {
      result.set(key, value);
    }
  }
  const auto same = [&](const Node& config) {
    const auto written = as_written(config, family, keeps, dtype);
    return written && equal(*written, now);
  };
  // The number of modules is that of the folder. Modules that are left out do not count as changed above, since they
  // are not read; and a missing key would not say that there are none.
  const auto finished = [&](Node config) {
    for (const char* key : {kMtpModulesKey, kMtpLayersKey}) {
      if (const Node* modules = now.find(key)) {
        config.set(key, *modules);
      }
    }
    set_dtype(config, source, dtype);
    return config;
  };
  set_dtype(result, source, dtype);
  if (same(result)) {
    return finished(result);
  }
  // A key of the source may take precedence over one that has changed (rope_parameters over rope_theta): such keys are
  // left out.
  result = now;
  for (const auto& [key, value] : source.entries()) {
    if (now.find(key) != nullptr) {
      continue;
    }
    Node with = result;
    with.set(key, value);
    if (same(with)) {
      result = std::move(with);
    }
  }
  return finished(result);
}

std::vector<int64_t> eos_token_ids(const Node& config) {
  std::vector<int64_t> ids;
  const Node* found = config.find("eos_token_id");
  if (found == nullptr || found->is_null()) {
    return ids;
  }
  if (!found->is_list()) {
    return {found->as_int()};
  }
  for (const Node& id : found->items()) {
    ids.push_back(id.as_int());
  }
  return ids;
}

Node updated_generation_config(Node source, const std::vector<int64_t>& eos, std::optional<int64_t> pad) {
  std::vector<int64_t> ids = eos_token_ids(source);
  const size_t before = ids.size();
  for (const int64_t id : eos) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) {
      ids.push_back(id);
    }
  }
  if (ids.size() == 1 && before == 0) {
    source.set("eos_token_id", Node(ids.front()));
  } else if (ids.size() > before) {
    source.set("eos_token_id", node_list(ids));
  }
  if (pad) {
    source.set("pad_token_id", Node(*pad));
  }
  return source;
}

}  // namespace lehr::descriptor
