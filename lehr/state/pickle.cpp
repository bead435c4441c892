#include "lehr/state/pickle.h"

#include <algorithm>
#include <array>
#include <string>

namespace lehr::state {

namespace {
namespace fs = std::filesystem;

bool has_pickle_name(const fs::path& name) {
  static constexpr std::array kExtensions{".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".dill", ".npz"};
  static constexpr std::array kStems{
      "pytorch_model",
      "adapter_model",
      "model",
      "optimizer",
      "scheduler",
      "training_args",
      "random_states",
      "rng_state",
      "scaler"};
  const std::string extension = name.extension().string(), stem = name.stem().string();
  return std::find(kExtensions.begin(), kExtensions.end(), extension) != kExtensions.end() ||
         (extension == ".bin" &&
          std::any_of(kStems.begin(), kStems.end(), [&](const char* known) { return stem.starts_with(known); }));
}
}  // namespace

bool is_pickle(const fs::path& name, std::string_view begin) {
  // "\x80", the protocol, and an operation; or a zip archive whose first file torch.save calls NAME/data.pkl.
  // A safetensors file may begin like one: the length of a header of 640 bytes is "\x80\x02".
  const bool is_header = begin.size() > 8 && begin[8] == '{' && begin.substr(5, 3) == std::string_view("\0\0\0", 3);
  const bool plain = !is_header && begin.size() > 2 && begin[0] == '\x80' && begin[1] >= 2 && begin[1] <= 5;
  const bool packed = begin.starts_with("PK\x03\x04") && begin.find("data.pkl") != std::string_view::npos;
  return plain || packed || has_pickle_name(name);
}

std::optional<fs::path> pickled_weights(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (has_pickle_name(entry.path().filename())) {
      return entry.path().filename();
    }
  }
  return std::nullopt;
}

}  // namespace lehr::state
