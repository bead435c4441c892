#include "lehr/ops/cuda.h"

#include <dlfcn.h>

#include <atomic>
#include <filesystem>

#include "lehr/base/file.h"
#include "lehr/base/own_folder.h"

namespace lehr::ops::cuda {

namespace {
std::atomic<const Table*> opened = nullptr;                  // set by open_kernels, valid until the process ends
std::atomic<const GraphFunctions*> opened_graphs = nullptr;  // likewise
thread_local TableScope::Use in_scope = {nullptr, at::kCPU};
thread_local int64_t uses = 0;

const Table* table_for(at::DeviceType device) {
  if (in_scope.table != nullptr && in_scope.device == device) {
    return in_scope.table;
  }
  return device == at::kCUDA ? opened.load(std::memory_order_acquire) : nullptr;
}

template <class Function>
Function* function_of(void* module, const std::string& file, const char* name) {
  void* const function = dlsym(module, name);
  require(function != nullptr, "{}: there is no function {}; build the module together with the program", file, name);
  return reinterpret_cast<Function*>(function);
}

std::string open_module(const std::string& file) {
  void* const module = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) {
    const char* const error = dlerror();
    return fmt::format("{} cannot be opened: {}", file, error != nullptr ? error : "no reason given");
  }
  const Table& table = checked_table(*function_of<TableFunction>(module, file, kTableFunction)());
  if (const Status problem = function_of<ProblemFunction>(module, file, kProblemFunction)()) {
    return fmt::format("the kernels of {} do not run here: {}", file, problem);
  }
  opened_graphs.store(function_of<GraphsFunction>(module, file, kGraphsFunction)(), std::memory_order_release);
  opened.store(&table, std::memory_order_release);
  return "";
}

template <class Body>
bool with_type(const at::Tensor& tensor, const Body& body) {
  return supports(tensor) && (tensor.scalar_type() == at::kFloat ? body(float{}) : body(Bf16{}));
}
}  // namespace

const Table& checked_table(const Table& table) {
  require(
      table.version == kTableVersion && table.layout == kTableLayout,
      "liblehr_cuda.so: found kernels of version {}.{}, but the program expects {}.{}; build both from the same "
      "sources",
      table.version,
      table.layout,
      kTableVersion,
      kTableLayout);
  return table;
}

std::string open_kernels() {
  if (opened.load() != nullptr) {
    return "";
  }
  // The module is in the program's folder, or one folder above (test programs, the Python package).
  const auto folder = own_folder();
  for (const auto& place : {folder, folder.parent_path()}) {
    const std::string file = place / "liblehr_cuda.so";
    if (std::filesystem::exists(file)) {
      return open_module(file);
    }
  }
  for (const auto& place : {folder, folder.parent_path()}) {
    if (const auto why = place / "liblehr_cuda.txt"; std::filesystem::exists(why)) {
      return "there is no liblehr_cuda.so: when the program was built, " + read_file(why);
    }
  }
  return "liblehr_cuda.so is not beside the program (" + folder.string() + ")";
}

const GraphFunctions* graph_functions() {
  return opened_graphs.load(std::memory_order_acquire);
}

TableScope::TableScope(const Table& table, at::DeviceType device)
    : before_(std::exchange(in_scope, {&checked_table(table), device})) {}

TableScope::~TableScope() {
  in_scope = before_;
}

bool on_gpu(const at::Tensor& tensor) {
  return tensor.is_cuda() || (in_scope.table != nullptr && in_scope.device == tensor.device().type());
}

bool has_kernels(const at::Tensor& tensor) {
  return table_for(tensor.device().type()) != nullptr;
}

bool supports(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return (type == at::kFloat || type == at::kBFloat16) && table_for(tensor.device().type()) != nullptr;
}

bool supports_rows(const at::Tensor& tensor) {
  return with_type(tensor, [&](auto element) { return fits_row<decltype(element)>(tensor.size(-1)); });
}

bool supports_rotation(const at::Tensor& tensor, int64_t rotated, bool normalized) {
  const int64_t size = tensor.size(-1);
  return (!normalized || size <= kMostInHead) &&
         with_type(tensor, [&](auto element) { return fits_rotation<decltype(element)>(size, rotated); });
}

const Table& table() {
  ++uses;
  const Table* const scoped = in_scope.table;
  return scoped != nullptr ? *scoped : *opened.load(std::memory_order_acquire);
}

int64_t table_uses() {
  return uses;
}

void check_devices(const char* name, std::initializer_list<at::Tensor> tensors) {
  const at::Tensor& first = *tensors.begin();
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.device() != first.device()) {
      fail("{}: expected all tensors on {}, found one on {}", name, first.device().str(), tensor.device().str());
    }
  }
}

at::Tensor aligned_for_kernels(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 == 0 ? tensor : tensor.clone();
}

void check_status(const char* name, Status status) {
  if (status != nullptr) {
    fail_runtime("{}: its CUDA kernel could not be launched: {}", name, status);
  }
}

}  // namespace lehr::ops::cuda
