// The causal convolution on the CPU: vectors of channels, token by token.
#pragma once

#include "lehr/ops/causal_conv/kernels.h"
#include "lehr/ops/kernels/vec.inl"

namespace lehr::ops::LEHR_ARCH {
namespace {

constexpr int64_t kConvMost = 16;

// The tokens that a token sees: itself, the one before it, and so on. The first `inside` of them are in x.
template <class T>
struct ConvTaps {
  const T* x[kConvMost];
  int64_t inside;
  int64_t before;  // the offset in `before` of the tap that follows those

  ConvTaps(const ConvCall<T>& call, int64_t token) {
    const int64_t row = token / call.row_tokens, count = call.earlier[token] + 1;
    inside = token - row * call.row_tokens + 1;
    inside = inside < count ? inside : count;
    before = ((row + 1) * (call.width - 1) - 1) * call.channels;
    for (int64_t j = 0; j < inside; ++j) {
      x[j] = call.x + (token - j) * call.channels;
    }
    for (int64_t j = inside; j < count; ++j) {
      x[j] = call.before + before - (j - inside) * call.channels;
    }
  }
};

// Returns the sum over a token's taps, for `count` channels from `channel` on.
template <class T, class Count>
LEHR_INLINE Vec<T> conv_sum(
    const ConvCall<T>& call, const ConvTaps<T>& taps, int64_t token, int64_t channel, Count count) {
  const Wide<T>* weight = call.weight + (call.width - 1) * call.channels + channel;
  Vec<T> sum = load(weight, count) * load(taps.x[0] + channel, count);
  if (call.bias != nullptr) {
    sum += load(call.bias + channel, count);
  }
  for (int64_t j = 1; j <= call.earlier[token]; ++j) {
    sum += load(weight - j * call.channels, count) * load(taps.x[j] + channel, count);
  }
  return sum;
}

template <class T>
void conv_forward(const ConvCall<T>& call, T* y, int64_t first, int64_t last) {
  for (int64_t token = first; token < last; ++token) {
    const ConvTaps<T> taps(call, token);
    for_each_vector<T>(
        call.channels, [&](int64_t i, auto count) __attribute__((always_inline)) {
          const Vec<T> sum = conv_sum(call, taps, token, i, count);
          store(y + token * call.channels + i, sum / (exponential(-sum) + 1), count);
        });
  }
}

// A ring of the last `width` rows of dx: a row is complete when the last token that sees it was added.
template <class T>
void conv_backward(
    const ConvCall<T>& call,
    const T* dy,
    T* dx,
    Wide<T>* dbefore,
    Wide<T>* dweight,
    Wide<T>* dbias,
    int64_t first,
    int64_t last) {
  using W = Wide<T>;
  alignas(64) W ring[kConvMost * kConvBlock];
  const int64_t width = call.width, channels = call.channels, own = last - first;
  const auto row = [&](int64_t token) { return ring + token % width * kConvBlock; };
  const auto write_row = [&](int64_t token) {
    for_each_vector<T>(
        own, [&](int64_t i, auto count) __attribute__((always_inline)) {
          store(dx + token * channels + first + i, load(row(token) + i, count), count);
        });
  };
  for (int64_t i = first; i < last; ++i) {
    for (int64_t j = 0; dweight != nullptr && j < width; ++j) {
      dweight[j * channels + i] = 0;
    }
    if (dbias != nullptr) {
      dbias[i] = 0;
    }
  }
  for (int64_t token = 0; token < call.tokens; ++token) {
    if (dx != nullptr && token >= width) {
      write_row(token - width);
    }
    const ConvTaps<T> taps(call, token);
    for_each_vector<T>(
        own, [&](int64_t i, auto count) __attribute__((always_inline)) {
          const int64_t channel = first + i;
          const Vec<T> sum = conv_sum(call, taps, token, channel, count);
          const Vec<T> sigmoid = 1 / (exponential(-sum) + 1);
          const Vec<T> dsum = load(dy + token * channels + channel, count) * sigmoid * (1 + sum * (1 - sigmoid));
          if (dbias != nullptr) {
            store(dbias + channel, load(dbias + channel, count) + dsum, count);
          }
          for (int64_t j = 0; j <= call.earlier[token]; ++j) {
            const int64_t tap = (width - 1 - j) * channels + channel;
            const bool inside = j < taps.inside;
            if (inside ? dx != nullptr : dbefore != nullptr) {
              W* before = inside ? row(token - j) + i : dbefore + taps.before - (j - taps.inside) * channels + channel;
              const Vec<T> part = load(call.weight + tap, count) * dsum;
              store(before, j == 0 ? part : load(before, count) + part, count);
            }
            if (dweight != nullptr) {
              const Vec<T> part = load(taps.x[j] + channel, count) * dsum;
              store(dweight + tap, load(dweight + tap, count) + part, count);
            }
          }
        });
  }
  for (int64_t token = call.tokens > width ? call.tokens - width : 0; dx != nullptr && token < call.tokens; ++token) {
    write_row(token);
  }
}

template <class T>
constexpr ConvKernels<T> kConv = {.forward = conv_forward<T>, .backward = conv_backward<T>};

}  // namespace

LEHR_KERNELS(kConv<float>)
LEHR_KERNELS(kConv<double>)
LEHR_KERNELS(kConv<Bf16>)

}  // namespace lehr::ops::LEHR_ARCH
