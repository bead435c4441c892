// A random run on a mesh, and the run on one device that it must equal.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "test/train/mesh_support.h"

namespace lehr::train::testing {

/// What a draw decides. Overrides are in the order in which they are applied.
struct Draw {
  std::string family;
  Mesh mesh;
  std::optional<Mesh> then = {};  ///< The run is stopped half way, and goes on on this mesh.
  Overrides shape = {};           ///< Of the model, so also of the base of adapters.
  Overrides run = {};             ///< Of both runs.
  Overrides alone = {};           ///< Of the run on one device.
  Overrides on_mesh = {};         ///< Of the run on the mesh.
  Overrides changed = {};         ///< Of both runs from the half on: settings that checkpoint.allow_changes names.
  std::optional<Overrides> teacher = {};  ///< Shape of the teacher of both runs, which one step has trained.
  bool adapters = false;                  ///< The run starts from a base, and its checkpoints have adapters only.
  int64_t texts = 1;                      ///< Sequences of an example.

  /// The family, the meshes and every override, in one line.
  std::string text() const;
  /// The value of a key for the run on the mesh, until it changes. Empty if the draw does not set it.
  std::string value(const std::string& key) const;
};

/// The draw with that number. The folder `examples` has two files for each task on examples: TASK.jsonl and
/// TASK_validation.jsonl.
Draw draw_run(
    uint64_t seed, int64_t number, const std::vector<std::string>& families, const std::filesystem::path& examples);

}  // namespace lehr::train::testing
