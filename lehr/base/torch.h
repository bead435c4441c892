// The only include of LibTorch: every file of Lehr that needs tensors includes this header and no other of LibTorch.
//
// It is also the precompiled header of every target, and so includes <filesystem> and fmt, which most files do.
// torch/torch.h is excluded because it costs 17 seconds per file.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <filesystem>
