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

GraphRecorder::GraphRecorder(std::shared_ptr<DeviceQueues> queues, const cuda::GraphFunctions& functions)
    : functions_(functions), stream_(std::move(queues)) {}

// Each warm-up waits for the current stream first. Otherwise it could overwrite memory that an earlier warm-up freed
// while the current stream still reads it.
void GraphRecorder::warm_up(const std::function<void()>& work) {
  stream_.follow();
  stream_.run(work);
  stream_.join();
}

std::unique_ptr<RecordedWork> GraphRecorder::record(const Work& work) {
  std::unique_ptr<RecordedWork> recorded;
  stream_.follow();
  stream_.run([&] {
    void* const graph = functions_.begin();
    std::vector<at::Tensor> made;
    try {
      made = work();
      functions_.end(graph);
    } catch (...) {
      made.clear();  // freed before the graph's memory pool
      functions_.abandon(graph);
      throw;
    }
    recorded = std::make_unique<CudaGraph>(functions_, graph, std::move(made));
  });
  return recorded;
}

bool records_cuda_graphs() {
  return cuda::graph_functions() != nullptr;
}

Recorder make_cuda_recorder(at::Device device) {
  const cuda::GraphFunctions* const functions = cuda::graph_functions();
  require(functions != nullptr, "make_cuda_recorder: liblehr_cuda.so was not opened");
  return std::make_shared<GraphRecorder>(device_queues(device), *functions);
}

}  // namespace lehr::ops
