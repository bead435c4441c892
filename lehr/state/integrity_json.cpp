// The content of integrity.json.
#include <charconv>

#include "lehr/base/error.h"
#include "lehr/state/integrity.h"
#include "lehr/state/strict_json.h"

namespace lehr::state {

namespace fs = std::filesystem;

std::string format_integrity(const Integrity& files) {
  nlohmann::json entries = nlohmann::json::object();
  for (const auto& [name, file] : files) {
    entries[name] = {{"bytes", file.num_bytes}, {"crc32c", fmt::format("{:08x}", file.crc32c)}};
  }
  return nlohmann::json{{"files", entries}}.dump(2) + "\n";
}

Integrity parse_integrity(const std::string& text, const std::string& subject) {
  const auto json = parse_strict_json(text, subject, 4, "the file is damaged");
  Integrity files;
  try {
    for (const auto& [name, entry] : json.at("files").items()) {
      const auto digits = entry.at("crc32c").get<std::string>();
      uint32_t crc = 0;
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), crc, 16);
      const bool is_crc = error == std::errc() && end == digits.data() + digits.size() && digits.size() == 8;
      require(is_crc, "{}: {}: expected a checksum of eight hexadecimal digits, found {}", subject, name, digits);
      const fs::path path = name;
      require(
          !name.empty() && path.filename() == path && name != "." && name != ".." &&
              name.find('\0') == std::string::npos,
          "{}: expected the name of a file, found {}",
          subject,
          name);
      require(entry.at("bytes").is_number_integer(), "{}: {}: expected a size in whole bytes", subject, name);
      files[name] = {.num_bytes = entry.at("bytes").get<int64_t>(), .crc32c = crc};
      require(files[name].num_bytes >= 0, "{}: {}: expected a size, found {}", subject, name, files[name].num_bytes);
    }
  } catch (const nlohmann::json::exception& problem) {
    fail("{}: invalid content: {}", subject, problem.what());
  }
  return files;
}

}  // namespace lehr::state
