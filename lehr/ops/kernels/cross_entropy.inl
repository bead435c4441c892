// Log-likelihood and its gradient for one row of logits, which (at most a few hundred KB) stays in the second cache
// between the passes.

template <class T>
Wide<T> cross_entropy_row(T* logits, int64_t size, int64_t label, const Wide<T>* gradient_scale) {
  using A = Wide<T>;
  constexpr int64_t block = 512;  // whose exponentials are summed in A, and the blocks in double
  constexpr bool can_hold_exponentials = sizeof(T) == sizeof(A);
  const A lowest = -static_cast<A>(__builtin_inf());
  const auto at_label = static_cast<double>(load_one(logits + label));
  Vec<T> row_max = splat(lowest);
  for_each_vector<T>(
      size, [&](int64_t i, auto count) __attribute__((always_inline)) {
        row_max = maximum(row_max, load_or(logits + i, lowest, count));
      });
  const A max = horizontal_max<A>(row_max);
  const bool holds_exponentials = can_hold_exponentials && gradient_scale != nullptr;
  double sum = 0;  // of exp(logit - max)
  for (int64_t start = 0; start < size; start += block) {
    T* x = logits + start;
    Vec<T> block_sum{};
    for_each_vector<T>(
        size - start < block ? size - start : block, [&](int64_t i, auto count) __attribute__((always_inline)) {
          const Vec<T> e = exponential(load_or(x + i, lowest, count) - max);
          block_sum += e;
          if (holds_exponentials) {
            store(x + i, e, count);
          }
        });
    sum += static_cast<double>(horizontal_sum<A>(block_sum));
  }
  const double log_likelihood = at_label - static_cast<double>(max) - __builtin_log(sum);
  if (gradient_scale != nullptr) {
    const A by = static_cast<A>(static_cast<double>(*gradient_scale) / sum);
    for_each_vector<T>(
        size, [&](int64_t i, auto count) __attribute__((always_inline)) {
          const Vec<T> x = load(logits + i, count);
          store(logits + i, (holds_exponentials ? x : exponential(x - max)) * by, count);
        });
    store_one(logits + label, static_cast<A>(*gradient_scale * (__builtin_exp(log_likelihood) - 1)));
  }
  return static_cast<A>(-log_likelihood);
}
