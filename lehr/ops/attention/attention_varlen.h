// Variable-length attention: tokens attend within their sequence, and the sequences are stored one after the other.
// Packed documents, padded rows and windows need no (T, T) mask.
//
// One autograd function serves several kernels: ATen's FlashAttention and memory-efficient attention on a GPU, and
// plain ATen sequence by sequence on the CPU.
#pragma once

#include "lehr/base/torch.h"
#include "lehr/ops/attention/varlen_kernel.h"

namespace lehr::ops {

namespace reference {
/// Plain ATen on the CPU, one sequence after the other, in any floating dtype; holds the scores of 128 queries at a
/// time.
extern const VariableLengthKernel kVariableLength;
}  // namespace reference

/// at::_flash_attention_forward and _backward, for calls that flash_takes accepts. Head sizes are padded with zeros to
/// one multiple of 8 for q, k and v.
extern const VariableLengthKernel kFlash;
/// True if FlashAttention supports the call: float16 or bfloat16, heads of at most 256 elements, no softcap.
/// FlashAttention also needs a GPU of compute capability 8.0 or more, and throws on others.
bool flash_takes(at::ScalarType type, int64_t size, int64_t value_size, const AttentionOptions& options);

/// at::_efficient_attention_forward and _backward, for calls that efficient_takes accepts. Keys and values are repeated
/// for each query head. A kernel call takes at most 16 sequences, because the kernel pads them to one length: backward
/// holds the float32 gradients of the queries of up to 16 rows.
extern const VariableLengthKernel kEfficient;
/// True if memory-efficient attention supports the call: float32, float16 or bfloat16, no softcap.
bool efficient_takes(at::ScalarType type, const AttentionOptions& options);

/// Returns the kernel for calls like this, on meta one that only allocates; null if there is none.
const VariableLengthKernel* variable_length_kernel(
    const at::Tensor& q, const at::Tensor& v, const AttentionOptions& options);

/// Computes ops::attention by `kernel`, in causal order, for as many queries as keys in rows that consist of
/// `sequences`. key_padding (B or 1, T) may be undefined. Outputs and gradients at hidden positions are zeros, whatever
/// the inputs hold there.
at::Tensor variable_length_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const Sequences& sequences,
    const at::Tensor& key_padding,
    const AttentionOptions& options,
    const VariableLengthKernel& kernel);

}  // namespace lehr::ops
