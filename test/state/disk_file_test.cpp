// Direct I/O of files: every byte is at its offset, whether the file system supports direct I/O (on a disk) or not (in
// memory).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <thread>

#include "lehr/state/direct_io.h"
#include "lehr/state/input_file.h"
#include "lehr/state/output_file.h"
#include "test/state/support.h"

namespace lehr::state {
namespace {

using testing::error_of;
using testing::TemporaryFolder;

std::vector<std::byte> noise(size_t size) {
  std::mt19937_64 draw(7);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(draw());
  }
  return bytes;
}

// Lets the system drop the cached pages of a file.
void forget(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY);
  ASSERT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
  ::close(fd);
}

// Writes ranges that begin and end inside blocks, some as long as two pieces, from two threads.
void write_ranges(const fs::path& path, const std::vector<std::byte>& content, const std::vector<size_t>& ends) {
  const OutputFile file = OutputFile::create(path, static_cast<int64_t>(content.size()));
  const auto write_every_other = [&](size_t first) {
    for (size_t i = first; i < ends.size(); i += 2) {
      const size_t begin = i == 0 ? 0 : ends[i - 1];
      file.write(static_cast<int64_t>(begin), std::span(content).subspan(begin, ends[i] - begin));
    }
  };
  std::thread other(write_every_other, 1);
  write_every_other(0);
  other.join();
  file.sync();
}

class DiskFile : public ::testing::TestWithParam<fs::path> {};

TEST_P(DiskFile, HasTheWrittenBytesAtAnyOffset) {
  const TemporaryFolder folder(GetParam());
  const fs::path path = folder.path() / "file";
  const auto piece = static_cast<size_t>(kDiskPiece);
  const std::vector<size_t> ends{
      100, 100 + kWorthDirect, 2 * piece + 4095, 2 * piece + 4097, 4 * piece, 5 * piece + 1, 5 * piece + 8193};
  const std::vector<std::byte> content = noise(ends.back());
  write_ranges(path, content, ends);
  const std::string there = read_file(path);
  ASSERT_EQ(there.size(), content.size());
  EXPECT_EQ(std::memcmp(there.data(), content.data(), content.size()), 0);
}

TEST_P(DiskFile, BypassesThePageCacheIfTheFileSystemSupportsIt) {
  const TemporaryFolder folder(GetParam());
  const fs::path path = folder.path() / "file";
  const std::vector<std::byte> content = noise(static_cast<size_t>(2 * kDiskPiece));
  write_ranges(path, content, {content.size()});
  const int direct = ::open(path.c_str(), O_RDONLY | O_DIRECT);
  struct statfs system {};
  ASSERT_EQ(::statfs(path.c_str(), &system), 0);
  if (direct < 0 || system.f_type == TMPFS_MAGIC) {
    GTEST_SKIP() << GetParam() << " cannot";
  }
  ::close(direct);
  const int fd = ::open(path.c_str(), O_RDONLY);
  void* const map = ::mmap(nullptr, content.size(), PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(map, MAP_FAILED);
  const auto cached_pages = [&] {
    std::vector<unsigned char> resident(content.size() / static_cast<size_t>(::sysconf(_SC_PAGESIZE)));
    EXPECT_EQ(::mincore(map, content.size(), resident.data()), 0);
    return std::count_if(resident.begin(), resident.end(), [](unsigned char page) { return (page & 1) != 0; });
  };
  EXPECT_EQ(cached_pages(), 0) << "after writing";
  std::vector<std::byte> read(content.size());
  InputFile(path).read(0, read);
  EXPECT_EQ(read, content);
  EXPECT_EQ(cached_pages(), 0) << "after reading";
  InputFile(path, Reading::again).read(0, read);
  EXPECT_EQ(read, content);
  EXPECT_GT(cached_pages(), 0) << "after reading what is read again";
  ::munmap(map, content.size());
  ::close(fd);
}

TEST_P(DiskFile, IsReadAtAnyOffsetWhetherCachedOrNot) {
  const TemporaryFolder folder(GetParam());
  const fs::path path = folder.path() / "file";
  const auto piece = static_cast<size_t>(kDiskPiece);
  const std::vector<std::byte> content = noise(3 * piece + 77);
  write_ranges(path, content, {piece + 5, content.size()});
  const InputFile file(path);
  for (const bool cached : {false, true}) {
    for (const auto& [begin, end] : std::vector<std::pair<size_t, size_t>>{
             {0, content.size()}, {1, piece}, {4096, 4096 + piece}, {piece - 3, 3 * piece + 76}, {77, 78}}) {
      if (cached) {
        read_file(path);
      } else {
        forget(path);
      }
      std::vector<std::byte> read(end - begin);
      file.read(static_cast<int64_t>(begin), read);
      EXPECT_EQ(std::memcmp(read.data(), content.data() + begin, read.size()), 0) << begin << " to " << end;
    }
  }
}

TEST_P(DiskFile, ErrorNamesAFileThatEndsTooEarly) {
  const TemporaryFolder folder(GetParam());
  const fs::path path = folder.path() / "file";
  const std::vector<std::byte> content = noise(2 * kWorthDirect);
  write_ranges(path, content, {content.size()});
  const InputFile file(path);
  std::vector<std::byte> more(content.size() + 1);
  EXPECT_EQ(error_of([&] { file.read(0, more); }), path.string() + ": cannot be read: it ends too early");
}

INSTANTIATE_TEST_SUITE_P(
    Folders, DiskFile, ::testing::Values(fs::temp_directory_path(), testing::memory_folder()), [](const auto& place) {
      return place.index == 0 ? "OnDisk" : "InMemory";
    });

}  // namespace
}  // namespace lehr::state
