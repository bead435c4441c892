// The language of kernel bodies, for device and host.
//
// A body is a struct with operator()(Group& group, int64_t index): the code of one group of threads, of which as many
// are launched as the launch requests. A group has rank() and size(), and sum(x) and max(x) over its threads, which all
// threads call and whose result all get. A group of whole warps also has scratch(), shared memory of the size that its
// launch requested, and sync(), a barrier after which all threads see each other's writes there.
#pragma once

#include <cmath>
#include <cstdint>

#include "lehr/ops/cuda/slot.h"

#ifdef __CUDACC__
#define LEHR_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define LEHR_HOST_DEVICE inline
#endif

namespace lehr::ops::cuda {

LEHR_HOST_DEVICE float widen(float x) {
  return x;
}
LEHR_HOST_DEVICE float widen(Bf16 x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
}

/// Converts a float32 to an element of type T.
template <class T>
LEHR_HOST_DEVICE T narrow(float x);
template <>
LEHR_HOST_DEVICE float narrow<float>(float x) {
  return x;
}
/// Rounds to nearest, ties to even.
template <>
LEHR_HOST_DEVICE Bf16 narrow<Bf16>(float x) {
#ifdef __CUDA_ARCH__
  uint16_t half;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return {half};
#else
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return {static_cast<uint16_t>(x != x ? 0x7fff : rounded)};
#endif
}

/// Returns x rounded to type T.
template <class T>
LEHR_HOST_DEVICE float rounded_to(float x) {
  return widen(narrow<T>(x));
}

/// 16 bytes that are read and written in one access.
template <class T>
struct alignas(16) Pack {
  T at[kPack<T>];
};

/// Writes a pack in one access: nvcc splits plain assignments where it can.
template <class T>
LEHR_HOST_DEVICE void store(T* p, const Pack<T>& pack) {
#ifdef __CUDA_ARCH__
  struct Words {
    uint32_t at[4];
  };
  const Words w = __builtin_bit_cast(Words, pack);
  asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(w.at[0]), "r"(w.at[1]), "r"(w.at[2]), "r"(w.at[3])
               : "memory");
#else
  *reinterpret_cast<Pack<T>*>(p) = pack;
#endif
}

/// Elements that a thread holds in float32.
template <int kCount>
struct Values {
  float at[kCount];
};

/// Reads elements [i, i + kCount) of a run of `size`, or `otherwise` beyond its end. The run is aligned to 16 bytes,
/// and i and size are multiples of kCount.
template <int kCount, class T, class Index>
LEHR_HOST_DEVICE Values<kCount> read(const T* p, Index i, Index size, float otherwise = 0) {
  static_assert(kCount % kPack<T> == 0);
  Values<kCount> values;
#pragma unroll
  for (int first = 0; first < kCount; first += kPack<T>) {
    Pack<T> pack = {};
    if (i < size) {
      pack = *reinterpret_cast<const Pack<T>*>(p + i + first);
    }
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      values.at[first + j] = i < size ? widen(pack.at[j]) : otherwise;
    }
  }
  return values;
}

/// Writes elements [i, i + kCount); does nothing beyond the end of the run.
template <int kCount, class T, class Index>
LEHR_HOST_DEVICE void write(T* p, Index i, Index size, const Values<kCount>& values) {
  static_assert(kCount % kPack<T> == 0);
  if (i < size) {
#pragma unroll
    for (int first = 0; first < kCount; first += kPack<T>) {
      Pack<T> pack;
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        pack.at[j] = narrow<T>(values.at[first + j]);
      }
      store(p + i + first, pack);
    }
  }
}

/// Does the same as read, for any size, and for any alignment of the run if not `packed`.
template <int kCount, class T>
LEHR_HOST_DEVICE Values<kCount> read_any(const T* p, int64_t i, int64_t size, bool packed, float otherwise = 0) {
  if (packed && i + kCount <= size) {
    return read<kCount>(p, i, size);
  }
  Values<kCount> values;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    values.at[j] = i + j < size ? widen(p[i + j]) : otherwise;
  }
  return values;
}

/// Does the same as write, for any size, and for any alignment of the run if not `packed`.
template <int kCount, class T>
LEHR_HOST_DEVICE void write_any(T* p, int64_t i, int64_t size, bool packed, const Values<kCount>& values) {
  if (packed && i + kCount <= size) {
    write(p, i, size, values);
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    if (i + j < size) {
      p[i + j] = narrow<T>(values.at[j]);
    }
  }
}

/// An unsigned number of that many bytes; a pack for 16.
template <int kBytes>
struct Word;
template <>
struct Word<2> {
  using Type = uint16_t;
};
template <>
struct Word<4> {
  using Type = uint32_t;
};
template <>
struct Word<8> {
  using Type = uint64_t;
};
template <>
struct Word<16> {
  using Type = Pack<float>;
};
template <int kCount, class T>
using WordOf = typename Word<kCount* static_cast<int>(sizeof(T))>::Type;
/// Elements that are read or written in one access.
template <int kCount, class T>
struct Elements {
  T at[kCount];
};

/// Reads elements [i, i + kCount) of a run of `size`, or zeros beyond its end: at most 16 bytes, in one access if
/// `packed`. Then the run is aligned to 16 bytes, and i and size are multiples of kCount.
template <int kCount, class T>
LEHR_HOST_DEVICE Values<kCount> read_few(const T* p, int64_t i, int64_t size, bool packed) {
  Elements<kCount, T> elements = {};
  if (packed) {
    if (i < size) {
      elements = __builtin_bit_cast(Elements<kCount, T>, *reinterpret_cast<const WordOf<kCount, T>*>(p + i));
    }
  } else {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      elements.at[j] = i + j < size ? p[i + j] : T{};
    }
  }
  Values<kCount> values;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    values.at[j] = widen(elements.at[j]);
  }
  return values;
}

/// Writes elements [i, i + kCount), as read_few reads them; does nothing beyond the end of the run.
template <int kCount, class T>
LEHR_HOST_DEVICE void write_few(T* p, int64_t i, int64_t size, bool packed, const Values<kCount>& values) {
  Elements<kCount, T> elements;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    elements.at[j] = narrow<T>(values.at[j]);
  }
  if (packed) {
    if constexpr (sizeof(elements) == 16) {
      if (i < size) {
        store(p + i, __builtin_bit_cast(Pack<T>, elements));
      }
    } else if (i < size) {
      *reinterpret_cast<WordOf<kCount, T>*>(p + i) = __builtin_bit_cast(WordOf<kCount, T>, elements);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    if (i + j < size) {
      p[i + j] = elements.at[j];
    }
  }
}

/// Returns the number of elements of a row that fit into that many bytes, in whole packs.
template <class T>
constexpr int64_t held_of_row(int64_t size, int64_t bytes) {
  const int64_t room = bytes / static_cast<int64_t>(sizeof(T));
  return (size < room ? size : room) / kPack<T> * kPack<T>;
}
/// Returns the floats of scratch memory for one number per column, in whole packs of T and of 16 bytes.
template <class T>
constexpr int64_t scratch_columns(int64_t size) {
  return (size + kPack<T> - 1) / kPack<T> * kPack<T>;
}

/// exp(x)
LEHR_HOST_DEVICE float exponential(float x) {
  return exp2f(x * 1.44269504088896340736f);
}

/// True if all pointers (null ones do not count) are aligned to 16 bytes.
template <class... T>
bool aligned(const T*... pointers) {
  return (((reinterpret_cast<uintptr_t>(pointers) & 15) == 0) && ...);
}

/// @name Tiles of elementwise kernels
/// @{
/// Packs per thread in flight.
constexpr int kPacksATile = 2;
constexpr int64_t kTileThreads = 256;
template <class T>
constexpr int64_t kTile = kTileThreads* kPacksATile* kPack<T>;

/// Returns the first element of pack `u` of this thread in tile `index`.
template <class T, class Group>
LEHR_HOST_DEVICE int64_t in_tile(Group& group, int64_t index, int64_t u) {
  return ((index * kPacksATile + u) * group.size() + group.rank()) * kPack<T>;
}

/// Returns the number of tiles of `count` elements.
template <class T>
constexpr int64_t tiles_for(int64_t count) {
  return (count + kTile<T> - 1) / kTile<T>;
}
/// @}

}  // namespace lehr::ops::cuda
