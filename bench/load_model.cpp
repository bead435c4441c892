// Times loading a folder's weights into a model's parameters or as tensors that view the file, or one of two lower
// bounds: mapping the file and touching every page, and reading it into one buffer. One measurement per process, so
// that memory is fresh, as for a user; prints one JSON line.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>

#include "bench/bench_model.h"
#include "lehr/base/error.h"
#include "lehr/config/json.h"
#include "lehr/pretrained/weights.h"
#include "lehr/state/weights.h"

namespace {
using namespace lehr;

struct Options {
  std::string model;
  std::string what = "load";
  bool cold = false;
  void fields(FieldVisitor& v) {
    v.required("model", model, "Folder with config.json and model.safetensors.");
    v.optional(
        "what",
        what,
        "load: into a model; view: as tensors over the mapped file; read: into one buffer; touch: map and touch pages.",
        one_of({"load", "view", "read", "touch"}));
    v.optional("cold", cold, "Drop the file from the page cache first.");
  }
};

// An open file and its size.
class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path)
      : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), size_(std::filesystem::file_size(path)) {
    require(descriptor_ >= 0, "{}: cannot be opened", path.string());
  }
  ~OpenFile() { ::close(descriptor_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int get() const { return descriptor_; }
  size_t size() const { return size_; }

 private:
  int descriptor_;
  size_t size_;
};

void drop(const std::filesystem::path& path) {
  const OpenFile file(path);
  ::fsync(file.get());
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
}

// Keeps the compiler from removing the reads.
volatile uint64_t seen = 0;

void touch(const void* bytes, size_t size) {
  uint64_t sum = 0;
  for (size_t i = 0; i < size; i += 4096) {
    sum += static_cast<const unsigned char*>(bytes)[i];
  }
  seen = sum;
}

void map_and_touch(const std::filesystem::path& path) {
  const OpenFile file(path);
  void* const map = ::mmap(nullptr, file.size(), PROT_READ, MAP_SHARED, file.get(), 0);
  require(map != MAP_FAILED, "{}: cannot be mapped", path.string());
  touch(map, file.size());
  ::munmap(map, file.size());
}

void view_tensors(const std::string& folder) {
  const state::WeightReader reader(folder);
  for (const std::string& name : reader.names()) {
    const at::Tensor tensor = reader.tensor(name);
    touch(tensor.const_data_ptr(), tensor.nbytes());
  }
}

void read_into_one_buffer(const std::filesystem::path& path) {
  const OpenFile file(path);
  const at::Tensor buffer = at::empty({static_cast<int64_t>(file.size())}, at::kByte);
  for (size_t at = 0; at < file.size();) {
    const ssize_t got = ::pread(file.get(), buffer.data_ptr<uint8_t>() + at, file.size() - at, static_cast<off_t>(at));
    require(got > 0, "{}: cannot be read", path.string());
    at += static_cast<size_t>(got);
  }
}

void load(const std::string& folder, const descriptor::ModelArgs& args) {
  const auto model = args.build({});
  nn::materialize(*model, at::kCPU, at::kFloat);
  const state::WeightReader reader(folder);
  pretrained::load_weights(*model, pretrained::checkpoint_map(args, reader), reader);
}

void run(const Options& options) {
  const std::filesystem::path file = std::filesystem::path(options.model) / "model.safetensors";
  const auto args = bench::families().from_hf_folder(options.model);
  if (options.cold) {
    drop(file);
  }
  const auto begin = std::chrono::steady_clock::now();
  if (options.what == "load") {
    load(options.model, *args);
  } else if (options.what == "view") {
    view_tensors(options.model);
  } else if (options.what == "read") {
    read_into_one_buffer(file);
  } else {
    map_and_touch(file);
  }
  Node report = Node::make_table();
  report.set("seconds", Node(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()));
  std::puts(to_json(report).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_program<Options>(argc, argv, run);
}
