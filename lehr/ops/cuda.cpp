#include "lehr/ops/cuda.h"

#include <dlfcn.h>

#include <atomic>
#include <string_view>

#include "lehr/base/call_context.h"
#include "lehr/base/file.h"
#include "lehr/base/own_folder.h"

namespace lehr::ops::cuda {

namespace {
std::atomic<const Table*> opened = nullptr;                  // set by open_kernels, valid until the process ends
std::atomic<const GraphFunctions*> opened_graphs = nullptr;  // likewise

// The kernels that the program uses, in the order of their slots.
struct Wanted {
  KernelId id;
  size_t size;
};
std::vector<Wanted>& wanted_kernels() {
  static std::vector<Wanted> all;
  return all;
}

const void* find_kernels(const Entry* entries, const Wanted& wanted) {
  for (const Entry* entry = entries; entry != nullptr; entry = entry->next) {
    const KernelId& id = entry->id;
    if (std::string_view(id.name) == wanted.id.name && id.element == wanted.id.element) {
      require(
          id.version == wanted.id.version && id.layout == wanted.id.layout &&
              entry->size == static_cast<int64_t>(wanted.size),
          "liblehr_cuda.so: found {} of version {}.{}.{}, but the program expects {}.{}.{}; build both from the same "
          "sources",
          id.name,
          id.version,
          id.layout,
          entry->size,
          wanted.id.version,
          wanted.id.layout,
          wanted.size);
      return entry->kernels;
    }
  }
  fail("liblehr_cuda.so: there are no kernels of {}; build the module together with the program", wanted.id.name);
}

const ContextSlot<const TableScope*> kScope("table of CUDA kernels");
std::atomic<int64_t> uses = 0;

const Table* table_for(at::DeviceType device) {
  const TableScope* const scope = kScope.get();
  if (scope != nullptr && scope->device() == device) {
    return &scope->table();
  }
  return device == at::kCUDA ? opened.load(std::memory_order_acquire) : nullptr;
}

std::string open_module(const std::string& file) {
  void* const module = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) {
    const char* const error = dlerror();
    return fmt::format("{} cannot be opened: {}", file, error != nullptr ? error : "no reason given");
  }
  const Entry* const entries = function_of<EntriesFunction>(module, file, kEntriesFunction)();
  static const Table table(entries);
  if (const Status problem = function_of<ProblemFunction>(module, file, kProblemFunction)()) {
    return fmt::format("the kernels of {} do not run here: {}", file, problem);
  }
  opened_graphs.store(
      static_cast<const GraphFunctions*>(find_kernels(entries, {GraphFunctions::kId, sizeof(GraphFunctions)})),
      std::memory_order_release);
  opened.store(&table, std::memory_order_release);
  return "";
}

}  // namespace

size_t add_slot(const KernelId& id, size_t size) {
  wanted_kernels().push_back({id, size});
  return wanted_kernels().size() - 1;
}

Table::Table(const Entry* entries) {
  for (const Wanted& wanted : wanted_kernels()) {
    slots_.push_back(find_kernels(entries, wanted));
  }
}

std::string open_kernels() {
  if (opened.load() != nullptr) {
    return "";
  }
  if (const auto file = own_file("liblehr_cuda.so"); !file.empty()) {
    return open_module(file);
  }
  if (const auto why = own_file("liblehr_cuda.txt"); !why.empty()) {
    return "there is no liblehr_cuda.so: when the program was built, " + read_file(why);
  }
  return "liblehr_cuda.so is not beside the program (" + own_folder().string() + ")";
}

const GraphFunctions* graph_functions() {
  return opened_graphs.load(std::memory_order_acquire);
}

TableScope::TableScope(const Table& table, at::DeviceType device)
    : table_(table), device_(device), scope_(kScope, this) {}

bool on_gpu(const at::Tensor& tensor) {
  const TableScope* const scope = kScope.get();
  return tensor.is_cuda() || (scope != nullptr && scope->device() == tensor.device().type());
}

bool has_kernels(const at::Tensor& tensor) {
  return table_for(tensor.device().type()) != nullptr;
}

bool supports(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return (type == at::kFloat || type == at::kBFloat16) && table_for(tensor.device().type()) != nullptr;
}

const Table& table() {
  uses.fetch_add(1, std::memory_order_relaxed);
  const TableScope* const scope = kScope.get();
  return scope != nullptr ? scope->table() : *opened.load(std::memory_order_acquire);
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
