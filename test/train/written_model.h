// Models with random weights in folders, for tests of tools.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/pretrained/weights.h"
#include "lehr/state/safetensors_writer.h"
#include "test/base/error_of.h"
#include "test/model/heterogeneous.h"
#include "test/train/support.h"

namespace lehr::train::testing {

/// Writes a folder with this config.json and the initial weights of a new run with that seed.
inline void write_model(const std::filesystem::path& folder, const std::string& config, uint64_t seed) {
  std::filesystem::create_directory(folder);
  write_file_atomically(folder / "config.json", config);
  const auto args = families().from_hf_folder(folder);
  const auto built = args->build({});
  nn::materialize(*built, at::kCPU, at::kFloat);
  built->reset_parameters({.seed = seed});
  state::save_safetensors(
      folder / "model.safetensors",
      pretrained::stored_tensors(*built, args->state_map(descriptor::ExpertLayout::per_expert)));
}

/// The same with a config.json of these layers.
inline void write_model(
    const std::filesystem::path& folder,
    const std::string& model_type,
    const std::vector<model::test::LayerShape>& layers,
    uint64_t seed,
    int64_t vocabulary = 0) {
  write_model(folder, model::test::config_json(model_type, layers, vocabulary), seed);
}

using any_error::error_of;

}  // namespace lehr::train::testing
