#include "lehr/ops/recorded_work.h"

#include "lehr/ops/cuda.h"

namespace lehr::ops {

namespace {
class CudaGraph final : public RecordedWork {
 public:
  CudaGraph(const cuda::GraphFunctions& functions, void* graph, std::vector<at::Tensor> made)
      : RecordedWork(std::move(made)), functions_(functions), graph_(graph) {}
  ~CudaGraph() override { functions_.destroy(graph_); }
  void replay() override { functions_.replay(graph_); }

 private:
  const cuda::GraphFunctions& functions_;
  void* graph_;
};
}  // namespace

bool records_cuda_graphs() {
  return cuda::graph_functions() != nullptr;
}

std::unique_ptr<RecordedWork> record_cuda_graph(const Work& work) {
  const cuda::GraphFunctions* const functions = cuda::graph_functions();
  require(functions != nullptr, "record_cuda_graph: liblehr_cuda.so was not opened");
  struct Call {
    const Work& work;
    std::vector<at::Tensor> made;
  } call{work, {}};
  void* const graph = functions->record(
      [](void* of) {
        auto& recorded = *static_cast<Call*>(of);
        recorded.made = recorded.work();
      },
      &call);
  return std::make_unique<CudaGraph>(*functions, graph, std::move(call.made));
}

}  // namespace lehr::ops
