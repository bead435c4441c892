#include "lehr/state/checkpoint_part.h"

#include <fmt/ranges.h>

#include <limits>
#include <sstream>

#include "lehr/base/crc32c.h"
#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/state/output_file.h"
#include "lehr/state/safetensors.h"

namespace lehr::state {

namespace {
namespace fs = std::filesystem;

// The tensor with everything that is not a tensor, as bytes: texts need not be Unicode, so a header cannot hold them.
constexpr const char* kDescription = "description";

std::string pack_box(const Box& box) {
  std::string text;
  for (const Range& range : box) {
    text += fmt::format("{} {} ", range.begin, range.end);
  }
  return text;
}

Box unpack_box(const std::string& text) {
  std::istringstream numbers(text);
  Box box;
  for (Range range; numbers >> range.begin >> range.end;) {
    box.push_back(range);
  }
  return box;
}

std::string tensor_name(size_t set, size_t part) {
  return fmt::format("{}.{}", set, part);
}

std::string describe_contents(const CheckpointContents& contents, bool is_main) {
  const std::vector<std::string> checked(contents.checked_texts.begin(), contents.checked_texts.end());
  std::vector<std::string> fields{std::to_string(contents.step), pack_pairs(contents.texts), pack_texts(checked)};
  for (const WeightSet& set : contents.weights) {
    std::vector<std::pair<std::string, std::string>> parts;
    for (const TensorPart& part : set.parts) {
      parts.emplace_back(part.name, pack_box(part.box));
    }
    fields.insert(
        fields.end(),
        {set.stem,
         std::to_string(set.max_shard_bytes),
         is_main ? pack_infos(set.all) : std::string(),
         pack_pairs(parts)});
  }
  return pack_texts(fields);
}

CheckpointContents contents_of(const std::string& description, const SafetensorsFile& file) {
  const auto fields = unpack_texts(description);
  CheckpointContents contents{.step = std::stoll(fields.at(0)), .weights = {}};
  contents.texts = unpack_pairs(fields.at(1));
  for (const std::string& name : unpack_texts(fields.at(2))) {
    contents.checked_texts.insert(name);
  }
  for (size_t field = 3; field < fields.size(); field += 4) {
    WeightSet set{
        .stem = fields.at(field),
        .tensors = {},
        .max_shard_bytes = std::stoll(fields.at(field + 1)),
        .all = unpack_infos(fields.at(field + 2)),
        .parts = {}};
    for (const auto& [name, box] : unpack_pairs(fields.at(field + 3))) {
      const std::string tensor = tensor_name(contents.weights.size(), set.parts.size());
      set.parts.push_back({.name = name, .box = unpack_box(box), .tensor = file.tensor(tensor)});
    }
    contents.weights.push_back(std::move(set));
  }
  return contents;
}
}  // namespace

std::string folder_name(const PartName& part) {
  return fmt::format("rank-{}-of-{}", part.rank, part.world_size);
}

std::optional<PartName> part_name(const std::string& folder_name) {
  std::istringstream text(folder_name);
  PartName part;
  text.ignore(5) >> part.rank;
  text.ignore(4) >> part.world_size;
  const bool is_part = part.rank >= 0 && part.rank < part.world_size && state::folder_name(part) == folder_name;
  return is_part ? std::optional(part) : std::nullopt;
}

void write_part_integrity(const fs::path& folder, int64_t num_bytes, uint32_t crc32c) {
  write_synced(folder / kIntegrityFile, format_integrity({{kPartFile, {.num_bytes = num_bytes, .crc32c = crc32c}}}));
}

FileIntegrity write_part(const fs::path& folder, const CheckpointContents& contents, int64_t rank) {
  NamedTensors tensors;
  for (size_t set = 0; set < contents.weights.size(); ++set) {
    const auto& parts = contents.weights[set].parts;
    for (size_t i = 0; i < parts.size(); ++i) {
      tensors.emplace_back(tensor_name(set, i), parts[i].tensor);
    }
  }
  std::string description = describe_contents(contents, rank == 0);
  tensors.emplace_back(
      kDescription, at::from_blob(description.data(), {static_cast<int64_t>(description.size())}, at::kByte));
  std::error_code error;
  fs::create_directory(folder, error);
  if (error) {
    fail_runtime("{}: cannot be created: {}", folder.string(), error.message());
  }
  constexpr int64_t kOneFile = std::numeric_limits<int64_t>::max();
  SafetensorsWriter writer(folder, plan_files(fs::path(kPartFile).stem(), describe(tensors), kOneFile));
  writer.create();
  for (const auto& [name, tensor] : tensors) {
    writer.write(name, tensor);
  }
  writer.sync();
  const FileShare written = writer.shares().at(0);
  const uint32_t crc = crc32c_from_linear(written.crc, written.num_bytes);
  write_part_integrity(folder, written.num_bytes, crc);
  return {.num_bytes = written.num_bytes, .crc32c = crc};
}

CheckpointContents read_part(const fs::path& folder) {
  const SafetensorsFile file(folder / kPartFile, Reading::once);
  const at::Tensor bytes = file.tensor(kDescription);
  const std::string description(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
  try {
    return contents_of(description, file);
  } catch (const std::logic_error& problem) {  // of std::stoll and at()
    fail("{}: its description is damaged: {}", file.path().string(), problem.what());
  }
}

std::string pack_pairs(const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::vector<std::string> texts;
  for (const auto& [first, second] : pairs) {
    texts.insert(texts.end(), {first, second});
  }
  return pack_texts(texts);
}

std::vector<std::pair<std::string, std::string>> unpack_pairs(const std::string& packed) {
  const auto texts = unpack_texts(packed);
  std::vector<std::pair<std::string, std::string>> pairs;
  for (size_t i = 0; i < texts.size(); i += 2) {
    pairs.emplace_back(texts.at(i), texts.at(i + 1));
  }
  return pairs;
}

std::string pack_infos(const std::vector<TensorInfo>& infos) {
  std::vector<std::string> texts;
  for (const TensorInfo& info : infos) {
    texts.push_back(info.name);
    texts.push_back(fmt::format("{} {}", dtype_name(info.dtype), fmt::join(info.shape, " ")));
  }
  return pack_texts(texts);
}

std::vector<TensorInfo> unpack_infos(const std::string& packed) {
  std::vector<TensorInfo> infos;
  const auto texts = unpack_texts(packed);
  for (size_t i = 0; i + 1 < texts.size(); i += 2) {
    TensorInfo info{.name = texts[i], .shape = {}};
    std::istringstream words(texts[i + 1]);
    std::string type;
    words >> type;
    info.dtype = value_of(dtype_from_name(type), "dtype");
    for (int64_t size = 0; words >> size;) {
      info.shape.push_back(size);
    }
    infos.push_back(std::move(info));
  }
  return infos;
}

}  // namespace lehr::state
