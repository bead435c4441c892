// Unicode normalization form C (NFC), with the tables that the `tokenizers` package uses (Unicode 9).
#pragma once

#include <string>
#include <string_view>

namespace lehr::data {

/// Returns `text` in NFC. Text that is already normalized (nearly all text) is returned unchanged, at memory speed;
/// otherwise `buffer` holds the result and must outlive it. Invalid UTF-8 is kept and does not combine with anything.
std::string_view to_nfc(std::string_view text, std::string& buffer);

}  // namespace lehr::data
