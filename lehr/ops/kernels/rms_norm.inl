// Normalization of one row at a time; a row stays in the first cache between its two passes.

template <class T>
LEHR_INLINE Wide<T> inverse_rms_of(const T* x, int64_t size, double eps) {
  constexpr int64_t lanes = kLanes<T>;
  Vec<T> sum0{}, sum1{}, sum2{}, sum3{};
  int64_t i = 0;
  for (; i + 4 * lanes <= size; i += 4 * lanes) {
    const Vec<T> a = load(x + i, All{}), b = load(x + i + lanes, All{});
    const Vec<T> c = load(x + i + 2 * lanes, All{}), d = load(x + i + 3 * lanes, All{});
    sum0 += a * a;
    sum1 += b * b;
    sum2 += c * c;
    sum3 += d * d;
  }
  for_each_vector<T>(
      size - i, [&](int64_t j, auto count) __attribute__((always_inline)) {
        const Vec<T> a = load(x + i + j, count);
        sum0 += a * a;
      });
  const Wide<T> sum = horizontal_sum<Wide<T>>((sum0 + sum1) + (sum2 + sum3));
  const Wide<T> mean_square = sum / static_cast<Wide<T>>(size);
  return static_cast<Wide<T>>(1) / static_cast<Wide<T>>(__builtin_sqrt(mean_square + static_cast<Wide<T>>(eps)));
}

template <class T>
void rms_norm_forward(const RmsNormForward<T>& call, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const T* x = call.x + row * call.size;
    T* y = call.y + row * call.size;
    const Wide<T> inverse_rms = inverse_rms_of(x, call.size, call.eps);
    if (call.inverse_rms != nullptr) {
      call.inverse_rms[row] = inverse_rms;
    }
    for_each_vector<T>(
        call.size, [&](int64_t i, auto count) __attribute__((always_inline)) {
          const Vec<T> normalized = rounded_to(x, load(x + i, count) * inverse_rms);
          store(y + i, normalized * load(call.weight + i, count), count);
        });
  }
}

// With h = x / rms and g = dy * weight: dx = (g - h mean(g h)) / rms and dweight = sum over rows of dy h. The rounding
// of h to T counts as the identity, as autograd's cast does; dweight takes the rounded h, which dy met going forward.
// dy is T, or Wide<T> when it comes from a fused operator.
template <class T, class D>
LEHR_INLINE void rms_norm_backward_row(
    const D* dy, const T* x, const T* weight, Wide<T> inverse_rms, T* dx, Wide<T>* dweight, int64_t size) {
  Vec<T> sum{};
  const auto visit = [&](auto with_dweight) __attribute__((always_inline)) {
    for_each_vector<T>(
        size, [&](int64_t i, auto count) __attribute__((always_inline)) {
          const Vec<T> normalized = load(x + i, count) * inverse_rms;
          const Vec<T> incoming = load(dy + i, count);
          sum += incoming * load(weight + i, count) * normalized;
          if constexpr (decltype(with_dweight)::value) {
            store(dweight + i, load(dweight + i, count) + incoming * rounded_to(x, normalized), count);
          }
        });
  };
  if (dweight != nullptr) {
    visit(Yes{});
  } else {
    visit(No{});
  }
  if (dx == nullptr) {
    return;
  }
  const Wide<T> mean = horizontal_sum<Wide<T>>(sum) / static_cast<Wide<T>>(size);
  for_each_vector<T>(
      size, [&](int64_t i, auto count) __attribute__((always_inline)) {
        const Vec<T> normalized = load(x + i, count) * inverse_rms;
        const Vec<T> g = load(dy + i, count) * load(weight + i, count);
        store(dx + i, (g - normalized * mean) * inverse_rms, count);
      });
}

template <class T>
void rms_norm_backward(const RmsNormBackward<T>& call, Wide<T>* dweight, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const int64_t at = row * call.size;
    rms_norm_backward_row(
        call.dy + at,
        call.x + at,
        call.weight,
        call.inverse_rms[row],
        call.dx ? call.dx + at : nullptr,
        dweight,
        call.size);
  }
}
