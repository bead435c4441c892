#include "lehr/state/checkpoint_contents.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <tuple>

#include "lehr/base/crc32c.h"
#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/value_of.h"
#include "lehr/state/integrity.h"
#include "lehr/state/output_file.h"

namespace lehr::state {

namespace {
namespace fs = std::filesystem;

FilePlan plan_of(const WeightSet& set) {
  return plan_files(set.stem, set.all.empty() ? describe(set.tensors, set.dtype) : set.all, set.max_shard_bytes);
}

void check_name(const std::string& name, std::set<std::string>& names) {
  const fs::path path = name;
  require(
      !name.empty() && !path.is_absolute() && !path.filename().empty() && name.find('\0') == std::string::npos &&
          std::find(path.begin(), path.end(), "..") == path.end(),
      "checkpoint: expected the name of a file in its folder, found \"{}\"",
      name);
  require(names.insert(path.lexically_normal().string()).second, "checkpoint: {}: written twice", name);
}

void write_file(const fs::path& folder, const std::string& name, std::string_view content) {
  const fs::path path = folder / name;
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) {
    fail_runtime("{}: cannot be created: {}", path.parent_path().string(), error.message());
  }
  write_synced(path, content);
}

// One rank's part of a save.
class Save {
 public:
  Save(CheckpointStore& store, const CheckpointContents& contents)
      : store_(store), contents_(contents), folder_(store.temporary_path(contents.step)) {
    for (const WeightSet& set : contents.weights) {
      writers_.push_back(std::make_unique<SafetensorsWriter>(folder_, plan_of(set), contents.patience));
    }
  }

  // Main rank only: creates folder, files and texts.
  void begin() {
    store_.begin(contents_.step);
    // The space of all large files is allocated first, so that a full disk is found immediately.
    for (const auto& writer : writers_) {
      writer->create();
    }
    for (const auto& [name, text] : contents_.texts) {
      write_file(folder_, name, text);
    }
    for (const auto& [name, source] : contents_.copies) {
      write_file(folder_, name, read_file(source));
    }
  }

  // Every rank: writes its tensors, in file order.
  void write() {
    for (size_t i = 0; i < writers_.size(); ++i) {
      const WeightSet& set = contents_.weights[i];
      SafetensorsWriter& writer = *writers_[i];
      struct Entry {
        size_t file;
        int64_t offset;
        const std::string* name;
        const Box* box;
        const at::Tensor* tensor;
      };
      std::vector<Entry> entries;
      const auto add = [&](const std::string& name, const Box* box, const at::Tensor& tensor) {
        const PlannedTensor& planned = writer.plan().at(name);
        int64_t first = 0;  // element
        for (size_t dim = 0; box != nullptr && dim < box->size(); ++dim) {
          first = first * planned.shape[dim] + (*box)[dim].begin;
        }
        entries.push_back({planned.file, planned.offset + first * dtype_bits(planned.dtype) / 8, &name, box, &tensor});
      };
      for (const auto& [name, tensor] : set.tensors) {
        add(name, nullptr, tensor);
      }
      for (const TensorPart& part : set.parts) {
        add(part.name, &part.box, part.tensor);
      }
      // In file order, so that the writer can merge adjacent runs.
      std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
        return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
      });
      for (const Entry& entry : entries) {
        if (entry.box == nullptr) {
          writer.write(*entry.name, *entry.tensor);
        } else {
          writer.write(*entry.name, *entry.box, *entry.tensor);
        }
      }
      writer.sync();
    }
  }

  // Returns the bytes and checksum that this rank wrote to each file, for the main rank.
  std::string report() {
    std::string text;
    for (const auto& writer : writers_) {
      for (const FileShare& share : writer->shares()) {
        text += fmt::format("{} {} ", share.num_bytes, share.crc);
      }
    }
    return text;
  }

  // Main rank only: checks that the reports together cover the files, writes integrity.json and publishes.
  void finish(const std::vector<std::string>& reports) {
    std::vector<FileShare> sums;
    for (const std::string& report : reports) {
      std::istringstream text(report);
      FileShare share;
      for (size_t i = 0; text >> share.num_bytes >> share.crc; ++i) {
        sums.resize(std::max(sums.size(), i + 1));
        sums[i].num_bytes += share.num_bytes;
        sums[i].crc ^= share.crc;
      }
    }
    Integrity files;
    size_t index = 0;
    for (const auto& writer : writers_) {
      for (const PlannedFile& file : writer->plan().files) {
        const FileShare& sum = sums.at(index++);
        const fs::path path = folder_ / file.name;
        if (sum.num_bytes != file.num_bytes) {
          fail_runtime(
              "{}: {} of its {} bytes were written; the ranks do not hold every element exactly once",
              path.string(),
              sum.num_bytes,
              file.num_bytes);
        }
        OutputFile::open(path).require_size(file.num_bytes);
        files[file.name] = {.num_bytes = file.num_bytes, .crc32c = crc32c_from_linear(sum.crc, file.num_bytes)};
      }
    }
    for (const auto& [name, text] : contents_.texts) {
      if (contents_.checked_texts.contains(name)) {
        const auto bytes = std::as_bytes(std::span(text));
        files[name] = {.num_bytes = static_cast<int64_t>(bytes.size()), .crc32c = crc32c(bytes)};
      }
    }
    write_file(folder_, kIntegrityFile, format_integrity(files));
    store_.commit(contents_.step);
  }

 private:
  CheckpointStore& store_;
  const CheckpointContents& contents_;
  fs::path folder_;
  std::vector<std::unique_ptr<SafetensorsWriter>> writers_;
};
}  // namespace

void check(const CheckpointContents& contents) {
  std::set<std::string> names;
  for (const WeightSet& set : contents.weights) {
    const FilePlan plan = plan_of(set);
    for (const PlannedFile& file : plan.files) {
      check_name(file.name, names);
    }
    if (!plan.index_name.empty()) {
      check_name(plan.index_name, names);
    }
    for (const TensorPart& part : set.parts) {
      require_part(part.name, plan.at(part.name).shape, part.box, part.tensor);
    }
  }
  check_name(kIntegrityFile, names);
  for (const auto& [name, text] : contents.texts) {
    check_name(name, names);
  }
  for (const auto& [name, source] : contents.copies) {
    check_name(name, names);
    std::error_code error;
    require(fs::is_regular_file(source, error), "{}: no such file; {} is to be a copy of it", source.string(), name);
  }
}

int64_t num_bytes(const CheckpointContents& contents) {
  int64_t sum = 0;
  for (const WeightSet& set : contents.weights) {
    sum += plan_of(set).total_bytes;
  }
  return sum;
}

void write_checkpoint(CheckpointStore& store, const CheckpointContents& contents) {
  OneRank alone;
  write_checkpoint(store, contents, alone);
}

void write_checkpoint(
    CheckpointStore& store, const CheckpointContents& contents, Coordinator& coordinator, const std::string& failure) {
  std::optional<Save> save;
  try {
    coordinator.all_succeed("save check", [&] {
      if (!failure.empty()) {
        fail_runtime("{}", failure);
      }
      check(contents);
      save.emplace(store, contents);
    });
    Save& opened = value_of(save, "checkpoint: the save");
    coordinator.from_main("save begin", [&] {
      opened.begin();
      return std::string();
    });
    std::string mine;
    try {
      opened.write();
      mine = "+" + opened.report();
    } catch (const std::exception& error) {
      mine = pack_failure(error);
    }
    coordinator.decide("save end", mine, [&](const std::vector<std::string>& texts) {
      throw_failures(texts);
      std::vector<std::string> reports;
      for (const std::string& text : texts) {
        reports.push_back(text.substr(1));
      }
      opened.finish(reports);
      return std::string();
    });
  } catch (...) {
    if (coordinator.is_main()) {
      store.abandon(contents.step);
    }
    throw;
  }
}

}  // namespace lehr::state
