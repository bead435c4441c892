#include "lehr/app/child_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "lehr/base/error.h"

namespace lehr::app {

namespace {
constexpr size_t kKept = 16 << 10;

void write_all(int file, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(file, text.data() + done, text.size() - done);
    if (count < 0 && errno != EINTR) {
      return;  // the reader has closed it
    }
    done += count < 0 ? 0 : static_cast<size_t>(count);
  }
}
}  // namespace

ChildOutput::~ChildOutput() {
  close_write_end();
  close_read_end();
}

void ChildOutput::open_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    fail_runtime("lehr launch: cannot create a pipe to a rank: {}", std::strerror(errno));
  }
  read_end_ = ends[0];
  write_end_ = ends[1];
  ::fcntl(read_end_, F_SETFL, O_NONBLOCK);
}

void ChildOutput::open_for(int target, const std::string& prefix) {
  open_pipe();
  target_ = target;
  prefix_ = prefix;
}

void ChildOutput::open_to_keep() {
  open_pipe();
}

void ChildOutput::close_write_end() {
  if (write_end_ >= 0) {
    ::close(write_end_);
    write_end_ = -1;
  }
}

void ChildOutput::close_read_end() {
  if (read_end_ >= 0) {
    ::close(read_end_);
    read_end_ = -1;
  }
}

void ChildOutput::forward() {
  std::array<char, 8192> buffer{};
  while (read_end_ >= 0) {
    const ssize_t count = ::read(read_end_, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      break;
    }
    if (count == 0) {
      close_read_end();
      break;
    }
    text_.append(buffer.data(), static_cast<size_t>(count));
    if (target_ < 0 && text_.size() > 2 * kKept) {
      text_.erase(0, text_.size() - kKept);
    }
  }
  if (target_ < 0) {
    return;
  }
  size_t begin = 0;
  std::string lines;
  for (size_t end = text_.find('\n'); end != std::string::npos; end = text_.find('\n', begin)) {
    lines += prefix_ + text_.substr(begin, end + 1 - begin);
    begin = end + 1;
  }
  text_.erase(0, begin);
  write_all(target_, lines);
}

void ChildOutput::finish() {
  forward();
  if (target_ >= 0 && !text_.empty()) {
    write_all(target_, prefix_ + text_ + "\n");
    text_.clear();
  }
}

}  // namespace lehr::app
