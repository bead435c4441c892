// The peak of the tile registers: multiply-adds that wait neither for memory nor for each other.
#pragma once

#include "lehr/ops/kernels/amx.inl"
#include "lehr/ops/register_peak/kernels.h"

namespace lehr::ops::LEHR_ARCH {
namespace {

MultiplyAdded tile_multiply_adds(int64_t rounds) {
  constexpr int kSums = 4;
  constexpr int64_t kElements = kTileSide * kTileSide;
  alignas(64) float buffer[kSums][kElements];
  for (float& half : buffer[0]) {
    half = 0.5F;
  }
  Bf16 halves[2 * kElements];
  for (Bf16& half : halves) {
    half.bits = 0x3f00;
  }
  const TileScope tiles;
  complete_stores();
  _tile_loadd(0, buffer, kTileRowBytes);
  _tile_loadd(1, buffer, kTileRowBytes);
  _tile_loadd(2, buffer, kTileRowBytes);
  _tile_loadd(3, buffer, kTileRowBytes);
  _tile_loadd(4, halves, kTileRowBytes);
  _tile_loadd(5, halves, kTileRowBytes);
  _tile_loadd(6, halves, kTileRowBytes);
  _tile_loadd(7, halves, kTileRowBytes);
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, buffer[0], kTileRowBytes);
  _tile_stored(1, buffer[1], kTileRowBytes);
  _tile_stored(2, buffer[2], kTileRowBytes);
  _tile_stored(3, buffer[3], kTileRowBytes);
  MultiplyAdded done{.flops = 2.0 * kElements * (2 * kTileSide) * kSums * static_cast<double>(rounds)};
  for (const auto& sums : buffer) {
    for (const float sum : sums) {
      done.sum += static_cast<double>(sum);
    }
  }
  return done;
}

constexpr MultiplyAddKernels<Bf16> kTileMultiplyAdd = {.multiply_adds = tile_multiply_adds};

}  // namespace

LEHR_DEFINE_KERNELS(kTileMultiplyAdd)

}  // namespace lehr::ops::LEHR_ARCH
