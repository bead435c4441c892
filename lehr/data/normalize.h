// Unicode normalization form C (NFC), with the tables that the `tokenizers` package uses (Unicode 9).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lehr::data {

/// `text` in NFC. Text that already is (nearly all text) is returned as it stands, at memory speed; otherwise `buffer`
/// holds the result, so it must outlive it. Bytes that are no UTF-8 stay as they are and join with nothing.
std::string_view to_nfc(std::string_view text, std::string& buffer);

/// Code points that NFC changes, reorders or may join with what stands before them; all others are boundaries.
std::vector<uint32_t> codes_that_need_nfc();

}  // namespace lehr::data
