#include "lehr/base/open_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#if __has_include(<linux/openat2.h>)
#include <linux/openat2.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "lehr/base/error.h"

namespace lehr {

namespace {
namespace fs = std::filesystem;

const char* kind_of(mode_t mode) {
  return S_ISDIR(mode) ? "a folder" : S_ISFIFO(mode) ? "a pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
}

// A path that names nothing is a wrong input; all else, such as too many open files, is a failure of the environment.
[[noreturn]] void fail_to_open(const fs::path& path, int error) {
  const bool is_input = error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENAMETOOLONG;
  throw Error(
      is_input ? ErrorKind::usage : ErrorKind::runtime,
      fmt::format("{}: cannot be opened: {}", path.string(), std::strerror(error)));
}

void require_regular(const struct stat& info, const fs::path& path) {
  require(S_ISREG(info.st_mode), "{}: expected a file, found {}", path.string(), kind_of(info.st_mode));
}

// The repository's folder in the Hugging Face cache, if `folder` (without links) is in one of its snapshots:
// models--ORG--NAME/snapshots/COMMIT/... Its files are links to models--ORG--NAME/blobs.
fs::path repository_of(const fs::path& folder) {
  for (fs::path at = folder; at.has_relative_path(); at = at.parent_path()) {
    const fs::path repository = at.parent_path();
    std::error_code error;
    if (at.filename() == "snapshots" && fs::is_directory(repository / "blobs", error)) {
      return repository;
    }
  }
  return {};
}

// models--ORG--NAME/blobs/HASH
bool is_blob(const fs::path& target) {
  const std::string hash = target.filename().string();
  const std::string repository = target.parent_path().parent_path().filename().string();
  return (hash.size() == 40 || hash.size() == 64) && hash.find_first_not_of("0123456789abcdef") == std::string::npos &&
         target.parent_path().filename() == "blobs" &&
         (repository.starts_with("models--") || repository.starts_with("datasets--"));
}

bool is_below(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

enum class Place { inside, outside, unknown };

// Asks the kernel (openat2), which follows links and fails at the first one that leads out of `root`.
Place place_by_kernel(const fs::path& root, const fs::path& name) {
#if defined(SYS_openat2) && defined(RESOLVE_BENEATH)
  const int folder = ::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) {
    return Place::unknown;
  }
  struct open_how how {};
  how.flags = O_PATH | O_CLOEXEC;  // no effect on the file
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  const auto file = static_cast<int>(::syscall(SYS_openat2, folder, name.c_str(), &how, sizeof how));
  const int error = errno;
  ::close(folder);
  if (file >= 0) {
    ::close(file);
    return Place::inside;
  }
  return error == EXDEV || error == ELOOP ? Place::outside : Place::unknown;
#else
  (void)root;
  (void)name;
  return Place::unknown;
#endif
}
}  // namespace

OpenFile::OpenFile(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    fail_to_open(path, errno);
  }
  require_regular(info, path);
  // The file may have been replaced since, so opening must not block, and its type is checked again.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor_ < 0) {
    fail_to_open(path, errno);
  }
  try {
    if (::fstat(descriptor_, &info) != 0) {
      fail_to_open(path, errno);
    }
    require_regular(info, path);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
  size_ = info.st_size;
}

OpenFile::~OpenFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

int OpenFile::release() {
  return std::exchange(descriptor_, -1);
}

bool leads_out(const fs::path& folder, const fs::path& name) {
  std::error_code error;
  const fs::path real = fs::canonical(folder.empty() ? "." : folder, error);
  if (error) {
    return false;  // there is no such folder
  }
  const fs::path repository = repository_of(real);
  const fs::path& root = repository.empty() ? real : repository;
  const Place place = place_by_kernel(root, real.lexically_relative(root) / name);
  if (place == Place::inside) {
    return false;
  }
  // Where openat2 gives no answer (an old kernel, or a missing file), and for links to blobs outside of the repository.
  const fs::path target = fs::weakly_canonical(real / name, error);
  return error || (!is_blob(target) && (place == Place::outside || !is_below(target, root)));
}

fs::path path_beneath(const fs::path& folder, const fs::path& name) {
  const fs::path path = folder / name;
  require(
      !name.empty() && !name.is_absolute() && name.native().find('\0') == std::string::npos &&
          std::find(name.begin(), name.end(), "..") == name.end(),
      "{}: expected the name of a file in this folder, found \"{}\"",
      folder.string(),
      name.string());
  const char* const follow = std::getenv("LEHR_FOLLOW_LINKS");
  if (follow != nullptr && std::string_view(follow) == "1") {
    return path;
  }
  require(
      !leads_out(folder, name),
      "{}: is a link out of its folder, or into a loop, and is not followed: a downloaded folder could make any file "
      "of this machine part of a model or of its data; replace it by the file, or set LEHR_FOLLOW_LINKS=1 if you "
      "created the link",
      path.string());
  return path;
}

}  // namespace lehr
