// Token streams: positions, documents, slices.
#include "lehr/data/token_stream.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lehr/base/error.h"

namespace lehr::data {
namespace {

template <class Id>
void copy_checked(
    const Id* from, int64_t count, int64_t max_id, int64_t position, const std::string& name, int64_t* out) {
  int64_t low = 0, high = 0;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = from[i];
    low = std::min(low, out[i]);
    high = std::max(high, out[i]);
  }
  if (low < 0 || high > max_id) {
    fail(
        "{}: the tokens {} to {} contain the id {}, but the header says that ids are in [0, {}]. The file is damaged: "
        "create it again",
        name,
        position,
        position + count - 1,
        low < 0 ? low : high,
        max_id);
  }
}

}  // namespace

TokenStream::TokenStream(TokenStorage storage) : TokenStream(std::make_shared<TokenStorage>(std::move(storage)), {}) {
  range_ = {0, storage_->num_tokens};
  last_document_ = storage_->num_documents;
}

TokenStream::TokenStream(std::shared_ptr<const TokenStorage> storage, TokenRange range)
    : storage_(std::move(storage)), range_(range) {}

int64_t TokenStream::boundary(int64_t index) const {
  const auto value = storage_->boundaries[index];
  if (value > static_cast<uint64_t>(storage_->num_tokens)) {
    fail(
        "{}: document {} starts at token {}, past the end ({} tokens). The file is damaged: create it again",
        name(),
        index,
        value,
        storage_->num_tokens);
  }
  return std::clamp(static_cast<int64_t>(value), range_.begin, range_.end) - range_.begin;
}

TokenRange TokenStream::document(int64_t index) const {
  require(
      index >= 0 && index < num_documents(),
      "{}: document {} was requested, but there are {}",
      name(),
      index,
      num_documents());
  const TokenRange range{boundary(first_document_ + index), boundary(first_document_ + index + 1)};
  require(
      range.begin <= range.end,
      "{}: document {} ends before it starts. The file is damaged: create it again",
      name(),
      index);
  return range;
}

int64_t TokenStream::document_at(int64_t position) const {
  const uint64_t* first = storage_->boundaries + first_document_ + 1;
  const uint64_t* last = storage_->boundaries + last_document_ + 1;
  const auto found = std::upper_bound(first, last, static_cast<uint64_t>(position + range_.begin)) - first;
  require(
      position >= 0 && position < num_tokens() && found < num_documents(),
      "{}: no document contains token {} of {}. Either the position is wrong or the file is damaged",
      name(),
      position,
      num_tokens());
  return found;
}

void TokenStream::copy(int64_t position, int64_t count, int64_t* out) const {
  require(
      position >= 0 && count >= 0 && position + count <= num_tokens(),
      "{}: tokens {} to {} were requested, but there are {}",
      name(),
      position,
      position + count - 1,
      num_tokens());
  const int64_t from = range_.begin + position;
  if (storage_->narrow != nullptr) {
    copy_checked(storage_->narrow + from, count, max_id(), from, name(), out);
  } else {
    copy_checked(storage_->wide + from, count, max_id(), from, name(), out);
  }
}

std::vector<int64_t> TokenStream::ids(TokenRange range) const {
  require(range.begin <= range.end, "{}: the range [{}, {}) is reversed", name(), range.begin, range.end);
  std::vector<int64_t> result(range.size());
  copy(range.begin, range.size(), result.data());
  return result;
}

TokenStream TokenStream::slice(TokenRange range) const {
  require(
      0 <= range.begin && range.begin <= range.end && range.end <= num_tokens(),
      "{}: cannot take tokens [{}, {}) of {}",
      name(),
      range.begin,
      range.end,
      num_tokens());
  TokenStream result(storage_, {range_.begin + range.begin, range_.begin + range.end});
  if (range.size() > 0) {
    result.first_document_ = first_document_ + document_at(range.begin);
    result.last_document_ = first_document_ + document_at(range.end - 1) + 1;
  }
  return result;
}

int64_t validation_cut(const TokenStream& stream, double validation_fraction) {
  const int64_t total = stream.num_tokens();
  const auto wanted = static_cast<int64_t>(std::llround(validation_fraction * static_cast<double>(total)));
  if (wanted <= 0 || wanted >= total) {
    return total - std::clamp<int64_t>(wanted, 0, total);
  }
  const int64_t cut = total - wanted;
  // Documents stay whole if that changes the size by less than half of the request; a single long text must be cut.
  const TokenRange here = stream.document(stream.document_at(cut));
  if (here.begin == cut) {
    return cut;
  }
  if (stream.has_unlearned()) {
    return here.end < total ? here.end : here.begin;
  }
  return total - here.end >= (wanted + 1) / 2 ? here.end : cut;
}

void require_vocabulary(const TokenStream& stream, int64_t vocab_size) {
  require(
      stream.max_id() < vocab_size,
      "{}: its largest token id is {}, but the vocabulary of the model has only {} entries. Use the tokenizer of the "
      "model, or a model with a vocabulary of at least {}",
      stream.name(),
      stream.max_id(),
      vocab_size,
      stream.max_id() + 1);
}

TokenBuffer::TokenBuffer(std::string name, int64_t vocab_size, uint64_t tokenizer_fingerprint)
    : memory_(std::make_shared<Memory>()) {
  storage_.name = std::move(name);
  storage_.vocab_size = vocab_size;
  storage_.tokenizer_fingerprint = tokenizer_fingerprint;
}

void TokenBuffer::append(std::span<const int32_t> document) {
  for (const int32_t id : document) {
    require(
        id >= 0 && id < storage_.vocab_size,
        "{}: document {} contains the id {}, outside a vocabulary of {}",
        storage_.name,
        memory_->boundaries.size() - 1,
        id,
        storage_.vocab_size);
    storage_.max_id = std::max<int64_t>(storage_.max_id, id);
    if (fits_16_bits(storage_.vocab_size)) {
      memory_->narrow.push_back(static_cast<uint16_t>(id));
    } else {
      memory_->wide.push_back(id);
    }
  }
  memory_->boundaries.push_back(memory_->boundaries.back() + document.size());
}

void TokenBuffer::append(std::span<const int32_t> document, std::span<const uint8_t> learned) {
  append(document);
  memory_->learned.insert(memory_->learned.end(), learned.begin(), learned.end());
}

TokenStream TokenBuffer::take() {
  TokenStorage storage = storage_;
  storage_.max_id = -1;
  if (fits_16_bits(storage.vocab_size)) {
    storage.narrow = memory_->narrow.data();
  } else {
    storage.wide = memory_->wide.data();
  }
  storage.num_tokens = static_cast<int64_t>(memory_->boundaries.back());
  storage.num_documents = static_cast<int64_t>(memory_->boundaries.size()) - 1;
  storage.boundaries = memory_->boundaries.data();
  if (!memory_->learned.empty()) {
    storage.learned = memory_->learned.data();
  }
  storage.owner = std::exchange(memory_, std::make_shared<Memory>());
  return TokenStream(std::move(storage));
}

}  // namespace lehr::data
