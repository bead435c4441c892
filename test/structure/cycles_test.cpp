// No file needs itself: includes have no cycle, where a header and its sources count as one.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tree.h"

namespace {

using Includes = std::map<std::string, std::set<std::string>>;  // both without extensions: "lehr/nn/linear"

std::string without_extension(const std::string& path) {
  return path.substr(0, path.rfind('.'));
}

/// The includes of all sources below lehr/.
Includes read_includes() {
  static const std::regex kInclude(R"rx(^#include "(lehr/[^"]+)".*)rx");
  Includes includes;
  for (const std::string& path : files_below({"lehr"})) {
    const std::string file = without_extension(path);
    std::set<std::string>& used = includes[file];
    std::smatch match;
    for (const std::string& line : read_lines(kRoot / path)) {
      if (std::regex_match(line, match, kInclude) && without_extension(match[1]) != file) {
        used.insert(without_extension(match[1]));
      }
    }
  }
  return includes;
}

/// One cycle for each group of files that need each other: a, b, ..., a.
class CycleSearch {
 public:
  explicit CycleSearch(const Includes& includes) : includes_(includes) {
    for (const auto& [file, used] : includes) {
      visit(file);
    }
  }
  const std::vector<std::vector<std::string>>& cycles() const { return cycles_; }

 private:
  void visit(const std::string& file) {
    if (!seen_.insert(file).second) {
      return;
    }
    path_.push_back(file);
    const auto used = includes_.find(file);
    for (const std::string& next : used != includes_.end() ? used->second : std::set<std::string>()) {
      const auto begin = std::find(path_.begin(), path_.end(), next);
      if (begin != path_.end()) {
        cycles_.emplace_back(begin, path_.end()).push_back(next);
      }
      visit(next);
    }
    path_.pop_back();
  }

  const Includes& includes_;
  std::set<std::string> seen_;
  std::vector<std::string> path_;  // files that are being visited, each including the next
  std::vector<std::vector<std::string>> cycles_;
};

std::vector<std::string> cycles_of(const Includes& includes) {
  std::vector<std::string> found;
  const CycleSearch search(includes);
  for (const auto& cycle : search.cycles()) {
    found.push_back(fmt::format("{}", fmt::join(cycle, " -> ")));
  }
  return found;
}

TEST(Includes, HaveNoCycle) {
  const Includes includes = read_includes();
  EXPECT_GT(includes.size(), 400u);
  EXPECT_THAT(cycles_of(includes), testing::IsEmpty())
      << "move what both need into a file of its own, or declare it forward";
}

TEST(Includes, CyclesAreFound) {
  EXPECT_THAT(cycles_of({{"a", {"b", "c"}}, {"b", {"c"}}}), testing::IsEmpty());
  EXPECT_THAT(cycles_of({{"a", {"b"}}, {"b", {"c"}}, {"c", {"b"}}}), testing::ElementsAre("b -> c -> b"));
}

}  // namespace
