// The causal convolution on a GPU: a thread goes through a run of tokens, and keeps the last ones in registers.
#include "lehr/ops/causal_conv/kernels.h"
#include "lehr/ops/cuda/kernel.h"
#include "lehr/ops/cuda/sequences.h"
#include "lehr/ops/rms_norm/bodies.h"

namespace lehr::ops::cuda {

/// A block has kConvLanes threads side by side for each of kConvRuns runs of tokens.
constexpr int kConvLanes = 64;
constexpr int kConvRuns = 4;
constexpr int64_t kConvThreads = kConvLanes * kConvRuns;
constexpr int64_t kConvRun = kConvTokens / kConvRuns;
/// Taps in registers: for the usual width, and for all widths, with fewer channels per thread.
constexpr int kUsualTaps = 4;
constexpr int kAllTaps = 16;

/// The channels and the run of tokens of a thread. Tokens are positions in the row; those before it are negative.
template <class T, int kTaps>
struct ConvThread {
  static constexpr int kChannels = kAllTaps / kTaps;
  static constexpr int64_t kBlockChannels = kConvLanes * kChannels;
  using Channels = Values<kChannels>;

  ConvInput<T> in;
  bool packed;  // a row can be read in words of kChannels elements
  int lane, run;
  int64_t block;  // of tokens, over all rows
  int64_t row, channel;
  int64_t first, last;  // equal if the thread has no work

  template <class Group>
  LEHR_HOST_DEVICE ConvThread(const ConvInput<T>& input, bool is_packed, const Group& group, int64_t index)
      : in(input), packed(is_packed), lane(group.rank() % kConvLanes), run(group.rank() / kConvLanes) {
    const int64_t blocks = channel_blocks(in);
    block = index / blocks;
    channel = index % blocks * kBlockChannels + lane * kChannels;
    row = block / in.token_blocks();
    first = block % in.token_blocks() * kConvTokens + run * kConvRun;
    last = first + kConvRun < in.row_tokens ? first + kConvRun : in.row_tokens;
    last = channel < in.channels && first < last ? last : first;
  }
  LEHR_HOST_DEVICE static constexpr int64_t channel_blocks(const ConvInput<T>& input) {
    return (input.channels + kBlockChannels - 1) / kBlockChannels;
  }

  /// The thread's channels of token `at` of a tensor like x.
  LEHR_HOST_DEVICE Channels read(const T* tensor, int64_t at) const {
    return read_few<kChannels>(tensor + (row * in.row_tokens + at) * in.channels, channel, in.channels, packed);
  }
  LEHR_HOST_DEVICE void write(T* tensor, int64_t at, const Channels& values) const {
    write_few(tensor + (row * in.row_tokens + at) * in.channels, channel, in.channels, packed, values);
  }
  /// The offset of a token before the row in `before`.
  LEHR_HOST_DEVICE int64_t offset_before(int64_t at) const { return ((row + 1) * (in.width - 1) + at) * in.channels; }
  LEHR_HOST_DEVICE bool is_before(int64_t at) const { return at < 0 && at > -in.width; }

  /// A token that may be before the row; zeros if there is none.
  LEHR_HOST_DEVICE Channels read_earlier(int64_t at) const {
    if (at >= 0) {
      return read(in.x, at);
    }
    if (in.before != nullptr && is_before(at)) {
      return read_few<kChannels>(in.before + offset_before(at), channel, in.channels, packed);
    }
    return {};
  }

  LEHR_HOST_DEVICE void read_weights(Channels (&weight)[kTaps]) const {
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        const bool exists = j < in.width && channel + i < in.channels;
        weight[j].at[i] = exists ? widen(in.weight[(channel + i) * in.width + in.width - 1 - j]) : 0;
      }
    }
  }
  /// Reads the bias. It is read for every token, since registers are full, and stays in the L1 cache.
  LEHR_HOST_DEVICE Channels read_bias() const {
    return in.bias != nullptr ? read_few<kChannels>(in.bias, channel, in.channels, /*packed=*/false) : Channels{};
  }
};

/// The last tokens of a thread, x[j] the one j before the current one.
template <class T, int kTaps>
struct ConvWindow {
  using Channels = typename ConvThread<T, kTaps>::Channels;
  Channels x[kTaps];
  SequenceWalk walk;

  LEHR_HOST_DEVICE explicit ConvWindow(const ConvThread<T, kTaps>& thread)
      : walk(
            thread.in.cumulative_lengths,
            thread.in.borders,
            thread.row * thread.in.row_tokens,
            thread.row * thread.in.row_tokens + thread.first) {
#pragma unroll
    for (int j = 1; j < kTaps; ++j) {
      x[j - 1] = thread.read_earlier(thread.first - j);
    }
  }

  /// Makes token `at` the current one, and returns the number of tokens before it that it sees.
  LEHR_HOST_DEVICE int64_t advance(const ConvThread<T, kTaps>& thread, int64_t at, const Channels& token) {
    shift(x);
    x[0] = token;
    const int64_t row = thread.row * thread.in.row_tokens, begin = walk.begin_of(row + at) - row;
    const int64_t most = thread.in.width - 1;
    const bool continues = begin == 0 && thread.in.before != nullptr;
    return continues || at - begin > most ? most : at - begin;
  }

  LEHR_HOST_DEVICE Channels
  sum(const ConvThread<T, kTaps>& thread, const Channels (&weight)[kTaps], int64_t seen) const {
    Channels total = thread.read_bias();
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
#pragma unroll
      for (int i = 0; i < ConvThread<T, kTaps>::kChannels; ++i) {
        total.at[i] += j <= seen ? weight[j].at[i] * x[j].at[i] : 0;
      }
    }
    return total;
  }

  LEHR_HOST_DEVICE static void shift(Channels (&ring)[kTaps]) {
#pragma unroll
    for (int j = kTaps - 1; j > 0; --j) {
      ring[j] = ring[j - 1];
    }
  }
};

template <class T, int kTaps>
struct ConvForward {
  ConvInput<T> input;
  T* y;
  bool packed;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    using Thread = ConvThread<T, kTaps>;
    const Thread thread(input, packed, group, index);
    if (thread.first == thread.last) {
      return;
    }
    typename Thread::Channels weight[kTaps];
    thread.read_weights(weight);
    ConvWindow<T, kTaps> window(thread);
    for (int64_t at = thread.first; at < thread.last; ++at) {
      const int64_t seen = window.advance(thread, at, thread.read(input.x, at));
      typename Thread::Channels sum = window.sum(thread, weight, seen);
#pragma unroll
      for (int i = 0; i < Thread::kChannels; ++i) {
        sum.at[i] /= exponential(-sum.at[i]) + 1;
      }
      thread.write(y, at, sum);
    }
  }
};

/// A thread also processes the tokens after its run that see tokens of the run. The gradient of a token is complete,
/// and written, when the last token that sees it has been added.
template <class T, int kTaps>
struct ConvBackward {
  using Thread = ConvThread<T, kTaps>;
  using Channels = typename Thread::Channels;
  static constexpr int64_t kTotals = kConvLanes * kAllTaps;
  static constexpr int64_t kScratch =
      (kTotals + kConvThreads * Thread::kChannels) * static_cast<int64_t>(sizeof(float));

  ConvInput<T> input;
  const T* dy;
  T* dx;         ///< Null if not requested, like dbefore and dweight.
  T* dbefore;    ///< Like input.before.
  float* parts;  ///< (blocks of tokens, weight_size)
  int64_t weight_size;
  bool packed;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    const Thread thread(input, packed, group, index);
    Channels dweight[kTaps] = {};
    float* const total = static_cast<float*>(group.scratch());  // (taps, channels of a thread, lanes)
    float* const dbias = total + kTotals + group.rank();        // (channels of a thread, threads), of this thread
#pragma unroll
    for (int i = 0; i < Thread::kChannels; ++i) {
      dbias[i * kConvThreads] = 0;
    }
    if (thread.first < thread.last) {
      process(thread, dweight, dbias);
    }
    if (parts == nullptr) {
      return;
    }
    for (int run = 0; run < kConvRuns; ++run) {  // the order of sums is that of tokens
      if (run == thread.run) {
#pragma unroll
        for (int j = 0; j < kTaps; ++j) {
#pragma unroll
          for (int i = 0; i < Thread::kChannels; ++i) {
            float& sum = total[(j * Thread::kChannels + i) * kConvLanes + thread.lane];
            sum = run == 0 ? dweight[j].at[i] : sum + dweight[j].at[i];
            if (run == kConvRuns - 1 && j < input.width && thread.channel + i < input.channels) {
              parts[thread.block * weight_size + (thread.channel + i) * input.width + input.width - 1 - j] = sum;
            }
          }
        }
      }
      group.sync();
    }
    if (input.bias != nullptr && thread.run == 0) {
      write_dbias(thread, dbias);
    }
  }

 private:
  LEHR_HOST_DEVICE void write_dbias(const Thread& thread, const float* dbias) const {
    for (int i = 0; i < Thread::kChannels && thread.channel + i < input.channels; ++i) {
      float sum = 0;
      for (int run = 0; run < kConvRuns; ++run) {
        sum += dbias[i * kConvThreads + run * kConvLanes];
      }
      parts[thread.block * weight_size + input.channels * input.width + thread.channel + i] = sum;
    }
  }

  /// `dbias` is in shared memory, since registers are full.
  LEHR_HOST_DEVICE void process(const Thread& thread, Channels (&dweight)[kTaps], float* dbias) const {
    Channels weight[kTaps];
    thread.read_weights(weight);
    ConvWindow<T, kTaps> window(thread);
    Channels ring[kTaps] = {};  // the gradient of the token j before the current one
    for (int64_t at = thread.first; at < thread.last + kTaps - 1; ++at) {
      ConvWindow<T, kTaps>::shift(ring);
      ring[0] = {};
      if (at < input.row_tokens) {
        const Channels incoming = thread.read(dy, at);
        const int64_t seen = window.advance(thread, at, thread.read(input.x, at));
        const Channels sum = window.sum(thread, weight, seen);
#pragma unroll
        for (int i = 0; i < Thread::kChannels; ++i) {
          const float sigmoid = 1 / (exponential(-sum.at[i]) + 1);
          const float dsum = incoming.at[i] * sigmoid * (1 + sum.at[i] * (1 - sigmoid));
#pragma unroll
          for (int j = 0; j < kTaps; ++j) {
            ring[j].at[i] += j <= seen ? weight[j].at[i] * dsum : 0;
            dweight[j].at[i] += j <= seen && at < thread.last ? window.x[j].at[i] * dsum : 0;
          }
          if (input.bias != nullptr && at < thread.last) {
            dbias[i * kConvThreads] += dsum;
          }
        }
      }
      write_complete(thread, at - (kTaps - 1), ring[kTaps - 1]);
    }
  }

  LEHR_HOST_DEVICE void write_complete(const Thread& thread, int64_t at, const Channels& gradient) const {
    if (at >= thread.first && dx != nullptr) {
      thread.write(dx, at, gradient);
    }
    if (thread.first == 0 && thread.is_before(at) && dbefore != nullptr) {
      write_few(dbefore + thread.offset_before(at), thread.channel, input.channels, packed, gradient);
    }
  }
};

namespace {
template <class T, int kTaps>
int64_t blocks_of(const ConvInput<T>& in) {
  return in.rows * in.token_blocks() * ConvThread<T, kTaps>::channel_blocks(in);
}

template <class T>
bool is_packed(const ConvInput<T>& in, const T* a, const T* b, const T* c) {
  return in.channels % kPack<T> == 0 && aligned(in.x, in.before, a, b, c);
}

template <class T>
Status conv_forward(const ConvInput<T>& in, T* y) {
  const bool packed = is_packed<T>(in, y, nullptr, nullptr);
  return in.width <= kUsualTaps
             ? Launch::blocks(ConvForward<T, kUsualTaps>{in, y, packed}, blocks_of<T, kUsualTaps>(in), kConvThreads)
             : Launch::blocks(ConvForward<T, kAllTaps>{in, y, packed}, blocks_of<T, kAllTaps>(in), kConvThreads);
}

template <class T, int kTaps>
Status launch_backward(const ConvBackward<T, kTaps>& body) {
  return Launch::blocks(body, blocks_of<T, kTaps>(body.input), kConvThreads, ConvBackward<T, kTaps>::kScratch);
}

template <class T>
Status conv_backward(
    const ConvInput<T>& in, const T* dy, T* dx, T* dbefore, const WeightGradient<T>& dweight, int64_t weight_size) {
  const bool packed = is_packed<T>(in, dy, dx, dbefore);
  const Status status =
      in.width <= kUsualTaps
          ? launch_backward(ConvBackward<T, kUsualTaps>{in, dy, dx, dbefore, dweight.parts, weight_size, packed})
          : launch_backward(ConvBackward<T, kAllTaps>{in, dy, dx, dbefore, dweight.parts, weight_size, packed});
  return status != nullptr ? status : sum_parts(dweight, weight_size);
}

template <class T>
constexpr ConvLaunches<T> kConv = {.forward = conv_forward<T>, .backward = conv_backward<T>};
const Registered kConvEntries(kConv<float>, kConv<Bf16>);
}  // namespace

}  // namespace lehr::ops::cuda
