#include "lehr/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/base/open_file.h"

namespace lehr {

namespace {
std::string reason() {
  return std::strerror(errno);
}

// Closes the file descriptor on every exit path.
struct Descriptor {
  int fd;
  explicit Descriptor(int descriptor) : fd(descriptor) {}
  ~Descriptor() {
    if (fd >= 0) {
      ::close(fd);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};
}  // namespace

std::string read_file(const std::filesystem::path& path) {
  const OpenFile file(path);
  std::string content(static_cast<size_t>(file.size()), '\0');
  size_t have = 0;
  while (have < content.size()) {
    const ssize_t got = ::read(file.descriptor(), content.data() + have, content.size() - have);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      fail_runtime("{}: cannot be read: {}", path.string(), reason());
    }
    if (got == 0) {
      break;
    }
    have += static_cast<size_t>(got);
  }
  content.resize(have);
  return content;
}

void require_replaceable(const std::filesystem::path& path) {
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  const bool is_free = kind == std::filesystem::file_type::regular || kind == std::filesystem::file_type::not_found;
  require(is_free || error, "{}: is a folder, a device or a pipe, not a file; give the name of a file", path.string());
}

int create_unique(std::string& name) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::random_device random;
  for (int tries = 0;; ++tries) {
    std::string unique = name;
    for (int i = 0; i < 6; ++i) {
      unique += kLetters[random() % kLetters.size()];
    }
    const int descriptor = ::open(unique.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0 || errno != EEXIST || tries == 100) {
      name = std::move(unique);
      return descriptor;
    }
  }
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  require_replaceable(path);
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  std::string temporary = (folder / ("." + path.filename().string() + ".")).string();
  const Descriptor file(create_unique(temporary));
  auto give_up = [&](const char* what) {
    const std::string why = reason();
    ::unlink(temporary.c_str());
    fail_runtime("{}: cannot be {}: {}", path.string(), what, why);
  };
  if (file.fd < 0) {
    fail_runtime("{}: cannot be created: {}", path.string(), reason());
  }
  for (size_t done = 0; done < content.size();) {
    const ssize_t wrote = ::write(file.fd, content.data() + done, content.size() - done);
    if (wrote < 0 && errno == EINTR) {
      continue;
    }
    if (wrote < 0) {
      give_up("written");
    }
    done += static_cast<size_t>(wrote);
  }
  if (::fsync(file.fd) != 0) {
    give_up("written to disk");
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    give_up("renamed to its final name");
  }
  const Descriptor parent(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (parent.fd >= 0) {
    ::fsync(parent.fd);
  }
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const OpenFile file(path);
  size_ = static_cast<size_t>(file.size());
  if (size_ == 0) {
    return;
  }
  data_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (data_ == MAP_FAILED) {
    data_ = nullptr;
    fail_runtime("{}: cannot be mapped into memory: {}", path.string(), reason());
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(data_, size_);
  }
}

}  // namespace lehr
