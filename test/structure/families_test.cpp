// Every model family of the program is in the lists of the tests that draw families at random, so that none is
// forgotten there. Lists in C++ come from specs() of test/train/support.cpp; those of Python scripts are written out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <string>

#include "tree.h"

namespace {

/// What the group of the pattern matches in the text.
std::set<std::string> found_in(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match) {
    found.insert((*match)[1].str());
  }
  return found;
}

/// The families in a list of train specs: "qwen3_5" of model::qwen3_5_family().
std::set<std::string> listed(const fs::path& path) {
  return found_in(read(kRoot / path), R"(\.family = model::(\w+)_family\(\))");
}

/// The sources of all families.
std::string sources() {
  std::string text;
  for (const fs::directory_entry& entry : fs::directory_iterator(kRoot / "lehr/model")) {
    text += read(entry.path() / "family.cpp");
  }
  return text;
}

/// The values of model.name.
std::set<std::string> names() {
  return found_in(sources(), R"re(make_decoder_family<[^(]*\(\s*"(\w+)")re");
}

/// The words that are nowhere between quotes in the file.
std::set<std::string> missing_in(const fs::path& path, const std::set<std::string>& words) {
  const std::string text = read(kRoot / path);
  std::set<std::string> missing;
  for (const std::string& word : words) {
    if (text.find('"' + word + '"') == std::string::npos) {
      missing.insert(word);
    }
  }
  return missing;
}

TEST(Families, OfTheProgramAreThoseThatTestsTrain) {
  const auto program = listed("lehr/app/models.cpp");
  EXPECT_THAT(listed("test/train/support.cpp"), testing::ContainerEq(program));
  EXPECT_EQ(names().size(), program.size()) << "a family.cpp that this test does not understand";
}

TEST(Families, AreInTheDrawsOfTheSoak) {
  EXPECT_THAT(missing_in("test/program/soak_draws.py", names()), testing::IsEmpty());
}

TEST(Families, AreInTheDrawsOfConfigs) {
  const auto types = found_in(sources(), R"re(kModelType = "(\w+)")re");
  EXPECT_EQ(types.size(), names().size());
  for (const char* path : {"test/interop/config_draws.py", "test/program/mutated_configs.py"}) {
    EXPECT_THAT(missing_in(path, types), testing::IsEmpty()) << path;
  }
}

TEST(Families, ThatAreMissingAreFound) {
  EXPECT_THAT(
      missing_in("test/program/soak_draws.py", {"qwen3", "qwen9", "qwen"}), testing::ElementsAre("qwen", "qwen9"));
}

}  // namespace
