// Shared code of the tests of checkpoints: a temporary folder, hand-made files, and error messages.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/torch.h"
#include "test/base/error_of.h"
#include "test/base/temporary_folder.h"

namespace lehr::state {
namespace fs = std::filesystem;
}

namespace lehr::state::testing {

/// A folder in memory if there is one, since a thousand saves with their fsyncs would take minutes on a busy disk.
inline fs::path memory_folder() {
  return fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
}

using lehr::TemporaryFolder;

inline fs::path fixture(const std::string& name) {
  return fs::path(LEHR_SOURCE_DIR) / "test/data/state" / name;
}

inline void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A safetensors file as bytes: the length, the given JSON, `data`.
inline std::string safetensors_bytes(const std::string& json, const std::string& data) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<char>(json.size() >> (8 * i) & 0xff);
  }
  return bytes + json + data;
}

using any_error::error_of;

/// Equal in dtype, shape and every bit (NaN equals itself, and 0 differs from -0).
inline bool bit_equal(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
         (x.numel() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);
}

}  // namespace lehr::state::testing
