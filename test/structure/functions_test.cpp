// Checks that functions of lehr/ are short. A function is found by its braces, without a parser: comments and literals
// are removed first, and a brace opens a function if what stands before it has parentheses and is no type or namespace.
#include <gtest/gtest.h>

#include <cctype>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tree.h"

namespace {

constexpr size_t kMostLines = 80;
/// Longer functions: a job whose buffers all of its loops share.
const std::set<std::string> kLongOnPurpose = {"lehr/ops/attention/kernel.inl: attention_backward"};

/// Returns the source without comments, literals and preprocessor lines; lines keep their numbers.
std::string code_of(const std::string& source) {
  std::string code;
  const auto skip_to = [&](size_t at, size_t end) {  // keeps the line ends
    end = std::min(end, source.size());
    code.append(
        static_cast<size_t>(
            std::count(source.begin() + static_cast<long>(at), source.begin() + static_cast<long>(end), '\n')),
        '\n');
    return end;
  };
  bool line_start = true;
  for (size_t i = 0; i < source.size();) {
    const char c = source[i];
    if (source.compare(i, 2, "//") == 0 || (c == '#' && line_start)) {
      i = skip_to(i, source.find('\n', i));
    } else if (source.compare(i, 2, "/*") == 0) {
      i = skip_to(i, source.find("*/", i) + 2);
    } else if (source.compare(i, 3, "R\"(") == 0) {
      i = skip_to(i, source.find(")\"", i) + 2);
    } else if (c == '"' || (c == '\'' && (i == 0 || std::isalnum(static_cast<unsigned char>(source[i - 1])) == 0))) {
      size_t end = i + 1;
      while (end < source.size() && source[end] != c) {
        end += source[end] == '\\' ? 2 : 1;
      }
      i = skip_to(i, end + 1);
    } else {
      code += c;
      line_start = c == '\n' || (line_start && c == ' ');
      ++i;
    }
  }
  return code;
}

struct Function {
  std::string name;
  size_t line;   // of the brace, from 1
  size_t lines;  // from one brace to the other
};

/// Returns the last name before the first parenthesis that follows a name.
std::string name_of(const std::string& statement) {
  static const std::regex kName(R"(([A-Za-z_~][A-Za-z0-9_:~]*|operator[^\s(]+|operator\(\))\s*\()");
  std::smatch match;
  return std::regex_search(statement, match, kName) ? match[1].str() : "?";
}

std::vector<Function> functions_of(const std::string& source) {
  static const std::regex kNoFunction(R"(^\s*(template\s*<[^]*>\s*)?(namespace|class|struct|enum|union)\b)");
  static const std::regex kInitializer(R"(=\s*\w*\s*$)");
  struct Brace {
    size_t line;
    bool function;
    std::string name;
  };
  std::vector<Function> found;
  std::vector<Brace> open;
  std::string statement;
  size_t line = 1;
  bool inside = false;
  for (const char c : code_of(source)) {
    line += c == '\n' ? 1 : 0;
    if (c == '{') {
      const bool function = !inside && statement.find('(') != std::string::npos &&
                            !std::regex_search(statement, kNoFunction) && !std::regex_search(statement, kInitializer);
      open.push_back({line, function, function ? name_of(statement) : ""});
      inside = inside || function;
      statement.clear();
    } else if (c == '}' && !open.empty()) {
      const Brace& begin = open.back();
      if (begin.function) {
        inside = false;
        found.push_back({.name = begin.name, .line = begin.line, .lines = line - begin.line + 1});
      }
      open.pop_back();
      statement.clear();
    } else if (c == ';') {
      statement.clear();
    } else {
      statement += c;
    }
  }
  EXPECT_TRUE(open.empty()) << "a brace has no partner";
  return found;
}

TEST(Functions, AreShort) {
  size_t count = 0;
  std::set<std::string> long_ones;
  for (const std::string& path : files_below({"lehr"})) {
    SCOPED_TRACE(path);
    for (const Function& function : functions_of(read(kRoot / path))) {
      ++count;
      if (function.lines > kMostLines) {
        const std::string name = path + ": " + function.name;
        long_ones.insert(name);
        EXPECT_TRUE(kLongOnPurpose.count(name) != 0)
            << path << ":" << function.line << ": " << function.name << " has " << function.lines << " lines, at most "
            << kMostLines << " are allowed; split it";
      }
    }
  }
  EXPECT_EQ(long_ones, kLongOnPurpose) << "the list has only functions that are long";
  EXPECT_GT(count, 3000U) << "the tree's functions were found";
}

TEST(Functions, AreFoundByTheirBraces) {
  const std::string source = R"(namespace a {
// void in_a_comment() {
const char* text = "f() {";
constexpr int kList[] = {1, 2};
struct Of {
  explicit Of(int x) : x_(x) {
    if (x > 0) {
    }
  }
  int x_ = 'a';
};
template <class T>
void Of::later(
    T x) const {
  run([&] { x(); });
}
}  // namespace a
)";
  const auto found = functions_of(source);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].name, "Of");
  EXPECT_EQ(found[0].line, 6U);
  EXPECT_EQ(found[0].lines, 4U);
  EXPECT_EQ(found[1].name, "Of::later");
  EXPECT_EQ(found[1].lines, 3U);
}

}  // namespace
