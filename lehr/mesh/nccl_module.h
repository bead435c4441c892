// The functions of liblehr_nccl.so, which the program opens by their names.
#pragma once

#include <cstdint>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

extern "C" {

/// GPUs that this process can use.
using NcclDeviceCount = int();
NcclDeviceCount lehr_nccl_device_count;

/// Connects `size` ranks, each with its GPU number `device`, that meet in `store`; returns when all have come. With
/// device -1 they are connected by their first message. The caller owns what is returned. Throws what c10d throws.
using NcclConnect =
    c10d::Backend*(c10d::Store* store, int rank, int size, int device, int64_t timeout_milliseconds, const char* name);
NcclConnect lehr_nccl_connect;

}  // extern "C"
