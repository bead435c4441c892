// Blocked GEMM (Goto and van de Geijn, https://doi.org/10.1145/1356052.1356053): for each block of c, all threads pack
// the operands into panels, and then multiply them.
//
// Threads share a block of c in units of one panel, so none waits for long. Terms are summed in the order of k. Panels
// of b are packed once; those of a too, if c has one block of columns or if all of them are few enough to be kept.
#include "lehr/ops/matmul/gemm.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>

#include "lehr/base/parallel.h"
#include "lehr/meter/on_meta.h"
#include "lehr/ops/matmul/kernels.h"

namespace lehr::ops {

namespace {
// Maximum size of a block of c, which bounds the memory for panels. Rows are those of whole units.
constexpr int64_t kMostRows = 1056;
constexpr int64_t kMostColumns = 2048;
// Maximum words of panels of the whole a, which are kept if c has several blocks of columns.
constexpr int64_t kMostKept = 4 << 20;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Returns the block size of a dimension: a multiple of `unit`, at most `most`, and the same for all blocks but
// the last.
int64_t part_of(int64_t size, int64_t most, int64_t unit) {
  return std::min(size, ceil_div(ceil_div(size, ceil_div(size, most)), unit) * unit);
}

// Null in bfloat16 on CPUs other than x86-64.
const Gemm* kernels_for(at::ScalarType type) {
#ifdef __x86_64__
  if (type == at::kBFloat16) {
    return &cpu_kernels<GemmKernels<Bf16>>().gemm;
  }
#endif
  return type == at::kFloat ? &cpu_kernels<GemmKernels<float>>().gemm : nullptr;
}

// One matmul in blocks of (rows_, columns_) of c and depth_ terms. A word is four bytes: one float32 (perhaps a widened
// bfloat16) or two bfloat16.
class Product {
 public:
  Product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, bool add)
      : kernels_(*kernels_for(a.scalar_type())),
        a_(a),
        b_(b),
        c_(c),
        add_(add),
        is_bf16_(a.scalar_type() == at::kBFloat16),
        rows_(part_of(a.size(0), kMostRows / kernels_.unit_rows * kernels_.unit_rows, kernels_.unit_rows)),
        columns_(part_of(b.size(1), kMostColumns, kernels_.columns)),
        depth_(part_of(a.size(1), kGemmDepth * per_word(), per_word() * kernels_.step)) {
    constexpr int64_t kLine = 16;  // words per cache line; panels of b begin on one
    const int64_t words = words_of(depth_);
    a_words_ = ceil_div(ceil_div(rows_, kernels_.rows) * kernels_.rows * words, kLine) * kLine;
    const int64_t blocks_of_a = ceil_div(a.size(0), rows_) * ceil_div(a.size(1), depth_);
    keeps_a_ = b.size(1) > columns_ && blocks_of_a * a_words_ <= kMostKept;
    b_at_ = (keeps_a_ ? blocks_of_a : 1) * a_words_;
    const int64_t b_words = ceil_div(columns_, kernels_.columns) * kernels_.columns * words;
    panels_ = at::empty({b_at_ + b_words}, a.options().dtype(at::kFloat));
    if (is_bf16_ && depth_ < a.size(1)) {
      sums_ = at::empty({rows_, columns_}, a.options().dtype(at::kFloat));
    }
  }

  void run() {
    for (int64_t column = 0; column < b_.size(1); column += columns_) {
      if (sums_.defined()) {  // has room for one block of c: finish it before the next one
        for (int64_t row = 0; row < a_.size(0); row += rows_) {
          for (int64_t at = 0; at < a_.size(1); at += depth_) {
            multiply(row, column, at, true);
          }
        }
      } else {  // c itself holds partial sums: pack each block of b once, for all rows
        for (int64_t at = 0; at < a_.size(1); at += depth_) {
          for (int64_t row = 0; row < a_.size(0); row += rows_) {
            multiply(row, column, at, row == 0);
          }
        }
      }
    }
  }

 private:
  int64_t per_word() const { return kernels_.per_word; }

  // Returns the words of panels of `depth` terms.
  int64_t words_of(int64_t depth) const { return ceil_div(depth, per_word() * kernels_.step) * kernels_.step; }

  static char* element(const at::Tensor& tensor, int64_t row, int64_t column) {
    const int64_t at = row * tensor.stride(0) + column * tensor.stride(1);
    return static_cast<char*>(tensor.data_ptr()) + at * static_cast<int64_t>(tensor.element_size());
  }

  // The panels of a's block at (row, at): one place for all blocks, or one for each if they are kept.
  float* panels_of_a(int64_t row, int64_t at) const {
    const int64_t block = keeps_a_ ? row / rows_ * ceil_div(a_.size(1), depth_) + at / depth_ : 0;
    return panels_.mutable_data_ptr<float>() + block * a_words_;
  }

  // Adds the terms [at, at + depth_) to the block of c at (row, column). Packs the block of b only if `pack_b`, and
  // that of a unless its panels were kept.
  void multiply(int64_t row, int64_t column, int64_t at, bool pack_b) {
    const int64_t rows = std::min(rows_, a_.size(0) - row);
    const int64_t columns = std::min(columns_, b_.size(1) - column);
    const int64_t depth = std::min(depth_, a_.size(1) - at), words = words_of(depth);
    float* const a_panels = panels_of_a(row, at);
    float* const b_panels = panels_.mutable_data_ptr<float>() + b_at_;
    const bool pack_a = column == 0 || !keeps_a_;
    const GemmOperand a{element(a_, row, at), a_.stride(0), a_.stride(1), pack_a ? rows : 0, depth, words};
    const GemmOperand b{element(b_, at, column), b_.stride(1), b_.stride(0), pack_b ? columns : 0, depth, words};
    constexpr int64_t kShares = 256;             // each is 1/256 of a and of b, so threads get equal work
    constexpr int64_t kWorthAThread = 16 << 10;  // minimum number of elements to pack per thread
    const int64_t of_a = ceil_div(a.count, kernels_.rows), of_b = ceil_div(b.count, kernels_.columns);
    if (of_a + of_b > 0) {
      parallel_for(
          0, kShares, ceil_div(kShares * kWorthAThread, (a.count + b.count) * depth), [&](int64_t first, int64_t last) {
            kernels_.pack(a, false, a_panels, of_a * first / kShares, of_a * last / kShares);
            kernels_.pack(b, true, b_panels, of_b * first / kShares, of_b * last / kShares);
          });
    }
    const GemmPlace result{element(c_, row, column), c_.stride(0), is_bf16_};
    const GemmPlace sums =
        sums_.defined() ? GemmPlace{sums_.mutable_data_ptr<float>(), sums_.stride(0), false} : result;
    const GemmCall call{
        .a = a_panels,
        .b = b_panels,
        .rows = rows,
        .columns = columns,
        .depth = words,
        .from = at > 0 ? sums : (add_ ? result : GemmPlace{}),
        .to = at + depth < a_.size(1) ? sums : result};
    const int64_t units = ceil_div(rows, kernels_.unit_rows) * ceil_div(columns, kernels_.columns);
    constexpr int64_t kMultiplications = 1 << 20;  // minimum number of multiplications per thread
    const int64_t grain = ceil_div(kMultiplications, std::min(rows, kernels_.unit_rows) * kernels_.columns * depth);
    parallel_for(0, units, grain, [&](int64_t first, int64_t last) { kernels_.multiply(call, first, last); });
  }

  const Gemm& kernels_;
  const at::Tensor& a_;
  const at::Tensor& b_;
  const at::Tensor& c_;
  bool add_;
  bool is_bf16_;
  int64_t rows_, columns_, depth_;  // of a block, in elements
  int64_t a_words_ = 0;             // of a block
  int64_t b_at_ = 0;                // where the panels of b begin
  bool keeps_a_ = false;
  at::Tensor panels_;  // packed a, then packed b
  at::Tensor sums_;    // float32 partial sums of a block, if k is split and c is bfloat16
};

void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, bool add) {
  TORCH_CHECK(
      a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) && c.dim() == 2 && c.size(0) == a.size(0) &&
          c.size(1) == b.size(1),
      "lehr::mm: shapes do not match");
  TORCH_CHECK(
      gemm_takes(a, b) && gemm_fills(c, a),
      "lehr::mm: takes float32 or bfloat16 with contiguous rows or columns (see lehr/ops/matmul/gemm.h)");
  Product product(a, b, c, add);
  if (!a.is_meta()) {
    product.run();
  }
}

at::Tensor mm(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor c = at::empty({a.size(0), b.size(1)}, a.options());
  multiply(a, b, c, false);
  return c;
}

void mm_(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool add) {
  multiply(a, b, c, add);
}

TORCH_LIBRARY(lehr, library) {
  library.def("mm(Tensor a, Tensor b) -> Tensor");
  library.def("mm_(Tensor(a!) c, Tensor a, Tensor b, bool add) -> ()");
}
TORCH_LIBRARY_IMPL(lehr, CPU, library) {
  library.impl("mm", mm);
  library.impl("mm_", mm_);
}
TORCH_LIBRARY_IMPL(lehr, Meta, library) {
  library.impl("mm", mm);
  library.impl("mm_", mm_);
}
// Not differentiable by itself: operators call it inside their own autograd functions.
TORCH_LIBRARY_IMPL(lehr, Autograd, library) {
  library.impl("mm", torch::CppFunction::makeFallthrough());
  library.impl("mm_", torch::CppFunction::makeFallthrough());
}

bool is_packable(const at::Tensor& x) {
  return x.dim() == 2 && (x.is_cpu() || runs_on_meta(x)) && (x.stride(0) == 1 || x.stride(1) == 1);
}
}  // namespace

bool gemm_takes(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && kernels_for(a.scalar_type()) != nullptr && is_packable(a) &&
         is_packable(b) && a.numel() > 0 && b.numel() > 0;
}

bool gemm_fills(const at::Tensor& c, const at::Tensor& a) {
  return c.scalar_type() == a.scalar_type() && (c.stride(1) == 1 || c.size(1) == 1) &&
         (c.stride(0) >= c.size(1) || c.size(0) == 1);
}

at::Tensor gemm(const at::Tensor& a, const at::Tensor& b) {
  static const auto call = c10::Dispatcher::singleton().findSchemaOrThrow("lehr::mm", "").typed<decltype(mm)>();
  return call.call(a, b);
}

void gemm_(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool add) {
  static const auto call = c10::Dispatcher::singleton().findSchemaOrThrow("lehr::mm_", "").typed<decltype(mm_)>();
  call.call(c, a, b, add);
  if (!c.is_inference()) {
    c.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace lehr::ops
