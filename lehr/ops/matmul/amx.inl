// GEMM of bfloat16 in tile registers: 2 x 2 tiles of sums, while both panels are streamed once (see kernel.inl).
//
// A step of the depth is one tile's width: kTileSide words, each a pair of bfloat16. Panels are padded with zeros to
// whole steps. A panel of a is [step][kTileBlock][kTileSide], so that a tile of it is 1 KiB of contiguous memory; one
// of b is [word][kTileBlock] as for vectors, which is how the instruction wants the second operand.
#pragma once

#include "lehr/ops/kernels/amx.inl"
#include "lehr/ops/matmul/kernels.h"
#include "lehr/ops/matmul/pack.inl"

namespace lehr::ops::LEHR_ARCH {
namespace {

static_assert(kTileUnitRows % kTileBlock == 0 && kGemmDepth % kTileSide == 0);
constexpr int64_t kPair = 2;  // elements per word

// Packs kTileSide words from word `k` on, of kTileSide rows of which `count` exist.
void pack_tile(const GemmOperand& operand, const Bf16* x, int64_t k, int64_t count, float* to) {
  const int64_t whole = operand.depth / kPair - k;  // words with both elements
  if (operand.along == 1 && whole >= kTileSide) {
    for (int64_t i = 0; i < count; ++i) {
      __builtin_memcpy(to + i * kTileSide, x + i * operand.across + kPair * k, kTileRowBytes);
    }
  } else if (operand.across == 1 && whole >= kTileSide && count == kTileSide) {
    FloatVec square[kTileSide];
#pragma GCC unroll 16
    for (int64_t i = 0; i < kTileSide; ++i) {
      float words[kTileSide];
      pack_neighbours<kTileSide, kPair>(x, k + i, operand.along, words);
      square[i] = load(words, All{});
    }
    transpose(square);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kTileSide; ++i) {
      store(to + i * kTileSide, square[i], All{});
    }
    return;
  } else {
    const int64_t words = (operand.depth + 1) / kPair - k;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t w = 0; w < kTileSide; ++w) {
        to[i * kTileSide + w] =
            w < words ? word_at<kPair>(x + i * operand.across, k + w, operand.along, operand.depth) : 0;
      }
    }
  }
  for (float* rest = to + count * kTileSide; rest < to + kTileSide * kTileSide; ++rest) {
    *rest = 0;
  }
}

void pack_tiles(const GemmOperand& operand, bool is_b, float* to, int64_t first, int64_t last) {
  const auto within = [](int64_t count, int64_t most) { return count < 0 ? 0 : (count < most ? count : most); };
  const int64_t words = operand.words;
  for (int64_t panel = first; panel < last; ++panel) {
    const int64_t start = panel * kTileBlock;
    const Bf16* x = static_cast<const Bf16*>(operand.elements) + start * operand.across;
    float* out = to + start * words;
    const int64_t count = within(operand.count - start, kTileBlock);
    if (is_b) {
      pack_panel<kTileBlock, kPair>(x, operand.across, operand.along, count, operand.depth, out);
      for (float* rest = out + (operand.depth + 1) / kPair * kTileBlock; rest < out + words * kTileBlock; ++rest) {
        *rest = 0;
      }
      continue;
    }
    for (int64_t k = 0; k < words; k += kTileSide) {
      for (int64_t row = 0; row < kTileBlock; row += kTileSide) {
        pack_tile(
            operand,
            x + row * operand.across,
            k,
            within(count - row, kTileSide),
            out + k * kTileBlock + row * kTileSide);
      }
    }
  }
}

// Adds `call.from` to a row of sums, and writes `count` of them to `call.to`.
template <class Count>
LEHR_INLINE void finish_vector(const GemmCall& call, const float* sums, int64_t row, int64_t column, Count count) {
  FloatVec sum = load(sums, All{});
  const int64_t from_at = row * call.from.stride + column;
  const int64_t to_at = row * call.to.stride + column;
  if (call.from.words == nullptr) {
  } else if (call.from.is_bf16) {
    sum += load(static_cast<const Bf16*>(call.from.words) + from_at, count);
  } else {
    sum += load(static_cast<const float*>(call.from.words) + from_at, count);
  }
  if (call.to.is_bf16) {
    store(static_cast<Bf16*>(call.to.words) + to_at, sum, count);
  } else {
    store(static_cast<float*>(call.to.words) + to_at, sum, count);
  }
}

void multiply_in_tiles(const GemmCall& call, int64_t first, int64_t last) {
  constexpr int64_t kStep = kTileSide * kTileBlock;          // words of a panel
  constexpr int64_t kSumBytes = kTileBlock * sizeof(float);  // of a row of sums, and of a word of b's panel
  constexpr int64_t kSecond = kTileSide * kTileBlock;        // sums before the second tile row
  const TileScope tiles;
  alignas(64) float sums[kTileBlock * kTileBlock];
  for_each_block(call, kTileUnitRows, kTileBlock, kTileBlock, first, last, [&](const GemmBlockAt& block) {
    start_block<false>(sums, kSumBytes, kSecond);
    add_to_block(
        {block.a, kStep, kTileSide * kTileSide, kTileRowBytes},
        {block.b, kStep, kTileSide, kSumBytes},
        call.depth / kTileSide);
    store_block(sums, kSumBytes, kSecond);
    for (int64_t r = 0; r < block.rows; ++r) {
      for (int64_t at = 0; at < block.columns; at += kTileSide) {
        const float* part = sums + r * kTileBlock + at;
        if (block.columns - at >= kTileSide) {
          finish_vector(call, part, block.row + r, block.column + at, All{});
        } else {
          finish_vector(call, part, block.row + r, block.column + at, First{block.columns - at});
        }
      }
    }
  });
}

constexpr GemmKernels<Bf16> kTileGemm = {
    {.rows = kTileBlock,
     .columns = kTileBlock,
     .unit_rows = kTileUnitRows,
     .per_word = kPair,
     .step = kTileSide,
     .pack = pack_tiles,
     .multiply = multiply_in_tiles}};

}  // namespace

LEHR_DEFINE_KERNELS(kTileGemm)

}  // namespace lehr::ops::LEHR_ARCH
