#include "lehr/prune/scores.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/json.h"
#include "lehr/state/safetensors.h"
#include "lehr/state/safetensors_writer.h"

namespace lehr::prune {

namespace {
namespace fs = std::filesystem;

constexpr const char* kFacts = "scores.json";
constexpr const char* kValues = "scores.safetensors";
constexpr std::string_view kPrefix = "layers.";

int64_t num_dims(Kind kind) {
  return kind == Kind::expert_channels ? 2 : 1;
}

std::string name_in_file(int64_t layer, Kind kind) {
  return fmt::format("{}{}.{}", kPrefix, layer, name_of(kind));
}

// "layers.3.kv_heads"
std::optional<std::pair<int64_t, Kind>> place_of(const std::string& name) {
  int64_t layer = -1;
  if (name.starts_with(kPrefix)) {
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  }
  for (const Kind kind : kKinds) {
    if (layer >= 0 && name == name_in_file(layer, kind)) {
      return std::pair(layer, kind);
    }
  }
  return std::nullopt;
}

std::vector<const char*> names_of_kinds() {
  std::vector<const char*> names;
  for (const Kind kind : kKinds) {
    names.push_back(name_of(kind));
  }
  return names;
}
}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::ffn_channels:
      return "ffn_channels";
    case Kind::kv_heads:
      return "kv_heads";
    case Kind::experts:
      return "experts";
    case Kind::expert_channels:
      return "expert_channels";
    case Kind::attention:
      return "attention";
    case Kind::ffn:
      return "ffn";
  }
  return "";
}

const at::Tensor* Scores::find(int64_t layer, Kind kind) const {
  const auto found = values.find({layer, kind});
  return found == values.end() ? nullptr : &found->second;
}

bool Scores::has(Kind kind) const {
  return std::any_of(values.begin(), values.end(), [&](const auto& entry) { return entry.first.second == kind; });
}

Scores read_scores(const fs::path& folder) {
  for (const char* file : {kFacts, kValues}) {
    require(
        fs::is_regular_file(folder / file),
        "{}: expected a folder of scores, found no {} in it; lehr score makes one",
        folder.string(),
        file);
  }
  Scores scores{.facts = parse_json_file(folder / kFacts), .values = {}, .folder = folder};
  const state::SafetensorsFile file(folder / kValues);
  for (const state::TensorInfo& info : file.tensors()) {
    const auto place = place_of(info.name);
    require(
        place.has_value(),
        "{}: {}: expected layers.N.KIND, where KIND is one of {}",
        file.path().string(),
        info.name,
        fmt::join(names_of_kinds(), ", "));
    const int64_t dims = num_dims(place->second);
    require(
        info.dtype == state::DType::kF64 && static_cast<int64_t>(info.shape.size()) == dims,
        "{}: {}: expected float64 values in {} dimension{}, found {} of shape ({})",
        file.path().string(),
        info.name,
        dims,
        dims == 1 ? "" : "s",
        state::dtype_name(info.dtype),
        fmt::join(info.shape, ", "));
    scores.values[*place] = file.tensor(info.name).clone();
  }
  return scores;
}

void write_scores(const fs::path& folder, const Scores& scores) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    fail_runtime("{}: cannot be created: {}", folder.string(), error.message());
  }
  fs::remove(folder / kFacts, error);  // a folder without it is not read
  state::NamedTensors tensors;
  for (const auto& [place, values] : scores.values) {
    tensors.emplace_back(name_in_file(place.first, place.second), values.to(at::kCPU, at::kDouble).contiguous());
  }
  state::save_safetensors(folder / kValues, tensors);
  write_file_atomically(folder / kFacts, to_json(scores.facts, true) + "\n");
}

}  // namespace lehr::prune
