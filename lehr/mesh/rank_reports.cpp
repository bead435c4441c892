#include "lehr/mesh/rank_reports.h"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <thread>

namespace lehr::mesh {

namespace {
const std::string kRequests = "reports";  // how many there were
}

std::string where_key(int64_t rank) {
  return fmt::format("where/{}", rank);
}

std::string request_key(int64_t number) {
  return fmt::format("report/{}", number);
}

std::string answer_key(int64_t number, int64_t rank) {
  return fmt::format("report/{}/{}", number, rank);
}

std::vector<std::optional<std::string>> request_reports(
    c10d::Store& store, int64_t world_size, std::chrono::milliseconds patience) {
  const int64_t number = store.add(kRequests, 1);
  store.set(request_key(number), "");
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::vector<std::optional<std::string>> reports(static_cast<size_t>(world_size));
  int64_t missing = world_size;
  for (bool late = false; missing > 0 && !late;) {
    late = std::chrono::steady_clock::now() >= deadline;
    for (int64_t rank = 0; rank < world_size; ++rank) {
      std::optional<std::string>& report = reports[static_cast<size_t>(rank)];
      if (!report && store.check({answer_key(number, rank)})) {
        report = store.get_to_str(answer_key(number, rank));
        --missing;
      }
    }
    if (missing > 0 && !late) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  return reports;
}

}  // namespace lehr::mesh
