// Opens the module for tables, and makes a ByteSource of its lines.
#include "lehr/data/rows.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/base/open_file.h"
#include "lehr/base/own_folder.h"
#include "lehr/data/arrow_module.h"
#include "lehr/data/expansion.h"

namespace lehr::data {
namespace {

struct Module {
  std::string problem = "";
  ArrowOpen* open = nullptr;
  ArrowRead* read = nullptr;
  ArrowClose* close = nullptr;
};

constexpr const char* kFile = "liblehr_arrow.so";

Module open_module() {
  const auto file = own_file(kFile);
  if (file.empty()) {
    return {.problem = "this build of Lehr has no liblehr_arrow.so; in a clone, 'make build ARROW=1' builds it"};
  }
  // Local, so that the symbols of Apache Arrow and of the libraries in it stay apart from LibTorch's.
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return {
        .problem = fmt::format(
            "{}; 'pip install \"lehr[arrow]\"' installs what the wheel's module needs, 'make build ARROW=1' what that of a "
            "clone needs",
            dlerror())};
  }
  return {
      .open = function_of<ArrowOpen>(handle, kFile, "lehr_arrow_open"),
      .read = function_of<ArrowRead>(handle, kFile, "lehr_arrow_read"),
      .close = function_of<ArrowClose>(handle, kFile, "lehr_arrow_close")};
}

const Module& module() {
  static const Module kModule = open_module();
  return kModule;
}

/// The rows of a table as JSON lines.
class TableSource : public ByteSource {
 public:
  TableSource(const std::filesystem::path& path, const RowKeys& keys)
      : TableSource(path.string(), OpenFile(path), path.extension() == ".parquet", keys) {}
  ~TableSource() override { module().close(table_); }
  TableSource(const TableSource&) = delete;
  TableSource& operator=(const TableSource&) = delete;

  const std::string& name() const override { return name_; }

  int64_t read(char* out, int64_t capacity) override {
    if (left_ == 0) {
      const char* problem = nullptr;
      require(module().read(table_, &lines_, &left_, &problem), "{}: {}", name_, problem);
      expansion_.add(left_);
    }
    const int64_t count = std::min(capacity, left_);
    std::memcpy(out, lines_, static_cast<size_t>(count));
    lines_ += count;
    left_ -= count;
    return count;
  }

 private:
  TableSource(std::string name, OpenFile file, bool parquet, const RowKeys& keys)
      : name_(std::move(name)), expansion_(name_, file.size()) {
    std::vector<ArrowColumn> columns;
    for (const std::string& key : keys.required) {
      columns.push_back({key.c_str(), true});
    }
    for (const std::string& key : keys.optional) {
      columns.push_back({key.c_str(), false});
    }
    const char* problem = nullptr;
    table_ = module().open(file.release(), parquet, columns.data(), static_cast<int64_t>(columns.size()), &problem);
    require(table_ != nullptr, "{}: {}", name_, problem);
  }

  std::string name_;
  Expansion expansion_;
  ArrowTable* table_ = nullptr;
  const char* lines_ = nullptr;
  int64_t left_ = 0;
};

}  // namespace

bool is_table(const std::filesystem::path& path) {
  const auto extension = path.extension();
  return extension == ".parquet" || extension == ".arrow";
}

std::string open_arrow() {
  return module().problem;
}

std::unique_ptr<ByteSource> open_rows(const std::filesystem::path& path, const RowKeys& keys) {
  if (!is_table(path)) {
    return open_bytes(path);
  }
  require(
      module().problem.empty(), "{}: Parquet and Arrow files need Apache Arrow: {}", path.string(), module().problem);
  return std::make_unique<TableSource>(path, keys);
}

}  // namespace lehr::data
