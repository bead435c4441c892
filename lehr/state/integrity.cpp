#include "lehr/state/integrity.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "lehr/base/crc32c.h"
#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/open_file.h"
#include "lehr/base/parallel_io.h"
#include "lehr/state/direct_io.h"
#include "lehr/state/input_file.h"

namespace lehr::state {

namespace {
namespace fs = std::filesystem;

// Returns the linear CRC of the bytes [begin, end) of a file.
uint32_t crc_of_range(const InputFile& file, int64_t begin, int64_t end) {
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(kDiskPiece, end - begin)));
  uint32_t crc = 0;
  while (begin < end) {
    const auto piece = std::span(buffer).first(std::min(buffer.size(), static_cast<size_t>(end - begin)));
    file.read(begin, piece);
    crc = crc32c_linear(piece, crc);
    begin += static_cast<int64_t>(piece.size());
  }
  return crc;
}

// A byte range of a file that is read as a unit of parallel work.
struct Stretch {
  size_t file;  // index among all files
  int64_t begin;
  int64_t end;
};

// Returns the contribution of this rank's share of all bytes to each file's checksum.
std::vector<uint32_t> crcs_of_share(const fs::path& folder, const Integrity& files, const Coordinator& coordinator) {
  constexpr int64_t kLongest = int64_t{16} << 20;
  int64_t total = 0;
  for (const auto& [name, file] : files) {
    total += file.num_bytes;
  }
  // Ranks split the concatenation of all files evenly.
  const int64_t share = (total + coordinator.world_size() - 1) / coordinator.world_size();
  const int64_t first = share * coordinator.rank();
  const int64_t last = std::min(total, first + share);
  std::vector<std::optional<InputFile>> contents(files.size());
  std::vector<int64_t> sizes;
  std::vector<Stretch> stretches;
  int64_t before = 0;  // bytes of the files before this one
  for (const auto& [name, file] : files) {
    const size_t index = sizes.size();
    sizes.push_back(file.num_bytes);
    const int64_t end = std::clamp<int64_t>(last - before, 0, file.num_bytes);
    for (int64_t begin = std::clamp<int64_t>(first - before, 0, file.num_bytes); begin < end; begin += kLongest) {
      stretches.push_back({index, begin, std::min(end, begin + kLongest)});
      if (!contents[index]) {
        contents[index].emplace(folder / name);
      }
    }
    before += file.num_bytes;
  }
  std::vector<std::atomic<uint32_t>> crcs(files.size());
  parallel_io(kConcurrentReads, static_cast<int64_t>(stretches.size()), [&](int64_t i) {
    const auto& [index, begin, end] = stretches[static_cast<size_t>(i)];
    crcs[index] ^= Crc32cZeros(sizes[index] - end).behind(crc_of_range(*contents[index], begin, end));
  });
  return {crcs.begin(), crcs.end()};
}

void require_sizes(const fs::path& folder, const Integrity& files) {
  for (const auto& [name, file] : files) {
    std::error_code error;
    const auto size = static_cast<int64_t>(fs::file_size(path_beneath(folder, name), error));
    require(error != std::errc::no_such_file_or_directory, "{}: is missing", (folder / name).string());
    if (error) {
      fail_runtime("{}: cannot be accessed: {}", (folder / name).string(), error.message());
    }
    require(
        size == file.num_bytes, "{}: has {} bytes, but {} were saved", (folder / name).string(), size, file.num_bytes);
  }
}

void require_contents(const fs::path& folder, const Integrity& files, const std::vector<std::vector<uint32_t>>& crcs) {
  size_t index = 0;
  for (const auto& [name, file] : files) {
    uint32_t sum = 0;
    for (const auto& of_rank : crcs) {
      sum ^= of_rank[index];
    }
    const uint32_t found = crc32c_from_linear(sum, file.num_bytes);
    require(
        found == file.crc32c,
        "{}: its bytes changed since it was saved: its CRC-32C was {:08x}, now it is {:08x}",
        (folder / name).string(),
        file.crc32c,
        found);
    ++index;
  }
}

std::string bytes_of(const std::vector<uint32_t>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(uint32_t)};
}

std::vector<uint32_t> numbers_of(const std::string& bytes) {
  std::vector<uint32_t> numbers(bytes.size() / sizeof(uint32_t));
  std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(uint32_t));
  return numbers;
}
}  // namespace

std::optional<std::string> find_damage(const fs::path& folder, bool contents, Coordinator& coordinator) {
  // Texts between ranks begin with '+' for a result and '-' for a description of damage. Other failures, such as a
  // missing rank or a file that cannot be read now, are not damage and are thrown.
  const std::string subject = (folder / kIntegrityFile).string();
  const auto as_text = [](const std::function<std::string()>& look) -> std::string {
    try {
      return "+" + look();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) {
        throw;
      }
      return std::string("-") + error.what();
    }
  };
  const std::string sizes = coordinator.from_main("integrity sizes", [&] {
    return as_text([&]() -> std::string {
      if (!fs::exists(folder / kIntegrityFile)) {
        return "";
      }
      std::string content = read_file(folder / kIntegrityFile);
      require_sizes(folder, parse_integrity(content, subject));
      return content;
    });
  });
  if (sizes.starts_with('-')) {
    return sizes.substr(1);
  }
  if (!contents || sizes.size() == 1) {
    return std::nullopt;
  }
  const Integrity files = parse_integrity(sizes.substr(1), subject);
  std::string mine = "+";
  try {
    mine += bytes_of(crcs_of_share(folder, files, coordinator));
  } catch (const std::exception& error) {
    mine = pack_failure(error);
  }
  const std::string verdict = coordinator.decide("integrity contents", mine, [&](const std::vector<std::string>& all) {
    return as_text([&]() -> std::string {
      throw_failures(all);
      std::vector<std::vector<uint32_t>> crcs;
      for (const std::string& of_rank : all) {
        crcs.push_back(numbers_of(of_rank.substr(1)));
      }
      require_contents(folder, files, crcs);
      return "";
    });
  });
  return verdict.starts_with('-') ? std::optional(verdict.substr(1)) : std::nullopt;
}

}  // namespace lehr::state
