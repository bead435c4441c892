// The control groups of this process, which limit its memory and CPU time.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lehr {

/// The folder of a control group, with the files of its limits.
struct Cgroup {
  std::filesystem::path folder;
  bool is_version_2 = false;
};

/// Returns the groups of this process for a controller ("memory", "cpu"), each followed by its parents. `root` is "/",
/// except in tests.
std::vector<Cgroup> cgroups_of(const std::string& controller, const std::filesystem::path& root = "/");

}  // namespace lehr
