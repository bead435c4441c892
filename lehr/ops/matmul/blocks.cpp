// Built with NDEBUG, as LibTorch is: without it, the header lays out at::RecordFunction differently.
#include "lehr/ops/matmul/blocks.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/mm.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <optional>

#include "lehr/base/parallel.h"

namespace lehr::ops {

namespace {
// A grid of blocks that cover c.
struct Grid {
  int64_t rows = 1, columns = 1;
};

// Returns the grid for a matmul of depth k with some blocks per thread, as parallel_for has chunks, whose blocks are
// the nearest to squares, as these share the most of a and b; or a smaller one for a small c.
Grid grid_of(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kSmallest = 64;          // rows or columns of a block, if they are divided
  constexpr int64_t kLeastWork = 1LL << 16;  // multiply-adds of a block
  for (int64_t blocks = 4 * num_threads(); blocks > 1; blocks /= 2) {
    std::optional<Grid> best;
    const auto edges = [&](const Grid& grid) { return m / grid.rows + n / grid.columns; };
    for (int64_t rows = 1; rows <= blocks; ++rows) {
      const Grid grid{.rows = rows, .columns = blocks / rows};
      const bool fits = blocks % rows == 0 && (rows == 1 || m / rows >= kSmallest) &&
                        (grid.columns == 1 || n / grid.columns >= kSmallest) && m * n / blocks * k >= kLeastWork;
      if (fits && (!best || edges(grid) < edges(*best))) {
        best = grid;
      }
    }
    if (best) {
      return *best;
    }
  }
  return {};
}

void mm_by_blocks_(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool add) {
  const int64_t m = c.size(0), n = c.size(1);
  const Grid grid = grid_of(m, n, a.size(1));
  parallel_for(0, grid.rows * grid.columns, 1, [&](int64_t first, int64_t last) {
    // Worker threads would record the operations for autograd; the caller's thread, which profiles and meters observe,
    // would count some of the blocks beside the whole.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::DisableRecordFunctionGuard unobserved;
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = i / grid.columns, column = i % grid.columns;
      const int64_t top = m * row / grid.rows, left = n * column / grid.columns;
      const int64_t height = m * (row + 1) / grid.rows - top, width = n * (column + 1) / grid.columns - left;
      at::Tensor block = c.narrow(0, top, height).narrow(1, left, width);
      if (add) {
        block.addmm_(a.narrow(0, top, height), b.narrow(1, left, width));
      } else {
        at::mm_out(block, a.narrow(0, top, height), b.narrow(1, left, width));
      }
    }
  });
}

TORCH_LIBRARY_FRAGMENT(lehr, library) {
  library.def("mm_by_blocks_(Tensor(a!) c, Tensor a, Tensor b, bool add) -> ()");
}
TORCH_LIBRARY_IMPL(lehr, CPU, library) {
  library.impl("mm_by_blocks_", mm_by_blocks_);
}
// Not differentiable by itself: operators call it inside their own autograd functions.
TORCH_LIBRARY_IMPL(lehr, Autograd, library) {
  library.impl("mm_by_blocks_", torch::CppFunction::makeFallthrough());
}
}  // namespace

void multiply_by_blocks(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool add) {
  static const auto call =
      c10::Dispatcher::singleton().findSchemaOrThrow("lehr::mm_by_blocks_", "").typed<decltype(mm_by_blocks_)>();
  call.call(c, a, b, add);
  if (!c.is_inference()) {
    c.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace lehr::ops
