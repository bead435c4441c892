// Log-likelihood and its gradient for one row of logits: one reading pass, and one writing pass when the gradient is
// wanted. The row (at most a few hundred KB) stays in the second cache between them.

template <class T>
Wide<T> cross_entropy_row(T* logits, int64_t size, int64_t label, const Wide<T>* gradient_scale) {
  using A = Wide<T>;
  constexpr int64_t block = 512;  // read twice, the second time from the first cache
  const A lowest = -static_cast<A>(__builtin_inf());
  A max = lowest;
  double sum = 0;  // of exp(logit - max)
  for (int64_t start = 0; start < size; start += block) {
    const T* x = logits + start;
    const int64_t count_here = size - start < block ? size - start : block;
    Vec<T> block_max = splat(lowest);
    for_each_vector<T>(
        count_here, [&](int64_t i, auto count) __attribute__((always_inline)) {
          block_max = maximum(block_max, load_or(x + i, lowest, count));
        });
    const A here = horizontal_max<A>(block_max);
    if (here == lowest && max == lowest) {
      continue;  // -inf - -inf would be NaN; such logits add nothing
    }
    if (here > max) {
      sum *= __builtin_exp(static_cast<double>(max) - static_cast<double>(here));
      max = here;
    }
    Vec<T> block_sum{};
    for_each_vector<T>(
        count_here, [&](int64_t i, auto count) __attribute__((always_inline)) {
          block_sum += exponential(load_or(x + i, lowest, count) - max);
        });
    sum += static_cast<double>(horizontal_sum<A>(block_sum));
  }
  const double log_likelihood =
      static_cast<double>(load_one(logits + label)) - static_cast<double>(max) - __builtin_log(sum);
  if (gradient_scale != nullptr) {
    const A by = static_cast<A>(static_cast<double>(*gradient_scale) / sum);
    const A at_label = static_cast<A>(*gradient_scale * (__builtin_exp(log_likelihood) - 1));
    for_each_vector<T>(
        size, [&](int64_t i, auto count) __attribute__((always_inline)) {
          store(logits + i, exponential(load(logits + i, count) - max) * by, count);
        });
    store_one(logits + label, at_label);
  }
  return static_cast<A>(-log_likelihood);
}
