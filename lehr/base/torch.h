// The one door to LibTorch: every file of Lehr that needs tensors includes this and nothing else of it.
//
// It is also the precompiled header of every target, so what stands here is paid for once. torch/torch.h is left out
// on purpose: it costs 17 seconds a file.
#pragma once

#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>
