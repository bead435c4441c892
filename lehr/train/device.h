// The device of a run.
#pragma once

#include <optional>
#include <string>

#include "lehr/base/torch.h"
#include "lehr/mesh/connect.h"
#include "lehr/mesh/transport.h"

namespace lehr::train {

/// Sets the environment variables that libraries read once and by themselves: mesh::set_backend_variables, and
/// CUBLAS_WORKSPACE_CONFIG for a deterministic run that may compute on a GPU. Call it at the start of a program, before
/// CUDA is loaded and before there is a second thread: setenv concurrent with another thread's getenv is undefined
/// behaviour. Throws as cublas_workspace does.
void set_library_variables(const std::string& wanted_device, bool deterministic);

/// Returns the value that CUBLAS_WORKSPACE_CONFIG must be set to so that cuBLAS is deterministic, if its current value
/// is `given` (null: not set): ":4096:8", or nothing if `given` is one of the values that cuBLAS documents for that.
/// Throws a usage error for another value.
std::optional<std::string> cublas_workspace(const char* given);

/// Throws a usage error unless matmuls on a GPU are deterministic with the current environment.
void require_deterministic_cublas();

/// Returns the device for "cpu", "cuda", or "auto": a GPU if there is one. Loads LibTorch's CUDA libraries and Lehr's
/// kernels (ops/cuda.h) if a GPU is wanted, and makes it the thread's current device. Throws a usage error with the
/// reason if "cuda" is requested and not available.
at::Device choose_device(const std::string& wanted);

/// Returns the connection options of a launched rank: the device as choose_device selects it, but the GPU of
/// mesh::gpu_of_rank. "auto" selects it if NCCL is available too, and all ranks have a GPU; else the CPU, with the
/// reason.
mesh::ConnectOptions choose_rank_device(const std::string& wanted, const mesh::RankEnvironment& ranks);

/// Returns the device of a run: that of the ranks' connections if there are several, else as choose_device above.
/// Throws a usage error if "cuda" is requested and the ranks are connected on CPUs only.
at::Device choose_device(const std::string& wanted, const mesh::Transport* transport);

}  // namespace lehr::train
