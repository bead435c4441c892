// The attention kernels that run on a device, found by calling attention, because LibTorch chooses among its kernels.
#pragma once

#include <string>

#include "lehr/base/torch.h"

namespace lehr::train {

/// The shape of a layer's attention.
struct AttentionShape {
  int64_t heads = 1;      ///< Query heads.
  int64_t key_heads = 1;  ///< Key and value heads.
  int64_t head_size = 1;  ///< Elements per head.
};

/// Calls attention's forward, as training does, on a short sequence of one document and on one of several documents,
/// and returns the names of the kernels that ran: "flash attention", or "flash attention; packed documents:
/// memory-efficient attention". Lehr's own kernels are "Lehr's kernel". Takes some milliseconds. Throws attention's
/// errors.
std::string describe_attention(const AttentionShape& shape, at::Device device, at::ScalarType dtype);

}  // namespace lehr::train
