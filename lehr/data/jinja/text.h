// Python's string functions for templates. Characters are code points, in UTF-8.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lehr::data::jinja {

/// Returns the characters of a string, one view each.
std::vector<std::string_view> characters(std::string_view text);

/// Returns their number.
size_t count_characters(std::string_view text);
/// Returns the characters from `begin` on, at most `count`, as one view.
std::string_view middle(std::string_view text, size_t begin, size_t count);

/// Returns whether repr() of Python prints the code point as it is: str.isprintable, but for code points below U+40000
/// that are not assigned, which are taken as printable.
bool is_printable(uint32_t code);

/// Returns a number as from_chars reads it: without the white space around it, a plus sign before it, and the
/// underscores between its digits, which int() and float() of Python allow.
std::string plain_number(std::string_view text);

/// Returns the length in bytes of the white space (str.isspace) at the start.
size_t leading_space(std::string_view text);

/// str.lstrip and str.rstrip: remove white space or, with `set`, the characters in it.
std::string_view strip_left(std::string_view text, const std::optional<std::string>& set = std::nullopt);
std::string_view strip_right(std::string_view text, const std::optional<std::string>& set = std::nullopt);

/// The most parts of a string that split() returns.
inline constexpr size_t kMaxParts = 100'000;

/// str.split and str.rsplit at `separator`, at most `limit` times if that is not negative. Throws Problem for an empty
/// separator, and for more than kMaxParts parts.
std::vector<std::string> split(std::string_view text, std::string_view separator, int64_t limit = -1);
std::vector<std::string> split_from_right(std::string_view text, std::string_view separator, int64_t limit = -1);
/// str.split without a separator: splits at runs of white space; no part is empty. The part after `limit` ones keeps
/// the white space at its end.
std::vector<std::string> split_at_space(std::string_view text, int64_t limit = -1);

/// str.replace; at most `limit` times if that is not negative. Throws Problem for a result of more than kMaxBytes.
std::string replace(std::string_view text, std::string_view from, std::string_view to, int64_t limit = -1);

/// str.upper, lower, capitalize and title, and Jinja's filter title, whose words begin after white space and -({[<, for
/// ASCII. Throws Problem for other letters, whose rules are not implemented.
enum class Case { upper, lower, capitalized, title, filter_title };
std::string change_case(std::string_view text, Case how);

}  // namespace lehr::data::jinja
