// The functions of liblehr_nccl.so, which the program looks up by name.
#pragma once

#include <cstdint>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

extern "C" {

/// Returns the number of GPUs that this process can use.
using NcclDeviceCount = int();
NcclDeviceCount lehr_nccl_device_count;

/// Returns a name of GPU `device` of this process that is unique among those of all machines. Valid until the thread's
/// next call.
using NcclDeviceName = const char*(int device);
NcclDeviceName lehr_nccl_device_name;

/// Connects `size` ranks, each with its GPU number `device`, by rendezvous in `store`; returns when all have arrived.
/// With device -1 they are connected by their first message. The caller owns the result. Throws c10d's errors.
using NcclConnect =
    c10d::Backend*(c10d::Store* store, int rank, int size, int device, int64_t timeout_milliseconds, const char* name);
NcclConnect lehr_nccl_connect;

}  // extern "C"
