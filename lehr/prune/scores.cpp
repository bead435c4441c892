#include "lehr/prune/scores.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/open_file.h"
#include "lehr/config/json.h"
#include "lehr/state/output_file.h"
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

// Parses a name such as "layers.3.kv_heads".
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

// New files beside the files that they will replace; the destructor removes those that were not renamed.
class NewFiles {
 public:
  explicit NewFiles(const fs::path& folder) : folder_(folder) {}
  ~NewFiles() {
    std::error_code ignored;
    for (const char* name : {kValues, kFacts}) {
      fs::remove(of(name), ignored);
    }
  }
  NewFiles(const NewFiles&) = delete;
  NewFiles& operator=(const NewFiles&) = delete;
  fs::path of(const std::string& name) const { return folder_ / ("." + name + ".new"); }

 private:
  fs::path folder_;
};

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
    case Kind::shared_channels:
      return "shared_channels";
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
        "{}: expected a folder of scores, found no {} in it; lehr score creates one",
        folder.string(),
        file);
  }
  Scores scores{.facts = parse_json_file(path_beneath(folder, kFacts)), .values = {}, .folder = folder};
  const state::SafetensorsFile file(path_beneath(folder, kValues));
  for (const state::TensorInfo& info : file.tensors()) {
    const auto place = place_of(info.name);
    if (!place) {
      fail(
          "{}: {}: expected layers.N.KIND, where KIND is one of {}",
          file.path().string(),
          info.name,
          fmt::join(names_of_kinds(), ", "));
    }
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

void require_writable(const fs::path& folder) {
  require(!folder.empty(), "scores: expected the name of a folder to write to, found none");
  fs::path there = fs::absolute(folder).lexically_normal();
  std::error_code error;
  while (!fs::exists(there, error) && there.has_relative_path()) {
    there = there.parent_path();
  }
  require(
      fs::is_directory(there, error),
      "{}: expected a folder for scores, but {} is not a folder",
      folder.string(),
      there.string());
  std::string probe = (there / ".lehr_score_XXXXXX").string();  // permissions do not reveal a read-only disk
  if (::mkdtemp(probe.data()) == nullptr) {
    fail("{}: {} cannot be written to: {}", folder.string(), there.string(), std::strerror(errno));
  }
  fs::remove(probe, error);
}

void write_scores(const fs::path& folder, const Scores& scores) {
  std::error_code error;
  const auto check = [&](const char* what) {
    if (error) {
      fail_runtime("{}: {}: {}", folder.string(), what, error.message());
    }
  };
  fs::create_directories(folder, error);
  check("cannot be created");
  state::NamedTensors tensors;
  for (const auto& [place, values] : scores.values) {
    tensors.emplace_back(name_in_file(place.first, place.second), values.to(at::kCPU, at::kDouble).contiguous());
  }
  const NewFiles files(folder);
  state::save_safetensors(files.of(kValues), tensors);
  write_file_atomically(files.of(kFacts), to_json(scores.facts, true) + "\n");
  // The old facts are removed first, so that no reader combines them with new values.
  fs::remove(folder / kFacts, error);
  check("the old scores cannot be removed");
  for (const char* name : {kValues, kFacts}) {
    fs::rename(files.of(name), folder / name, error);
    check(name);
    state::sync_folder(folder);
  }
}

}  // namespace lehr::prune
