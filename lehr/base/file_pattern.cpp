#include "lehr/base/file_pattern.h"

#include <utility>

#include "lehr/base/error.h"
#include "lehr/base/pcre2.h"

namespace lehr {

namespace {
constexpr size_t kLongest = 4096;
constexpr uint32_t kMostSteps = 100'000, kMostDepth = 10'000, kMostKiB = 16'384;
}  // namespace

struct FilePattern::Code {
  Pcre2Ptr<pcre2_code> code;
};

FilePattern::FilePattern(const std::string& pattern, std::string where) : where_(std::move(where)) {
  require(
      pattern.size() <= kLongest,
      "{}: the regular expression has {} bytes, at most {} are allowed",
      where_,
      pattern.size(),
      kLongest);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_ = std::make_unique<Code>();
  code_->code.reset(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_DOLLAR_ENDONLY, &error, &offset, nullptr));
  require(
      code_->code != nullptr,
      "{}: \"{}\" is not a supported regular expression ({} at byte {})",
      where_,
      pattern,
      pcre2_message(error),
      offset);
}

FilePattern::~FilePattern() = default;
FilePattern::FilePattern(FilePattern&&) noexcept = default;

bool FilePattern::matches(std::string_view text) const {
  const Pcre2Ptr<pcre2_match_data> match(pcre2_match_data_create(1, nullptr));
  const Pcre2Ptr<pcre2_match_context> context(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), kMostSteps);
  pcre2_set_depth_limit(context.get(), kMostDepth);
  pcre2_set_heap_limit(context.get(), kMostKiB);
  const int found = pcre2_match(
      code_->code.get(),
      reinterpret_cast<PCRE2_SPTR>(text.data()),
      text.size(),
      0,
      PCRE2_ANCHORED | PCRE2_ENDANCHORED,
      match.get(),
      context.get());
  require(
      found >= 0 || found == PCRE2_ERROR_NOMATCH,
      "{}: the regular expression takes too many steps on \"{}\" ({}); write a simpler one",
      where_,
      text,
      pcre2_message(found));
  return found >= 0;
}

}  // namespace lehr
