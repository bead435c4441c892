// The peak of AMX's tile registers in bfloat16. Lehr's matmuls use AMX through oneDNN.
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace lehr::ops::amx {

namespace {
// The operand of LDTILECFG (Intel SDM, "AMX tile configuration").
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t first_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
}  // namespace

bool permitted() {
  // From the kernel's documentation of XSTATE features that a process must ask for (arch/x86/xstate.rst).
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

double multiply_adds(int64_t rounds) {
  constexpr int kTiles = 8;
  constexpr int kRows = 16;
  constexpr int kRowBytes = 64;
  TileShapes shapes;
  for (int i = 0; i < kTiles; ++i) {
    shapes.row_bytes[i] = kRowBytes;
    shapes.rows[i] = kRows;
  }
  // gcc 12 declares that LDTILECFG reads 8 bytes, and would drop the stores to the other 56.
  asm volatile("" : : "m"(shapes));
  _tile_loadconfig(&shapes);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  constexpr double kFlops = 2.0 * kRows * kRows * (kRowBytes / 2);  // of a (16, 32) by (32, 16) matmul
  return 4 * kFlops * static_cast<double>(rounds);
}

}  // namespace lehr::ops::amx
