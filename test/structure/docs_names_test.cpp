// Checks the names between backticks of the documentation: files exist, commands are the program's, and functions and
// types occur in the sources.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tree.h"

namespace {

/// Files and names of other projects, files that are made, and placeholders.
const std::set<std::string> kOthers = {
    "nccl.h",
    "torch/torch.h",
    "torch/csrc/autograd/anomaly_mode.h",
    "MatchingZeros",
    "PascalCase",
    "SameMinorVersion",
    "MultipleNegativesRankingLoss",  // of sentence-transformers
    "shard_map",
    "DataLoader",
    "set_data",
    "n_tokens_seen",
    "less_layers",       // the end of two keys
    "train_grad_norms",  // a tensor whose name is made from two parts
    "notes.md"};
const std::set<std::string> kOtherScopes = {"torch", "at", "c10", "std"};

/// The tree's files and folders, relative to the root; without build output and hidden folders.
std::set<std::string> paths() {
  std::set<std::string> found;
  for (auto entry = fs::recursive_directory_iterator(kRoot); entry != fs::recursive_directory_iterator(); ++entry) {
    const std::string name = entry->path().filename().string();
    if (entry->is_directory() && (name == "build" || name == "outputs" || (name[0] == '.' && name != ".ci"))) {
      entry.disable_recursion_pending();
      continue;
    }
    found.insert(fs::relative(entry->path(), kRoot).generic_string());
  }
  return found;
}

bool is_source(const std::string& path) {
  static const std::set<std::string> kExtensions = {".h", ".cpp", ".inl", ".cu", ".py"};
  const fs::path file = path;
  return kExtensions.count(file.extension().string()) != 0 || file.filename() == "CMakeLists.txt";
}

/// All identifiers of the sources.
std::set<std::string> identifiers(const std::set<std::string>& files) {
  std::set<std::string> found;
  for (const std::string& path : files) {
    if (!is_source(path)) {
      continue;
    }
    std::string word;
    for (const char c : read(kRoot / path) + " ") {
      if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') {
        word += c;
      } else if (!word.empty()) {
        found.insert(std::move(word));
        word.clear();
      }
    }
  }
  return found;
}

/// A text between backticks, outside of code blocks.
struct Name {
  std::string text;
  std::string place;  // page:line
};

std::vector<Name> names_of(const std::string& page, const std::string& text) {
  static const std::regex kTicks("`([^`]+)`");
  std::vector<Name> found;
  std::istringstream lines(text);
  bool code = false;
  size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    code = code != line.starts_with("```");
    if (code || line.starts_with("```")) {
      continue;
    }
    for (std::sregex_iterator match(line.begin(), line.end(), kTicks), end; match != end; ++match) {
      found.push_back({.text = (*match)[1].str(), .place = page + ":" + std::to_string(number)});
    }
  }
  return found;
}

std::vector<Name> names() {
  std::vector<Name> found;
  for (const auto& folder : {kRoot, kRoot / "docs", kRoot / "example", kRoot / "bench"}) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".md") {
        const auto of_page = names_of(fs::relative(entry.path(), kRoot).generic_string(), read(entry.path()));
        found.insert(found.end(), of_page.begin(), of_page.end());
      }
    }
  }
  return found;
}

/// Returns the path that a name looks like, without a line number; empty if it is none.
std::string path_in(const std::string& name) {
  static const std::regex kInTree(
      R"(((lehr|test|script|docs|bench|recipe|example|app|cmake|site|python|\.ci)/[A-Za-z0-9_./-]+?)/?(:\d+)?)");
  static const std::regex kFile(R"(([A-Za-z0-9_./-]+\.(h|cpp|inl|cu|py|sh|cmake|md))(:\d+)?)");
  std::smatch match;
  return std::regex_match(name, match, kInTree) || std::regex_match(name, match, kFile) ? match[1].str() : "";
}

/// `x.h`, `x_ref.cpp`: any file of that kind.
bool is_placeholder(const std::string& path) {
  const std::string name = fs::path(path).stem().string();
  return name == "x" || name.starts_with("x_");
}

bool has_path(const std::set<std::string>& all, const std::string& path) {
  return all.count(path) != 0 ||
         std::any_of(all.begin(), all.end(), [&](const std::string& one) { return one.ends_with("/" + path); });
}

/// The commands of the program: the names in the table of lehr/app/main.cpp.
std::set<std::string> commands() {
  static const std::regex kCommand(R"re(\{"([a-z]+)",)re");
  std::set<std::string> found;
  const std::string table = read(kRoot / "lehr/app/main.cpp");
  for (std::sregex_iterator match(table.begin(), table.end(), kCommand), end; match != end; ++match) {
    found.insert((*match)[1].str());
  }
  return found;
}

/// Returns the identifiers of a function, `Type::function(...)` or `some_function`, or a type; nothing if the name is
/// neither.
std::vector<std::string> symbols_in(const std::string& name) {
  static const std::regex kScoped(R"(((?:[A-Za-z_]\w*::)+~?[A-Za-z_]\w*)(\(.*\))?)");
  static const std::regex kCall(R"(([A-Za-z_]\w*)\(\))");
  static const std::regex kType(R"(([A-Z][a-z0-9]+(?:[A-Z][A-Za-z0-9]*)+))");
  static const std::regex kWords(R"(([a-z][a-z0-9]*(?:_[a-z0-9]+)+_?))");
  std::smatch match;
  if (name.ends_with("_test") || name.ends_with("_bench")) {  // a program
    return {};
  }
  if (!std::regex_match(name, match, kScoped) && !std::regex_match(name, match, kCall) &&
      !std::regex_match(name, match, kType) && !std::regex_match(name, match, kWords)) {
    return {};
  }
  std::vector<std::string> parts;
  std::string part;
  for (const char c : match[1].str() + ":") {
    if (c == ':' || c == '~') {
      if (!part.empty()) {
        parts.push_back(part);
      }
      part.clear();
    } else {
      part += c;
    }
  }
  return kOtherScopes.count(parts.front()) != 0 ? std::vector<std::string>() : parts;
}

TEST(DocsNames, OfFilesExist) {
  const auto all = paths();
  size_t count = 0;
  for (const Name& name : names()) {
    const std::string path = path_in(name.text);
    if (!path.empty() && kOthers.count(path) == 0 && !is_placeholder(path)) {
      ++count;
      EXPECT_TRUE(has_path(all, path)) << name.place << ": there is no file `" << path << "`";
    }
  }
  EXPECT_GE(count, 200U) << "names of files were found";
}

TEST(DocsNames, OfCommandsAreTheProgramsOwn) {
  static const std::regex kCommand(R"(lehr ([a-z]+)\b.*)");
  const auto known = commands();
  EXPECT_THAT(known, testing::IsSupersetOf({"train", "plan", "convert"}));
  for (const Name& name : names()) {
    std::smatch match;
    if (std::regex_match(name.text, match, kCommand) && match[1] != "x") {
      EXPECT_TRUE(known.count(match[1].str()) != 0) << name.place << ": there is no command `lehr " << match[1] << "`";
    }
  }
}

TEST(DocsNames, OfFunctionsAndTypesOccurInTheSources) {
  const auto known = identifiers(paths());
  size_t count = 0;
  for (const Name& name : names()) {
    for (const std::string& symbol : symbols_in(name.text)) {
      ++count;
      EXPECT_TRUE(known.count(symbol) != 0 || kOthers.count(symbol) != 0)
          << name.place << ": `" << name.text << "`: no source has " << symbol;
    }
  }
  EXPECT_GE(count, 300U) << "names of functions and types were found";
}

// Each function of the index of ARCHITECTURE.md is in one of the files of its row, with its class.
TEST(DocsNames, OfTheIndexAreInTheFilesOfTheirRows) {
  std::istringstream lines(read(kRoot / "ARCHITECTURE.md"));
  bool index = false;
  size_t count = 0;
  for (std::string line; std::getline(lines, line);) {
    index = index || line.starts_with("## Where is");
    std::vector<std::set<std::string>> files;
    std::vector<std::string> symbols;
    for (const Name& name : names_of("ARCHITECTURE.md", index ? line : "")) {
      if (!path_in(name.text).empty() && fs::is_regular_file(kRoot / path_in(name.text))) {
        files.push_back(identifiers({path_in(name.text)}));
      } else if (name.text.find('/') == std::string::npos) {
        symbols.push_back(name.text);
      }
    }
    for (const std::string& symbol : symbols) {
      ++count;
      static const std::regex kPart(R"(\w+)");
      const bool found = std::any_of(files.begin(), files.end(), [&](const std::set<std::string>& file) {
        return std::all_of(
            std::sregex_iterator(symbol.begin(), symbol.end(), kPart),
            std::sregex_iterator(),
            [&](const std::smatch& part) { return file.contains(part.str()); });
      });
      EXPECT_TRUE(found) << "ARCHITECTURE.md: `" << symbol << "` is in no file of its row:\n" << line;
    }
  }
  EXPECT_GE(count, 20U);
}

// Returns "Suite.Test" for each test of the tree.
std::set<std::string> test_names() {
  static const std::regex kTest(R"(\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\))");
  std::set<std::string> found;
  for (const std::string& path : paths()) {
    if (!path.starts_with("test/") || !path.ends_with(".cpp")) {
      continue;
    }
    const std::string text = read(kRoot / path);
    for (std::sregex_iterator match(text.begin(), text.end(), kTest), end; match != end; ++match) {
      found.insert((*match)[1].str() + "." + (*match)[2].str());
    }
  }
  return found;
}

TEST(DocsNames, OfTestsAreThoseOfTheTree) {
  static const std::regex kName(R"([A-Z]\w+\.[A-Z][a-z]\w+)");
  const auto known = test_names();
  size_t count = 0;
  for (const Name& name : names()) {
    if (std::regex_match(name.text, kName)) {
      ++count;
      EXPECT_TRUE(known.count(name.text) != 0) << name.place << ": there is no test `" << name.text << "`";
    }
  }
  EXPECT_GE(count, 30U) << "docs/prevented_bugs.md names tests";
}

TEST(DocsNames, AreRead) {
  const auto found = names_of("page", "One `a` and `b::c()`.\n```cpp\n`d`\n```\n`e`");
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[1].text, "b::c()");
  EXPECT_EQ(found[2].place, "page:5");
  EXPECT_EQ(path_in("lehr/nn/linear.h:12"), "lehr/nn/linear.h");
  EXPECT_EQ(path_in("lehr/nn/"), "lehr/nn");
  EXPECT_EQ(path_in("training.steps"), "");
  EXPECT_TRUE(is_placeholder("kernels/x.inl"));
  EXPECT_FALSE(is_placeholder("linear.h"));
  EXPECT_EQ(symbols_in("Trainer::run()"), (std::vector<std::string>{"Trainer", "run"}));
  EXPECT_EQ(symbols_in("RunLog"), (std::vector<std::string>{"RunLog"}));
  EXPECT_EQ(symbols_in("start_at"), (std::vector<std::string>{"start_at"}));
  EXPECT_TRUE(symbols_in("nn_test").empty());
  EXPECT_TRUE(symbols_in("at::Tensor").empty());
  EXPECT_TRUE(symbols_in("training.steps").empty());
}

}  // namespace
