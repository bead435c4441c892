#include "lehr/metric/append.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace lehr::metric {

std::optional<std::string> append_whole(int file, std::string_view text) {
  struct stat before {};
  const bool known = ::fstat(file, &before) == 0;
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      const std::string why = std::strerror(errno);
      // An incomplete line would make later lines unreadable.
      if (known && ::ftruncate(file, before.st_size) != 0) {
        return why + ", and the incomplete line cannot be removed";
      }
      return why;
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  return std::nullopt;
}

}  // namespace lehr::metric
