#include "lehr/train/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "lehr/base/error.h"
#include "lehr/base/file.h"

namespace lehr::train {

RunLock::RunLock(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require(!error, "job.dump_folder: {} cannot be created: {}", folder.string(), error.message());
  const auto path = folder / ".lock";
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  require(file_ >= 0, "job.dump_folder: {} cannot be written to: {}", folder.string(), std::strerror(errno));
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
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

}  // namespace lehr::train
