// Checks prose, comments and messages against docs/glossary.md: the retired words in its last column are refused.
#include <gtest/gtest.h>

#include <cctype>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tree.h"

namespace {

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) {
    parts.push_back(trimmed(part));
  }
  return parts;
}

struct RetiredWord {
  std::string word;     // lower case
  std::string instead;  // the terms of its row
};

/// The last column of the tables: | term | meaning | word, word |
std::vector<RetiredWord> retired_words() {
  std::ifstream file(kRoot / "docs/glossary.md");
  std::vector<RetiredWord> words;
  for (std::string line; std::getline(file, line);) {
    const auto cells = split(line, '|');
    if (cells.size() < 4 || cells[1] == "term" || cells[1].starts_with("---")) {
      continue;
    }
    for (const std::string& word : split(cells[3], ',')) {
      words.push_back({word, cells[1]});
    }
  }
  return words;
}

/// A text in lower case. The end of a line, with the marks of comments and literals around it, becomes one space, so
/// that phrases are found across lines; so do the parts of an identifier, in snake_case or CamelCase.
struct Text {
  std::string characters;
  std::vector<size_t> lines;  // of each character, from 1

  void add(char character, size_t line) {
    character = character == '_' ? ' ' : character;
    if (character != ' ' || characters.empty() || characters.back() != ' ') {
      characters += static_cast<char>(std::tolower(static_cast<unsigned char>(character)));
      lines.push_back(line);
    }
  }
};

Text read_text(std::istream& file) {
  Text text;
  size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const size_t begin = std::min(line.find_first_not_of("/#\"<> "), line.size());
    size_t end = line.find_last_not_of("\" ");
    end = end == std::string::npos ? begin : std::max(end + 1, begin);
    char before = ' ';
    for (const char character : line.substr(begin, end - begin)) {
      if (std::islower(static_cast<unsigned char>(before)) != 0 &&
          std::isupper(static_cast<unsigned char>(character)) != 0) {
        text.add(' ', number);
      }
      text.add(character, number);
      before = character;
    }
    text.add(' ', number);
  }
  return text;
}

bool is_letter(char character) {
  return std::isalnum(static_cast<unsigned char>(character)) != 0;
}

/// The lines on which `word` occurs as a separate word.
std::vector<size_t> find(const Text& text, const std::string& word) {
  std::vector<size_t> found;
  for (size_t at = text.characters.find(word); at != std::string::npos; at = text.characters.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_letter(text.characters[at - 1])) &&
        (end == text.characters.size() || !is_letter(text.characters[end]))) {
      found.push_back(text.lines[at]);
    }
  }
  return found;
}

/// All files that people read, except the glossary and data.
std::vector<std::string> files() {
  static const std::set<std::string> kExtensions = {
      ".h", ".cpp", ".cu", ".inl", ".md", ".sh", ".py", ".toml", ".cmake", ".txt"};
  std::vector<std::string> found;
  for (const std::string& path : files_below(
           {"app", "bench", "cmake", "docs", "example", "lehr", "python", "recipe", "script", "test"}, kExtensions)) {
    if (!path.starts_with("test/data/") && !path.starts_with("recipe/data/") && path != "docs/glossary.md" &&
        path != "test/structure/words_test.cpp") {
      found.push_back(path);
    }
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(kRoot)) {
    if (entry.path().extension() == ".md") {
      found.push_back(entry.path().filename().string());
    }
  }
  return found;
}

TEST(Words, OfTheGlossarysLastColumnAreNotUsed) {
  const auto words = retired_words();
  EXPECT_GE(words.size(), 15u) << "the glossary's tables were read";
  for (const std::string& path : files()) {
    std::ifstream file(kRoot / path);
    const Text text = read_text(file);
    for (const RetiredWord& retired : words) {
      for (const size_t line : find(text, retired.word)) {
        ADD_FAILURE() << path << ":" << line << ": \"" << retired.word
                      << "\"; docs/glossary.md has: " << retired.instead;
      }
    }
  }
}

TEST(Words, AreFoundAcrossLinesAndNotWithinOthers) {
  std::istringstream file("/// It is made\n/// again, unremade: \"the last \"\n  \"words\".\n");
  const Text text = read_text(file);
  EXPECT_EQ(find(text, "made again"), std::vector<size_t>{1});
  EXPECT_EQ(find(text, "last words"), std::vector<size_t>{2});
  EXPECT_TRUE(find(text, "remade").empty());
  std::istringstream names("int kLastWordsTime;\nbool products_made_again();\n");
  const Text identifiers = read_text(names);
  EXPECT_EQ(find(identifiers, "last words"), std::vector<size_t>{1});
  EXPECT_EQ(find(identifiers, "made again"), std::vector<size_t>{2});
}

}  // namespace
