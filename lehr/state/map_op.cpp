#include "lehr/state/map_op.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "lehr/base/error.h"

namespace lehr::state {

namespace {
template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

// Converts a possibly negative dimension to one from 0, for a tensor with `rank` dimensions.
size_t from_zero(int64_t dim, int64_t rank) {
  return static_cast<size_t>(dim < 0 ? dim + rank : dim);
}

std::string range_text(const Range& range) {
  return fmt::format("{}:{}", range.begin, range.end);
}

template <class T>
std::vector<T> without(std::vector<T> list, size_t at) {
  list.erase(list.begin() + static_cast<long>(at));
  return list;
}

template <class T>
std::vector<T> with(std::vector<T> list, size_t at, const T& value) {
  list.insert(list.begin() + static_cast<long>(at), value);
  return list;
}

// Infers the results of one operation; a struct so that the checks share their context.
struct Inference {
  const MapOp& op;
  const std::vector<const TensorKnown*>& inputs;
  size_t num_outputs;
  const std::function<std::string(size_t)>& name_of;

  template <class... Args>
  void check(bool condition, size_t input, fmt::format_string<Args...> format, Args&&... args) const {
    if (!condition) {
      fail(
          "{} ({} [{}]): {}: {}",
          name_of(input),
          dtype_name(inputs[input]->spec.dtype),
          fmt::join(inputs[input]->spec.shape, ", "),
          describe(op),
          fmt::format(format, std::forward<Args>(args)...));
    }
  }
  // Returns the dimension from 0; `more` is 1 if the result has one dimension more than the input.
  size_t dim_of(int64_t dim, int64_t more = 0) const {
    const auto rank = static_cast<int64_t>(inputs[0]->spec.shape.size()) + more;
    check(dim >= -rank && dim < rank, 0, "expected a dimension from {} to {}", -rank, rank - 1);
    return from_zero(dim, rank);
  }
  bool is_whole(size_t input) const { return inputs[input]->known == whole_box(inputs[input]->spec.shape); }
  // Operations on several tensors do not support partially known inputs.
  void check_whole() const {
    for (size_t i = 0; i < inputs.size(); ++i) {
      check(is_whole(i), i, "is known only partially ({}), so it cannot be joined", describe(inputs[i]->known));
    }
  }
  void check_alike(std::optional<size_t> but_dim) const {
    for (size_t i = 1; i < inputs.size(); ++i) {
      const TensorSpec& spec = inputs[i]->spec;
      const TensorSpec& first = inputs[0]->spec;
      bool alike = spec.shape.size() == first.shape.size() && spec.dtype == first.dtype;
      for (size_t d = 0; alike && d < spec.shape.size(); ++d) {
        alike = d == but_dim || spec.shape[d] == first.shape[d];
      }
      check(alike, i, "does not match {} ({} [{}])", name_of(0), dtype_name(first.dtype), fmt::join(first.shape, ", "));
    }
  }
  std::vector<TensorKnown> wholes(size_t count, const TensorSpec& spec) const {
    return std::vector<TensorKnown>(count, {spec, whole_box(spec.shape)});
  }

  std::vector<TensorKnown> operator()(const Stack& o) const {
    check_whole();
    check_alike(std::nullopt);
    const size_t dim = dim_of(o.dim, 1);
    const TensorSpec& spec = inputs[0]->spec;
    return wholes(1, {with(spec.shape, dim, static_cast<int64_t>(inputs.size())), spec.dtype});
  }
  std::vector<TensorKnown> operator()(const Unstack& o) const {
    check_whole();
    const size_t dim = dim_of(o.dim);
    const TensorSpec& spec = inputs[0]->spec;
    check(spec.shape[dim] == static_cast<int64_t>(num_outputs), 0, "expected {} of them", num_outputs);
    return wholes(num_outputs, {without(spec.shape, dim), spec.dtype});
  }
  std::vector<TensorKnown> operator()(const Concatenate& o) const {
    check_whole();
    const size_t dim = dim_of(o.dim);
    check_alike(dim);
    for (size_t i = 0; i < inputs.size(); ++i) {
      check(inputs[i]->spec.shape[dim] == o.sizes[i], i, "expected size {} in dimension {}", o.sizes[i], dim);
    }
    TensorSpec spec = inputs[0]->spec;
    spec.shape[dim] = std::accumulate(o.sizes.begin(), o.sizes.end(), int64_t{0});
    return wholes(1, spec);
  }
  std::vector<TensorKnown> operator()(const Split& o) const {
    check_whole();
    const size_t dim = dim_of(o.dim);
    const int64_t sum = std::accumulate(o.sizes.begin(), o.sizes.end(), int64_t{0});
    TensorSpec spec = inputs[0]->spec;
    check(spec.shape[dim] == sum, 0, "expected size {} in dimension {}", sum, dim);
    std::vector<TensorKnown> results;
    for (const int64_t size : o.sizes) {
      spec.shape[dim] = size;
      results.push_back({spec, whole_box(spec.shape)});
    }
    return results;
  }
  std::vector<TensorKnown> operator()(const Transpose& o) const {
    TensorKnown result = *inputs[0];
    const size_t a = dim_of(o.dim0);
    const size_t b = dim_of(o.dim1);
    std::swap(result.spec.shape[a], result.spec.shape[b]);
    std::swap(result.known[a], result.known[b]);
    return {result};
  }
  std::vector<TensorKnown> operator()(const Squeeze& o) const {
    const TensorKnown& in = *inputs[0];
    const size_t dim = dim_of(o.dim);
    check(in.spec.shape[dim] == 1, 0, "expected size 1 in dimension {}", dim);
    return {{{without(in.spec.shape, dim), in.spec.dtype}, without(in.known, dim)}};
  }
  std::vector<TensorKnown> operator()(const Unsqueeze& o) const {
    const TensorKnown& in = *inputs[0];
    const size_t dim = dim_of(o.dim, 1);
    return {{{with(in.spec.shape, dim, int64_t{1}), in.spec.dtype}, with(in.known, dim, Range{0, 1})}};
  }
  std::vector<TensorKnown> operator()(const Slice& o) const {
    check_whole();
    const size_t dim = dim_of(o.dim);
    TensorSpec spec = inputs[0]->spec;
    check(spec.shape[dim] == o.size, 0, "expected size {} in dimension {}", o.size, dim);
    spec.shape[dim] = o.range.size();
    return wholes(1, spec);
  }
  std::vector<TensorKnown> operator()(const Place& o) const {
    TensorKnown result = *inputs[0];
    const size_t dim = dim_of(o.dim);
    check(result.spec.shape[dim] == o.range.size(), 0, "expected size {} in dimension {}", o.range.size(), dim);
    result.spec.shape[dim] = o.size;
    result.known[dim] = {result.known[dim].begin + o.range.begin, result.known[dim].end + o.range.begin};
    return {result};
  }
  std::vector<TensorKnown> operator()(const Tie&) const { return std::vector<TensorKnown>(num_outputs, *inputs[0]); }
  std::vector<TensorKnown> operator()(const Untie&) const {
    check_alike(std::nullopt);
    return {*inputs[0]};
  }
};
}  // namespace

std::string describe(const MapOp& op) {
  return std::visit(
      Overloaded{
          [](const Stack& o) { return fmt::format("stack {}", o.dim); },
          [](const Unstack& o) { return fmt::format("unstack {}", o.dim); },
          [](const Concatenate& o) { return fmt::format("concatenate {} [{}]", o.dim, fmt::join(o.sizes, ", ")); },
          [](const Split& o) { return fmt::format("split {} [{}]", o.dim, fmt::join(o.sizes, ", ")); },
          [](const Transpose& o) { return fmt::format("transpose {} {}", o.dim0, o.dim1); },
          [](const Squeeze& o) { return fmt::format("squeeze {}", o.dim); },
          [](const Unsqueeze& o) { return fmt::format("unsqueeze {}", o.dim); },
          [](const Slice& o) { return fmt::format("slice {} [{} of {}]", o.dim, range_text(o.range), o.size); },
          [](const Place& o) { return fmt::format("place {} [{} of {}]", o.dim, range_text(o.range), o.size); },
          [](const Tie&) { return std::string("tie"); },
          [](const Untie&) { return std::string("untie"); }},
      op);
}

MapOp inverse(const MapOp& op) {
  return std::visit(
      Overloaded{
          [](const Stack& o) -> MapOp { return Unstack{o.dim}; },
          [](const Unstack& o) -> MapOp { return Stack{o.dim}; },
          [](const Concatenate& o) -> MapOp {
            return Split{o.dim, o.sizes};
          },
          [](const Split& o) -> MapOp {
            return Concatenate{o.dim, o.sizes};
          },
          [](const Transpose& o) -> MapOp { return o; },
          [](const Squeeze& o) -> MapOp { return Unsqueeze{o.dim}; },
          [](const Unsqueeze& o) -> MapOp { return Squeeze{o.dim}; },
          [](const Slice& o) -> MapOp {
            return Place{o.dim, o.range, o.size};
          },
          [](const Place& o) -> MapOp {
            return Slice{o.dim, o.range, o.size};
          },
          [](const Tie&) -> MapOp { return Untie{}; },
          [](const Untie&) -> MapOp { return Tie{}; }},
      op);
}

std::vector<TensorKnown> infer(
    const MapOp& op,
    const std::vector<const TensorKnown*>& inputs,
    size_t num_outputs,
    const std::function<std::string(size_t)>& name_of) {
  return std::visit(Inference{op, inputs, num_outputs, name_of}, op);
}

}  // namespace lehr::state
