// Opens datasets, and manages the cache of tokenized text.
#include "lehr/data/open_data.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iterator>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/base/random.h"
#include "lehr/data/append_file.h"
#include "lehr/data/chat_corpus.h"
#include "lehr/data/corpus.h"
#include "lehr/data/token_file.h"
#include "lehr/data/tokenize_corpus.h"

namespace lehr::data {
namespace {

constexpr int64_t kInMemoryBytes = int64_t{4} << 20;

void inform(const OpenDataOptions& options, const std::string& text) {
  if (options.inform) {
    options.inform(text);
  }
}

TextSource source_of(const DatasetConfig& dataset) {
  const TextKind kind = dataset.kind == DatasetKind::text    ? TextKind::text
                        : dataset.kind == DatasetKind::jsonl ? TextKind::rows
                                                             : TextKind::by_name;
  return {.path = dataset.path, .kind = kind, .text_key = dataset.text_key, .split_documents = dataset.split_documents};
}

int64_t bytes_of(const TextSource& source) {
  int64_t bytes = 0;
  for (const auto& file : list_files(source)) {
    bytes += static_cast<int64_t>(std::filesystem::file_size(file));
  }
  return bytes;
}

/// Returns a cache key of everything that the tokens depend on. Files count by path, size and modification time, as
/// reading them all would cost as much as the cache saves.
std::string cache_name(const TextSource& source, const Tokenizer& tokenizer) {
  std::string key = fmt::format(
      "1|{}|{}|{}|{}|{:x}|{}",
      static_cast<int>(source.kind),
      source.text_key.size(),
      source.text_key,
      source.split_documents,
      tokenizer_fingerprint(tokenizer),
      tokenizer.vocab_size());
  if (tokenizer.special_tokens().size() > 0) {
    key += "|special tokens";  // which earlier versions left out
  }
  for (const auto& file : list_files(source)) {
    key += fmt::format(
        "|{}|{}|{}",
        std::filesystem::absolute(file).string(),
        std::filesystem::file_size(file),
        std::filesystem::last_write_time(file).time_since_epoch().count());
  }
  for (const auto& file : tokenizer.files()) {
    std::ifstream stream(file, std::ios::binary);
    key += '|';
    key.append(std::istreambuf_iterator<char>(stream), {});
  }
  std::string name = std::filesystem::absolute(source.path).stem().string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '*' || c == '?'; }, '_');
  return fmt::format("{}-{:016x}.tokens", name, hash_name(key));
}

/// Locks out other processes on this machine during its lifetime. If the file system does not support locks, they do
/// the same work redundantly, which is harmless.
class FolderLock {
 public:
  FolderLock(const std::filesystem::path& folder, const OpenDataOptions& options) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    descriptor_ = ::open((folder / ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
    held_ = descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
    if (descriptor_ >= 0 && !held_ && errno == EWOULDBLOCK) {
      inform(options, fmt::format("waiting for another process that tokenizes into {}", folder.string()));
      held_ = ::flock(descriptor_, LOCK_EX) == 0;
    }
  }
  ~FolderLock() {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  bool held() const { return held_; }

 private:
  int descriptor_ = -1;
  bool held_ = false;
};

/// Removes what processes that were killed have left of `file`. Call it under the lock. Some file systems lock within a
/// machine only, so files that another machine may still write stay.
void remove_unfinished(const std::filesystem::path& file) {
  const std::string begin = file.filename().string();
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(file.parent_path(), error)) {
    const std::string name = entry.path().filename().string();
    const auto age = std::filesystem::file_time_type::clock::now() - entry.last_write_time(error);
    if (name.starts_with(begin) && name.find(AppendFile::kUnfinished, begin.size()) != std::string::npos &&
        age > std::chrono::hours(1)) {
      std::filesystem::remove(entry.path(), error);
    }
  }
}

TokenStream tokenize_in_memory(const TextSource& source, const Tokenizer& tokenizer, const OpenDataOptions& options) {
  TokenBuffer buffer(source.path.string(), tokenizer.vocab_size(), tokenizer_fingerprint(tokenizer));
  tokenize_documents({source}, tokenizer, {.inform = options.inform}, [&](std::span<const int32_t> document) {
    buffer.append(document);
  });
  return buffer.take();
}

TokenStream tokenize_through_cache(
    const TextSource& source,
    const Tokenizer& tokenizer,
    const std::filesystem::path& folder,
    const OpenDataOptions& options) {
  const std::filesystem::path file = folder / cache_name(source, tokenizer);
  const auto open_cached = [&](bool tell) -> std::optional<TokenStream> {
    if (!std::filesystem::exists(file)) {
      return std::nullopt;
    }
    try {
      TokenStream stream = open_token_file(file);
      inform(options, fmt::format("{}: tokens are cached in {}", source.path.string(), file.string()));
      return stream;
    } catch (const Error& error) {
      if (tell) {
        inform(options, fmt::format("{}; it is created again", error.what()));
      }
      return std::nullopt;
    }
  };
  if (auto stream = open_cached(/*tell=*/false)) {  // without the lock, as files appear when they are complete
    return std::move(*stream);
  }
  const FolderLock lock(folder, options);
  if (auto stream = open_cached(/*tell=*/true)) {  // another process has created it meanwhile
    return std::move(*stream);
  }
  if (lock.held()) {
    remove_unfinished(file);
  }
  inform(options, fmt::format("{}: tokenizing into {}", source.path.string(), file.string()));
  tokenize_corpus({source}, tokenizer, file, {.inform = options.inform});
  return open_token_file(file);
}

TokenStream open_token_dataset(const DatasetConfig& dataset, const Tokenizer& tokenizer) {
  TokenStream stream = open_token_file(dataset.path);
  const uint64_t theirs = stream.tokenizer_fingerprint();
  require(
      theirs == 0 || theirs == tokenizer_fingerprint(tokenizer),
      "{}: was created with another tokenizer than this run's [tokenizer]. Use that tokenizer, or create the file "
      "again with 'lehr tokenize'",
      dataset.path);
  return stream;
}

bool names_token_file(const DatasetConfig& dataset) {
  return dataset.kind == DatasetKind::tokens ||
         (dataset.kind == DatasetKind::by_name && std::filesystem::path(dataset.path).extension() == ".tokens");
}

void require_there(const DatasetConfig& dataset, const std::string& key) {
  require(is_there(dataset.path), "{}: {}: no such file or folder", key, dataset.path);
  std::error_code unreadable;
  require(
      !names_token_file(dataset) || std::filesystem::exists(dataset.path, unreadable),
      "{}: {}: is a pattern, but token files are named one by one, each in its own [[data.datasets]]",
      key,
      dataset.path);
}

// Checked before a long tokenization would be wasted.
void require_files(const DataConfig& config) {
  for (size_t i = 0; i < config.datasets.size(); ++i) {
    require_there(config.datasets[i], fmt::format("data.datasets.{}.path", i));
  }
  if (!config.validation_path.empty()) {
    require_there({.path = config.validation_path}, "data.validation_path");
  }
}

}  // namespace

TokenStream open_tokens(const DatasetConfig& dataset, const Tokenizer& tokenizer, const OpenDataOptions& options) {
  TokenStream stream = [&] {
    if (dataset.kind == DatasetKind::chat) {
      require(options.chat_template != nullptr, "{}: conversations need a chat template", dataset.path);
      const ConversationEncoder encoder(options.chat_template, tokenizer);
      return read_conversations(dataset, encoder, tokenizer, options.seq_len, options.inform);
    }
    if (names_token_file(dataset)) {
      return open_token_dataset(dataset, tokenizer);
    }
    const TextSource source = source_of(dataset);
    if (options.cache_folder.empty() || bytes_of(source) <= kInMemoryBytes) {
      return tokenize_in_memory(source, tokenizer, options);
    }
    return tokenize_through_cache(source, tokenizer, options.cache_folder, options);
  }();
  if (options.vocab_size > 0) {
    require_vocabulary(stream, options.vocab_size);
  }
  return stream;
}

LanguageData open_data(const DataConfig& config, const Tokenizer& tokenizer, const OpenDataOptions& given) {
  require(!config.datasets.empty(), "data.datasets: at least one dataset is needed");
  require(
      !config.has(DatasetKind::classification) && !config.has(DatasetKind::token_classification),
      "data.datasets: labelled texts cannot train a language model");
  require(!config.has(DatasetKind::pairs), "data.datasets: pairs cannot train a language model");
  require_files(config);
  OpenDataOptions options = given;
  if (!config.cache_folder.empty()) {
    options.cache_folder = config.cache_folder;
  }
  const auto packed = [&](const TokenStream& stream) {
    return PackedRows(
        stream,
        {.seq_len = options.seq_len,
         .packing = stream.has_unlearned() ? Packing::whole : config.packing,
         .pad_id = tokenizer.padding_id()});
  };

  std::vector<MixedDataset::Part> train, validation;
  for (const DatasetConfig& dataset : config.datasets) {
    const TokenStream stream = open_tokens(dataset, tokenizer, options);
    const int64_t cut = validation_cut(stream, config.validation_fraction);
    require(  // two tokens on each side, since a single one has nothing to predict
        config.validation_fraction == 0 || stream.num_tokens() == 0 || (cut > 1 && cut + 1 < stream.num_tokens()),
        "data.validation_fraction: {} holds {} tokens in {} documents, too few to hold out {} of them; give more data, "
        "set it to 0, or name data.validation_path",
        stream.name(),
        stream.num_tokens(),
        stream.num_documents(),
        config.validation_fraction);
    train.push_back({packed(stream.slice({0, cut})), dataset.weight});
    if (config.validation_fraction > 0) {
      validation.push_back({packed(stream.slice({cut, stream.num_tokens()})), 1.0});
    }
  }
  if (!config.validation_path.empty()) {
    DatasetConfig dataset = config.datasets.front();
    dataset.path = config.validation_path;
    dataset.kind = dataset.kind == DatasetKind::chat ? DatasetKind::chat : DatasetKind::by_name;
    validation.push_back({packed(open_tokens(dataset, tokenizer, options)), 1.0});
  }

  const uint64_t seed = config.seed ? static_cast<uint64_t>(*config.seed) : options.seed;
  LanguageData data;
  data.train = std::make_shared<MixedDataset>(
      std::move(train), SampleOrder::Options{.seed = seed, .shuffle = config.shuffle, .repeat = config.repeat});
  if (!validation.empty()) {
    data.validation = std::make_shared<MixedDataset>(
        std::move(validation), SampleOrder::Options{.seed = seed, .shuffle = false, .repeat = false});
  }
  return data;
}

namespace {
// Opens the training data and the held-out data of a config with one dataset, of the kind `kind` (`name`).
template <class Dataset, class How>
Examples<Dataset> open_examples(
    const DataConfig& config,
    const Tokenizer& tokenizer,
    const OpenDataOptions& options,
    DatasetKind kind,
    const char* name,
    const How& how) {
  require(
      config.datasets.size() == 1 && config.has(kind), "data.datasets: one dataset with kind = \"{}\" is needed", name);
  require_files(config);
  const auto open = [&](const std::string& path) {
    auto made = std::make_shared<const Dataset>(path, tokenizer, how(config.datasets.front()));
    if (const std::string replaced = made->lone_surrogates().report(); !replaced.empty()) {
      inform(options, replaced);
    }
    return made;
  };
  return {open(config.datasets.front().path), config.validation_path.empty() ? nullptr : open(config.validation_path)};
}
}  // namespace

Examples<ClassificationDataset> open_classification(
    const DataConfig& config, const Tokenizer& tokenizer, const OpenDataOptions& options) {
  const auto how = [&](const DatasetConfig& dataset) {
    return ClassificationOptions{
        .max_length = options.seq_len,
        .pad_to_multiple_of = dataset.pad_to_multiple_of,
        .pad_token_id = options.pad_token_id,
        .text_key = dataset.text_key,
        .label_key = dataset.label_key};
  };
  return open_examples<ClassificationDataset>(
      config, tokenizer, options, DatasetKind::classification, "classification", how);
}

Examples<TokenClassificationDataset> open_token_classification(
    const DataConfig& config, const Tokenizer& tokenizer, const OpenDataOptions& options) {
  const auto how = [&](const DatasetConfig& dataset) {
    return TokenClassificationOptions{
        .max_length = options.seq_len,
        .pad_to_multiple_of = dataset.pad_to_multiple_of,
        .tokens_key = dataset.tokens_key,
        .tags_key = dataset.tags_key};
  };
  return open_examples<TokenClassificationDataset>(
      config, tokenizer, options, DatasetKind::token_classification, "token_classification", how);
}

Examples<PairsDataset> open_pairs(
    const DataConfig& config, const Tokenizer& tokenizer, const OpenDataOptions& options) {
  const auto how = [&](const DatasetConfig& dataset) {
    return PairsOptions{
        .max_length = options.seq_len,
        .pad_to_multiple_of = dataset.pad_to_multiple_of,
        .anchor_key = dataset.anchor_key,
        .positive_key = dataset.positive_key,
        .negative_key = dataset.negative_key};
  };
  return open_examples<PairsDataset>(config, tokenizer, options, DatasetKind::pairs, "pairs", how);
}

}  // namespace lehr::data
