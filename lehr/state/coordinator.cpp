#include "lehr/state/coordinator.h"

#include <exception>

#include "lehr/base/error.h"

namespace lehr::state {

namespace {
constexpr std::string_view kKinds = "URB";  // by ErrorKind
constexpr const char* kFine = "+";
}  // namespace

std::string pack_texts(const std::vector<std::string>& texts) {
  std::string packed;
  for (const std::string& text : texts) {
    packed += fmt::format("{}:{}", text.size(), text);
  }
  return packed;
}

std::vector<std::string> unpack_texts(const std::string& packed) {
  std::vector<std::string> texts;
  for (size_t at = 0; at < packed.size();) {
    const size_t colon = packed.find(':', at);
    const auto size = static_cast<size_t>(std::stoull(packed.substr(at, colon - at)));
    require(colon < packed.size() && size < packed.size() - colon, "packed texts: damaged at byte {}", at);
    texts.push_back(packed.substr(colon + 1, size));
    at = colon + 1 + size;
  }
  return texts;
}

std::string pack_failure(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  return std::string(1, kKinds[static_cast<size_t>(own != nullptr ? own->kind() : ErrorKind::runtime)]) + error.what();
}

void throw_failure(const std::string& packed, const std::string& subject) {
  throw Error(static_cast<ErrorKind>(kKinds.find(packed.front())), subject + packed.substr(1));
}

void throw_failures(const std::vector<std::string>& texts) {
  const std::string* first = nullptr;
  size_t first_rank = 0;
  size_t failed = 0;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].starts_with(kFine)) {
      ++failed;
      if (first == nullptr) {
        first = &texts[rank];
        first_rank = rank;
      }
    }
  }
  if (first == nullptr) {
    return;
  }
  if (texts.size() == 1) {
    throw_failure(*first);
  }
  throw_failure(
      *first,
      failed == 1 ? fmt::format("rank {}: ", first_rank)
                  : fmt::format("rank {} (and {} more of {}): ", first_rank, failed - 1, texts.size()));
}

std::string Coordinator::from_main(const std::string& key, const std::function<std::string()>& make) {
  return decide(key, "", [&](const std::vector<std::string>&) { return make(); });
}

void Coordinator::all_succeed(const std::string& key, const std::function<void()>& action) {
  std::string mine = kFine;
  try {
    action();
  } catch (const std::exception& error) {
    mine = pack_failure(error);
  }
  decide(key, mine, [](const std::vector<std::string>& texts) {
    throw_failures(texts);
    return std::string();
  });
}

std::vector<std::string> Coordinator::exchange(const std::string& key, const std::string& mine) {
  return unpack_texts(decide(key, mine, pack_texts));
}

std::string OneRank::decide(const std::string& /*key*/, const std::string& mine, const Decision& decision) {
  return decision({mine});
}

}  // namespace lehr::state
