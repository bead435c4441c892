// Opening of files in folders that others filled: regular files only, and links only within the folder.
#pragma once

#include <cstdint>
#include <filesystem>

namespace lehr {

/// An open file, which is closed at the end.
class OpenFile {
 public:
  /// Opens `path` for reading, through links. Throws a usage error that names the path for anything but a regular file:
  /// a folder, a pipe (which would block) or a device (of which opening alone may have an effect). If the file exists
  /// and cannot be opened, such as without permission, the error is a runtime error.
  explicit OpenFile(const std::filesystem::path& path);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int descriptor() const { return descriptor_; }
  /// Returns the descriptor, which the caller must close.
  int release();
  int64_t size() const { return size_; }

 private:
  int descriptor_ = -1;
  int64_t size_ = 0;
};

/// Returns `folder / name`, which need not exist. Throws a usage error if `name` is empty, absolute or has a "..", or
/// if a link on the way leads out of `folder`. `folder` itself may be a link. Two kinds of links are followed anyway:
/// those of a snapshot in the Hugging Face cache to files of the same repository, and any to a blob of that cache. The
/// environment variable LEHR_FOLLOW_LINKS=1 allows all links.
///
/// The check does not hold against somebody who changes the folder between it and the opening of the file.
std::filesystem::path path_beneath(const std::filesystem::path& folder, const std::filesystem::path& name);

/// Returns whether a link between `folder` and `name` leads to a place that path_beneath refuses.
bool leads_out(const std::filesystem::path& folder, const std::filesystem::path& name);

}  // namespace lehr
