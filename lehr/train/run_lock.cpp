#include "lehr/train/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "lehr/base/error.h"
#include "lehr/base/file.h"

namespace lehr::train {

namespace {
// Locks the file, unless another process holds the lock for longer than is_locked does. Without effect on file systems
// that have no locks, as some mounts of Lustre.
bool lock(int file) {
  constexpr int kTries = 10;
  for (int tries = 1; ::flock(file, LOCK_EX | LOCK_NB) != 0; ++tries) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return true;
    }
    if (tries == kTries) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

void create_run_folder(const std::filesystem::path& folder) {
  require(!folder.empty(), "job.dump_folder: expected a folder, found an empty text");
  // Only a shell expands it, and not in --job.dump_folder=~/run.
  require(
      *folder.begin() != "~" || std::filesystem::exists("~"),
      "job.dump_folder: {}: the home folder is not written as ~ here; write its path",
      folder.string());
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::error_code ignored;
  if (const auto target = std::filesystem::read_symlink(folder, ignored); error && !target.empty()) {
    fail(
        "job.dump_folder: {} is a symbolic link to {}, which is not a folder that exists",
        folder.string(),
        target.string());
  }
  require(!error, "job.dump_folder: {} cannot be created: {}", folder.string(), error.message());
}
}  // namespace

RunLock::RunLock(const std::filesystem::path& folder) {
  create_run_folder(folder);
  const auto path = folder / ".lock";
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  require(file_ >= 0, "job.dump_folder: {} cannot be written to: {}", folder.string(), std::strerror(errno));
  if (!lock(file_)) {
    const std::string holder = read_file(path);
    ::close(file_);
    require(
        holder != std::to_string(::getpid()),
        "job.dump_folder: another run of this process uses {}; end that run (a lehr.Trainer of Python by its close()), or "
        "choose another folder",
        folder.string());
    fail(
        "job.dump_folder: another run uses {} (process {}); wait for it, stop it, or choose another folder",
        folder.string(),
        holder.empty() ? "unknown" : holder);
  }
  const std::string me = std::to_string(::getpid());
  if (::ftruncate(file_, 0) != 0 || ::pwrite(file_, me.data(), me.size(), 0) < 0) {
    // The process id is informational; the lock does not depend on it.
  }
}

RunLock::~RunLock() {
  ::close(file_);
}

std::optional<bool> is_locked(const std::filesystem::path& folder) {
  const int file = ::open((folder / ".lock").c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) {
    return std::nullopt;
  }
  const bool is_free = ::flock(file, LOCK_SH | LOCK_NB) == 0;
  const bool is_held = !is_free && errno == EWOULDBLOCK;
  if (is_free) {
    ::flock(file, LOCK_UN);  // a forked process may have a copy of the descriptor
  }
  ::close(file);
  return is_free || is_held ? std::optional(is_held) : std::nullopt;
}

}  // namespace lehr::train
