// Embedding lookup. The lookup is ATen's. On the CPU the gradient of the table is computed here: all threads write it
// once.
#include "lehr/ops/embedding/embedding.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <numeric>

#include "lehr/base/autograd_function.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/meter/operator_watch.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/cpu.h"
#include "lehr/ops/embedding/kernels.h"

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The positions at which each row of the table was looked up: row rows[i] at places[first[i]], ...,
// places[first[i + 1] - 1], in ascending order.
struct Looks {
  std::vector<int64_t> rows;  // ascending
  std::vector<size_t> first;
  std::vector<int64_t> places;
};

Looks looks_of(const at::Tensor& ids) {
  const at::Tensor flat = ids.reshape({-1}).to(at::kLong);
  const int64_t* const row_at = flat.const_data_ptr<int64_t>();
  Looks looks;
  looks.places.resize(static_cast<size_t>(flat.numel()));
  std::iota(looks.places.begin(), looks.places.end(), 0);
  std::stable_sort(
      looks.places.begin(), looks.places.end(), [&](int64_t a, int64_t b) { return row_at[a] < row_at[b]; });
  for (size_t i = 0; i < looks.places.size(); ++i) {
    if (const int64_t row = row_at[looks.places[i]]; looks.rows.empty() || looks.rows.back() != row) {
      looks.rows.push_back(row);
      looks.first.push_back(i);
    }
  }
  looks.first.push_back(looks.places.size());
  return looks;
}

// Writes zeros. For a table larger than the caches it uses non-temporal stores, so memory is not read before it is
// written.
void fill_zeros(void* p, size_t bytes, bool past_caches) {
#ifdef __SSE2__
  if (past_caches) {
    auto* first = static_cast<char*>(p);
    const size_t head = std::min(bytes, -reinterpret_cast<uintptr_t>(p) % sizeof(__m128i));
    std::memset(first, 0, head);
    first += head;
    bytes -= head;
    for (; bytes >= sizeof(__m128i); first += sizeof(__m128i), bytes -= sizeof(__m128i)) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(first), _mm_setzero_si128());
    }
    _mm_sfence();
    p = first;
  }
#endif
  std::memset(p, 0, bytes);
}

// Computes rows [first, last) of the gradient.
template <class T>
void fill_rows(
    const EmbeddingKernels<T>& kernels,
    const T* dy,
    const Looks& looks,
    int64_t size,
    T* dtable,
    int64_t first,
    int64_t last,
    bool past_caches) {
  const auto zeros = [&](int64_t from, int64_t to) {
    fill_zeros(dtable + from * size, static_cast<size_t>((to - from) * size) * sizeof(T), past_caches);
  };
  auto row = std::lower_bound(looks.rows.begin(), looks.rows.end(), first);
  for (; row != looks.rows.end() && *row < last; ++row) {
    zeros(first, *row);
    const size_t* const range = &looks.first[static_cast<size_t>(row - looks.rows.begin())];
    const auto count = static_cast<int64_t>(range[1] - range[0]);
    kernels.sum_rows(dy, &looks.places[range[0]], count, size, dtable + *row * size);
    first = *row + 1;
  }
  zeros(first, last);
}

at::Tensor gradient_of_table(const at::Tensor& dy, const at::Tensor& ids, int64_t rows) {
  const int64_t size = dy.size(-1);
  const at::Tensor dtable = at::empty({rows, size}, dy.options());
  report_pointwise({ids, dy, dtable});
  const bool past_caches = dtable.nbytes() >= size_t{16} << 20;
  const Looks looks = dy.is_meta() ? Looks() : looks_of(ids);
  cpu::run<EmbeddingKernels>(dy, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    cpu::run_kernel(dy, 0, rows, cpu::grain_for(size), [&](int64_t first, int64_t last) {
      fill_rows<T>(kernels, cpu::elements<T>(dy), looks, size, cpu::elements<T>(dtable), first, last, past_caches);
    });
  });
  return dtable;
}

struct EmbeddingFunction : AutogradFunction<EmbeddingFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& table, const at::Tensor& ids) {
    ctx->save_for_backward({ids});
    ctx->saved_data["rows"] = table.size(0);
    return at::embedding(table, ids);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::embedding, "lehr::embedding_backward");
    refuse_double_backward("embedding");
    const at::Tensor ids = ctx->get_saved_variables()[0];
    return {gradient_of_table(grads[0].contiguous(), ids, ctx->saved_data["rows"].toInt()), at::Tensor()};
  }
};
}  // namespace

at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids) {
  if (operator_watch() != nullptr) {
    return at::embedding(table, ids);  // the watch handles ATen's operator
  }
  const OperatorScope scope(OperatorKind::embedding, "lehr::embedding");
  require(
      table.dim() == 2 && table.is_floating_point() &&
          (ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt),
      "embedding: expected a floating table (V, H) and int32 or int64 ids, found {} {} and {}",
      c10::toString(table.scalar_type()),
      shape_of(table),
      c10::toString(ids.scalar_type()));
  return will_differentiate(table) && cpu::supports(table) ? EmbeddingFunction::apply(table, ids)
                                                           : at::embedding(table, ids);
}

}  // namespace lehr::ops
