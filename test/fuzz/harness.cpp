#include "test/fuzz/harness.h"

#include <fcntl.h>
#include <sanitizer/allocator_interface.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace lehr::fuzz {

namespace {
constexpr int64_t kFreeBytes = int64_t{64} << 20, kBytesPerInput = 4;

std::atomic<bool> counts{false};
std::atomic<int64_t> live{0};
int64_t most = 0;

void allocated(const volatile void*, size_t size) {
  if (counts && (live += static_cast<int64_t>(size)) > most) {
    counts = false;
    broken("the input takes more than 64 MiB and 4 times its size of memory");
  }
}

void freed(const volatile void* memory) {
  if (counts && memory != nullptr) {
    live -= static_cast<int64_t>(__sanitizer_get_allocated_size(memory));
  }
}

// Removes the folder when the program ends.
struct Folder {
  std::filesystem::path path;
  Folder() {
    std::string name = "/dev/shm/lehr_fuzz_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) {
      broken("no folder in /dev/shm");
    }
    path = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};
}  // namespace

void broken(const std::string& what) {
  std::fprintf(stderr, "BROKEN: %s\n", what.c_str());
  std::abort();
}

const std::filesystem::path& folder() {
  static const Folder made;
  return made.path;
}

std::filesystem::path as_file(const std::string& name, std::string_view content) {
  const std::filesystem::path path = folder() / name;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0 || ::write(file, content.data(), content.size()) != static_cast<ssize_t>(content.size())) {
    broken("the input cannot be written to " + path.string());
  }
  ::close(file);
  return path;
}

std::pair<std::string_view, std::string_view> cut(std::string_view input) {
  const size_t zero = input.find('\0');
  return zero == std::string_view::npos ? std::pair(input, std::string_view())
                                        : std::pair(input.substr(0, zero), input.substr(zero + 1));
}

}  // namespace lehr::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  __sanitizer_install_malloc_and_free_hooks(lehr::fuzz::allocated, lehr::fuzz::freed);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lehr::fuzz;
  most = kFreeBytes + kBytesPerInput * static_cast<int64_t>(size);
  live = 0;
  counts = true;
  read_input({reinterpret_cast<const char*>(data), size});
  counts = false;
  return 0;
}
