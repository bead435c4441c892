// Checks the documentation against the tree: code on a page is in the file that it names, and links have targets.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "tree.h"

namespace {

/// Every page of the documentation, relative to the root.
std::vector<fs::path> pages() {
  std::vector<fs::path> found;
  for (const auto& folder : {kRoot, kRoot / "docs", kRoot / "example", kRoot / "bench"}) {
    if (!fs::exists(folder)) {
      continue;
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".md") {
        found.push_back(fs::relative(entry.path(), kRoot));
      }
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// A fenced block whose fence names the file that it is copied from: ```cpp lehr/train/step.cpp
struct Excerpt {
  std::string page;
  size_t line;
  std::string source;
  std::vector<std::string> code;
};

std::vector<Excerpt> excerpts() {
  static const std::regex kFence(R"(^```[a-z]+ ([A-Za-z0-9_./]+)$)");
  std::vector<Excerpt> found;
  for (const fs::path& page : pages()) {
    const auto lines = read_lines(kRoot / page);
    for (size_t i = 0; i < lines.size(); ++i) {
      std::smatch match;
      if (!std::regex_match(lines[i], match, kFence)) {
        continue;
      }
      Excerpt excerpt{.page = page.string(), .line = i + 1, .source = match[1].str(), .code = {}};
      for (++i; i < lines.size() && lines[i] != "```"; ++i) {
        excerpt.code.push_back(lines[i]);
      }
      found.push_back(std::move(excerpt));
    }
  }
  return found;
}

TEST(Docs, ShowCodeThatIsInTheFilesTheyName) {
  const auto all = excerpts();
  EXPECT_GE(all.size(), 10u) << "the pages show code";
  for (const Excerpt& excerpt : all) {
    const auto source = read_lines(kRoot / excerpt.source);
    EXPECT_FALSE(excerpt.code.empty()) << excerpt.page << ":" << excerpt.line << " shows nothing";
    EXPECT_NE(std::search(source.begin(), source.end(), excerpt.code.begin(), excerpt.code.end()), source.end())
        << excerpt.page << ":" << excerpt.line << " shows lines that " << excerpt.source
        << " does not have (any more); copy them again";
  }
}

TEST(Docs, HaveLinksWithTargets) {
  static const std::regex kLink(R"(\]\(([^)#]+)(#[^)]*)?\))");
  for (const fs::path& page : pages()) {
    const auto lines = read_lines(kRoot / page);
    bool code = false;
    for (size_t i = 0; i < lines.size(); ++i) {
      code = code != lines[i].starts_with("```");
      if (code) {
        continue;
      }
      for (std::sregex_iterator match(lines[i].begin(), lines[i].end(), kLink), end; match != end; ++match) {
        const std::string target = (*match)[1].str();
        if (target.starts_with("http")) {
          continue;
        }
        EXPECT_TRUE(fs::exists((kRoot / page).parent_path() / target))
            << page.string() << ":" << i + 1 << ": the link leads nowhere: " << target;
      }
    }
  }
}

TEST(Docs, HaveAPageForEveryFolder) {
  const auto lines = read_lines(kRoot / "docs/architecture.md");
  for (const fs::directory_entry& entry : fs::directory_iterator(kRoot / "lehr")) {
    const std::string row = fmt::format("| `lehr/{}/` |", entry.path().filename().string());
    const bool there = std::any_of(lines.begin(), lines.end(), [&](const auto& line) { return line.starts_with(row); });
    EXPECT_TRUE(there) << "docs/architecture.md has no row " << row;
  }
}

}  // namespace
