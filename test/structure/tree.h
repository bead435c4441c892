// The files of the tree, for the tests of this folder.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

namespace fs = std::filesystem;

inline const fs::path kRoot = LEHR_SOURCE_DIR;

inline std::string read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::vector<std::string> read_lines(const fs::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
  }
  return lines;
}

/// The files below these folders, sorted, as paths relative to the root with forward slashes. Folders may be missing.
inline std::vector<std::string> files_below(
    const std::vector<std::string>& folders,
    const std::set<std::string>& extensions = {".h", ".cpp", ".cu", ".inl"},
    const fs::path& root = kRoot) {
  std::vector<std::string> files;
  for (const std::string& folder : folders) {
    if (!fs::exists(root / folder)) {
      continue;
    }
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
      if (entry.is_regular_file() && extensions.count(entry.path().extension().string()) != 0) {
        files.push_back(fs::relative(entry.path(), root).generic_string());
      }
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}
