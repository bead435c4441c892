// Owners of PCRE2's objects, and the text of its errors.
#pragma once

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <memory>
#include <string>

namespace lehr {

/// Frees PCRE2's objects.
struct Pcre2Deleter {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
/// Owns a compiled pattern, or the data, the context or the JIT stack of a match.
template <class T>
using Pcre2Ptr = std::unique_ptr<T, Pcre2Deleter>;

/// Returns PCRE2's text for an error code.
inline std::string pcre2_message(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

}  // namespace lehr
