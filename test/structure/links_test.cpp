// Tests, benchmarks and programs link the folders of lehr/ that their sources include. The linker says so too, but only
// when that program is built, and `make test` builds no benchmark.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using Folders = std::map<std::string, std::set<std::string>>;

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Target {
  std::string name;
  std::vector<std::string> sources;
  std::set<std::string> uses;
};

/// The targets `kind(name [SOURCES file...] [USES folder...])` of a CMakeLists.txt.
std::vector<Target> read_targets(const std::string& cmake, const std::string& kind) {
  const std::regex call(kind + R"(\(\s*([^)]*)\))");
  std::vector<Target> targets;
  for (std::sregex_iterator match(cmake.begin(), cmake.end(), call), end; match != end; ++match) {
    std::istringstream words((*match)[1].str());
    Target& target = targets.emplace_back();
    words >> target.name;
    std::string list = "USES";  // lehr_library names its folders only
    for (std::string word; words >> word;) {
      if (std::regex_match(word, std::regex("[A-Z]+"))) {
        list = word;
      } else if (list == "SOURCES") {
        target.sources.push_back(word);
      } else if (list == "USES") {
        target.uses.insert(word);
      }
    }
  }
  return targets;
}

/// The folders that a target links: those that it uses, and those that they use.
std::set<std::string> linked(const Folders& folders, const std::set<std::string>& uses) {
  std::set<std::string> all = {"base"};
  const std::function<void(const std::set<std::string>&)> add = [&](const std::set<std::string>& names) {
    for (const std::string& name : names) {
      if (all.insert(name).second && folders.count(name) != 0) {
        add(folders.at(name));
      }
    }
  };
  add(uses);
  return all;
}

/// "plot_losses: plot_losses.cpp includes draw" for each folder that a target includes and does not link.
std::vector<std::string> missing_links(
    const Folders& folders, const Target& target, const std::map<std::string, std::string>& texts) {
  const std::regex include(R"rx(#include "lehr/([a-z]+)/)rx");
  const std::set<std::string> links = linked(folders, target.uses);
  std::set<std::string> missing;
  for (const std::string& source : target.sources) {
    const std::string& text = texts.at(source);
    for (std::sregex_iterator match(text.begin(), text.end(), include), end; match != end; ++match) {
      if (links.count((*match)[1].str()) == 0) {
        missing.insert(fmt::format("{}: {} includes {}", target.name, source, (*match)[1].str()));
      }
    }
  }
  return {missing.begin(), missing.end()};
}

TEST(Links, TestsBenchmarksAndProgramsLinkTheFoldersThatTheyInclude) {
  const fs::path root = LEHR_SOURCE_DIR;
  Folders folders;
  for (const Target& library : read_targets(read_text(root / "CMakeLists.txt"), "lehr_library")) {
    folders[library.name] = library.uses;
  }
  ASSERT_GT(folders.size(), 10U);
  size_t targets = 0;
  for (const auto& [folder, kind] : std::vector<std::pair<std::string, std::string>>{
           {"test", "lehr_test"}, {"test", "lehr_executable"}, {"bench", "lehr_benchmark"}, {"app", "lehr_program"}}) {
    for (const Target& target : read_targets(read_text(root / folder / "CMakeLists.txt"), kind)) {
      std::map<std::string, std::string> texts;
      for (const std::string& source : target.sources) {
        texts[source] = read_text(root / folder / source);
        EXPECT_FALSE(texts[source].empty()) << folder << "/CMakeLists.txt: " << target.name << ": " << source;
      }
      EXPECT_THAT(missing_links(folders, target, texts), testing::IsEmpty())
          << folder << "/CMakeLists.txt: add the folder to USES";
      ++targets;
    }
  }
  EXPECT_GT(targets, 30U);
}

// `make fuzz` is a project of its own, which only a share of the rotation builds.
TEST(Links, SourcesOfTheFuzzersExist) {
  const fs::path root = LEHR_SOURCE_DIR;
  const std::string cmake = read_text(root / "test/fuzz/CMakeLists.txt");
  size_t sources = 0;
  for (const Target& list : read_targets(cmake, "set")) {
    if (list.name != "text_sources" && list.name != "torch_sources") {
      continue;
    }
    for (const std::string& source : list.uses) {
      EXPECT_TRUE(fs::exists(root / "lehr" / (source + ".cpp"))) << "test/fuzz/CMakeLists.txt: " << source;
      ++sources;
    }
  }
  EXPECT_GT(sources, 30U);
}

TEST(LinksRules, NameTheFolderThatIsNotLinked) {
  const Folders folders = {{"train", {"draw"}}, {"draw", {}}, {"metric", {}}};
  const auto missing_of = [&](const std::string& cmake) {
    return missing_links(
        folders,
        read_targets(cmake, "lehr_benchmark").at(0),
        {{"a.cpp", "#include \"lehr/draw/plot.h\"\n#include \"lehr/base/error.h\"\n#include \"lehr/metric/log.h\"\n"}});
  };
  EXPECT_THAT(
      missing_of("lehr_benchmark(plots SOURCES a.cpp USES metric)"),
      testing::ElementsAre("plots: a.cpp includes draw"));
  EXPECT_THAT(missing_of("lehr_benchmark(plots\n  SOURCES a.cpp\n  USES train metric)"), testing::IsEmpty());
}

}  // namespace
