// Elementwise kernels: SwiGLU's gate, sum of squares, scaling.

template <class T>
void silu_mul_forward(const T* gate, const T* up, T* y, int64_t first, int64_t last) {
  for_each_vector<T>(
      last - first, [&](int64_t j, auto count) __attribute__((always_inline)) {
        const int64_t i = first + j;
        const Vec<T> g = load(gate + i, count);
        store(y + i, g / (exponential(-g) + 1) * load(up + i, count), count);
      });
}

// With s = sigmoid(gate): silu'(gate) = s (1 + gate (1 - s)). dgate or dup may be null.
template <class T>
void silu_mul_backward(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t first, int64_t last) {
  for_each_vector<T>(
      last - first, [&](int64_t j, auto count) __attribute__((always_inline)) {
        const int64_t i = first + j;
        const Vec<T> g = load(gate + i, count);
        const Vec<T> incoming = load(dy + i, count);
        const Vec<T> s = splat(static_cast<Wide<T>>(1)) / (exponential(-g) + 1);
        if (dup != nullptr) {
          store(dup + i, incoming * (g * s), count);
        }
        if (dgate != nullptr) {
          store(dgate + i, incoming * load(up + i, count) * (s * (g * (1 - s) + 1)), count);
        }
      });
}

// Squares of float32 are exact in float64, so the order of the sum matters little. 64 accumulators let the compiler
// vectorize without reordering.
template <class T>
double sum_of_squares(const T* x, int64_t size) {
  double total = 0;
  constexpr int64_t block = 64;
  double lanes[block] = {};
  int64_t i = 0;
  for (; i + block <= size; i += block) {
    for (int64_t j = 0; j < block; ++j) {
      const double value = static_cast<double>(load_one(x + i + j));
      lanes[j] += value * value;
    }
  }
  for (; i < size; ++i) {
    const double value = static_cast<double>(load_one(x + i));
    total += value * value;
  }
  for (int64_t j = 0; j < block; ++j) {
    total += lanes[j];
  }
  return total;
}

template <class T>
void scale(T* x, double factor, int64_t size) {
  const Wide<T> by = static_cast<Wide<T>>(factor);
  for_each_vector<T>(
      size, [&](int64_t i, auto count) __attribute__((always_inline)) {
        store(x + i, load(x + i, count) * by, count);
      });
}
