#include "lehr/data/jinja/text.h"

#include <algorithm>
#include <array>
#include <utility>

#include "lehr/data/jinja/problem.h"
#include "lehr/data/unicode.h"

namespace lehr::data::jinja {
namespace {

/// str.isspace of one character.
bool is_space(std::string_view character) {
  const uint32_t code = decode_utf8(character.data(), character.data() + character.size()).code;
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

/// Returns the last character of a non-empty text.
std::string_view last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) {
    --begin;
  }
  return text.substr(begin);
}

std::string_view first_character(std::string_view text) {
  return text.substr(0, decode_utf8(text.data(), text.data() + text.size()).size);
}

bool goes(std::string_view character, const std::optional<std::string>& set) {
  return set ? set->find(character) != std::string::npos : is_space(character);
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
/// Returns whether the filter `title` begins a word after `c`.
bool ends_word(char c) {
  return is_space(std::string_view(&c, 1)) || std::string_view("-({[<").find(c) != std::string_view::npos;
}
char to_upper(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}
char to_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> all;
  while (!text.empty()) {
    all.push_back(first_character(text));
    text.remove_prefix(all.back().size());
  }
  return all;
}

size_t count_characters(std::string_view text) {
  size_t count = 0;
  for (; !text.empty(); ++count) {
    text.remove_prefix(first_character(text).size());
  }
  return count;
}

std::string_view middle(std::string_view text, size_t begin, size_t count) {
  for (; begin > 0 && !text.empty(); --begin) {
    text.remove_prefix(first_character(text).size());
  }
  size_t size = 0;
  for (; count > 0 && size < text.size(); --count) {
    size += first_character(text.substr(size)).size();
  }
  return text.substr(0, size);
}

namespace {
void add_part(std::vector<std::string>& parts, std::string_view part) {
  if (parts.size() >= kMaxParts) {
    refuse("split makes more than {} parts", kMaxParts);
  }
  parts.emplace_back(part);
}
}  // namespace

bool is_printable(uint32_t code) {
  // Control and format characters, white space, private use and noncharacters.
  static constexpr std::array<std::pair<uint32_t, uint32_t>, 30> kHidden{
      {{0x00, 0x1F},       {0x7F, 0xA0},       {0xAD, 0xAD},       {0x600, 0x605},     {0x61C, 0x61C},
       {0x6DD, 0x6DD},     {0x70F, 0x70F},     {0x890, 0x891},     {0x8E2, 0x8E2},     {0x1680, 0x1680},
       {0x180E, 0x180E},   {0x2000, 0x200F},   {0x2028, 0x202F},   {0x205F, 0x206F},   {0x3000, 0x3000},
       {0xE000, 0xF8FF},   {0xFDD0, 0xFDEF},   {0xFEFF, 0xFEFF},   {0xFFF0, 0xFFFB},   {0xFFFE, 0xFFFF},
       {0x110BD, 0x110BD}, {0x110CD, 0x110CD}, {0x13430, 0x1343F}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A},
       {0x1FFFE, 0x1FFFF}, {0x2FFFE, 0x2FFFF}, {0x3FFFE, 0xE00FF}, {0xE01F0, 0xEFFFF}, {0xF0000, 0x10FFFF}}};
  return std::none_of(
      kHidden.begin(), kHidden.end(), [&](const auto& range) { return code >= range.first && code <= range.second; });
}

std::string plain_number(std::string_view text) {
  const auto is_digit = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
  text = strip_right(strip_left(text));
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool plus = i == 0 && text[i] == '+' && text.size() > 1 && text[1] != '-';
    const bool between = text[i] == '_' && i > 0 && is_digit(i - 1) && is_digit(i + 1);
    if (!plus && !between) {
      out += text[i];
    }
  }
  return out;
}

std::string_view strip_left(std::string_view text, const std::optional<std::string>& set) {
  while (!text.empty() && goes(first_character(text), set)) {
    text.remove_prefix(first_character(text).size());
  }
  return text;
}

std::string_view strip_right(std::string_view text, const std::optional<std::string>& set) {
  while (!text.empty() && goes(last_character(text), set)) {
    text.remove_suffix(last_character(text).size());
  }
  return text;
}

size_t leading_space(std::string_view text) {
  return text.size() - strip_left(text).size();
}

std::vector<std::string> split(std::string_view text, std::string_view separator, int64_t limit) {
  if (separator.empty()) {
    refuse("split: the separator is empty");
  }
  std::vector<std::string> parts;
  for (size_t found = 0; limit != 0 && (found = text.find(separator)) != std::string_view::npos; --limit) {
    add_part(parts, text.substr(0, found));
    text.remove_prefix(found + separator.size());
  }
  parts.emplace_back(text);
  return parts;
}

std::vector<std::string> split_from_right(std::string_view text, std::string_view separator, int64_t limit) {
  if (separator.empty()) {
    refuse("rsplit: the separator is empty");
  }
  std::vector<std::string> parts;
  for (size_t found = 0; limit != 0 && (found = text.rfind(separator)) != std::string_view::npos; --limit) {
    add_part(parts, text.substr(found + separator.size()));
    text = text.substr(0, found);
  }
  parts.emplace_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> split_at_space(std::string_view text, int64_t limit) {
  std::vector<std::string> parts;
  for (text = strip_left(text); !text.empty(); text = strip_left(text), --limit) {
    if (limit == 0) {
      parts.emplace_back(text);  // with the white space at its end, as in Python
      break;
    }
    size_t size = 0;
    while (size < text.size() && !is_space(first_character(text.substr(size)))) {
      size += first_character(text.substr(size)).size();
    }
    add_part(parts, text.substr(0, size));
    text.remove_prefix(size);
  }
  return parts;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to, int64_t limit) {
  if (from.empty()) {
    refuse("replace: the text to look for is empty");
  }
  std::string out;
  for (size_t found = 0; limit != 0 && (found = text.find(from)) != std::string_view::npos; --limit) {
    out.append(text.substr(0, found)).append(to);
    require_bytes(out.size(), "replace");
    text.remove_prefix(found + from.size());
  }
  return out.append(text);
}

std::string change_case(std::string_view text, Case how) {
  std::string out(text);
  bool first = true;
  for (char& c : out) {
    if (static_cast<uint8_t>(c) >= 0x80) {
      refuse("upper and lower case of characters outside ASCII are not supported");
    }
    c = how == Case::upper || (first && how != Case::lower) ? to_upper(c) : to_lower(c);
    first = (how == Case::title && !is_letter(c)) || (how == Case::filter_title && ends_word(c));
  }
  return out;
}

}  // namespace lehr::data::jinja
