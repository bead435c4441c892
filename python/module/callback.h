// Python functions that C++ calls, as C function pointers of ctypes.
//
// TorchScript's custom classes take no Python functions. A ctypes callback is an ordinary C function that takes the GIL
// by itself, so the module needs neither Python's headers nor libtorch_python. Arguments other than a number, and all
// results, go through an Exchange.
#pragma once

#include <cstdint>

#include "lehr/base/torch.h"

namespace lehr::python {

/// A function of Python; empty if its address is 0.
class Callback {
 public:
  explicit Callback(int64_t address = 0) : address_(address) {}
  explicit operator bool() const { return address_ != 0; }
  /// Calls it with `argument`. Throws a runtime error if it raised an exception, which the Python side then raises in
  /// place of this error.
  void operator()(int64_t argument) const;

 private:
  int64_t address_;  // of a function int64_t(int64_t), whose result is not 0 after an exception
};

using NamedTensors = c10::Dict<std::string, at::Tensor>;

/// Tensors on their way between C++ and a Python function.
class Exchange : public torch::CustomClassHolder {
 public:
  void put(const NamedTensors& tensors) { tensors_ = tensors; }
  /// Returns the tensors of the last put(), and forgets them.
  NamedTensors take() { return std::exchange(tensors_, NamedTensors()); }

 private:
  NamedTensors tensors_;
};

}  // namespace lehr::python
