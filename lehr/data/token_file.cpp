// The format of token files: header, writer, memory-mapped reader.
#include "lehr/data/token_file.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>

#include "lehr/base/error.h"
#include "lehr/base/open_file.h"

namespace lehr::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are mapped without conversion");

constexpr std::array<char, 8> kMagic = {'L', 'E', 'H', 'R', 'T', 'O', 'K', 'S'};
constexpr uint32_t kVersion = 1;
constexpr int64_t kHeaderBytes = 256;
constexpr int64_t kVerifyAtOpenBytes = int64_t{64} << 20;
constexpr uint64_t kHashStart = 0x9E3779B97F4A7C15;

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t token_bytes = 0;
  int64_t num_tokens = 0;
  int64_t num_documents = 0;
  int64_t vocab_size = 0;
  int64_t max_id = -1;
  uint64_t tokenizer_fingerprint = 0;
  uint64_t content_hash = 0;
  std::array<uint64_t, 23> reserved{};
  uint64_t header_hash = 0;  // hash of all fields above
};
static_assert(sizeof(Header) == kHeaderBytes);

uint64_t mix(uint64_t hash, uint64_t value) {
  return (std::rotl(hash, 23) ^ value) * 0xBF58476D1CE4E5B9;
}

/// Hashes the ids of each document, then its end, so that the writer can update it incrementally.
template <class Id>
uint64_t hash_ids(uint64_t hash, const Id* ids, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    hash = mix(hash, static_cast<uint64_t>(ids[i]));
  }
  return hash;
}

uint64_t hash_header(const Header& header) {
  std::array<uint64_t, kHeaderBytes / 8> words;
  std::memcpy(words.data(), &header, kHeaderBytes);
  return hash_ids(kHashStart, words.data(), static_cast<int64_t>(words.size()) - 1);
}

int64_t boundaries_position(const Header& header) {
  return (kHeaderBytes + header.num_tokens * header.token_bytes + 7) / 8 * 8;
}

/// A mapped file with a validated header.
struct Mapping {
  explicit Mapping(const std::filesystem::path& path) : name(path.string()) {
    const OpenFile file(path);
    size = file.size();
    require(
        size >= kHeaderBytes, "{}: not a token file: it has {} bytes, the header alone {}", name, size, kHeaderBytes);
    data = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_SHARED, file.descriptor(), 0);
    if (data == MAP_FAILED) {
      data = nullptr;
      fail_runtime("{}: cannot be mapped into memory: {}", name, std::strerror(errno));
    }
    std::memcpy(&header, data, kHeaderBytes);
    try {
      check_header();
    } catch (...) {
      ::munmap(data, static_cast<size_t>(size));
      throw;
    }
  }
  ~Mapping() { ::munmap(data, static_cast<size_t>(size)); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  void check_header() const {
    require(
        header.magic == kMagic,
        "{}: not a token file: it does not start with \"{}\". Create one with 'lehr tokenize'",
        name,
        std::string_view(kMagic.data(), kMagic.size()));
    require(
        header.version == kVersion,
        "{}: token file version {}, but this program reads version {}. Create the file again",
        name,
        header.version,
        kVersion);
    require(header.header_hash == hash_header(header), "{}: the header is damaged (its checksum differs)", name);
    // A valid checksum proves nothing, because anybody can compute it. kMost elements of eight bytes do not overflow.
    constexpr int64_t kMost = int64_t{1} << 58;
    const bool plausible = header.vocab_size > 0 && header.vocab_size <= int64_t{1} << 31 && header.max_id >= -1 &&
                           header.max_id < header.vocab_size &&
                           header.token_bytes == (fits_16_bits(header.vocab_size) ? 2 : 4) && header.num_tokens >= 0 &&
                           header.num_tokens <= kMost && header.num_documents >= 0 && header.num_documents <= kMost;
    require(
        plausible,
        "{}: the header is damaged: {} tokens of {} bytes in {} documents, ids to {} of a vocabulary of {}. Create the "
        "file again",
        name,
        header.num_tokens,
        header.token_bytes,
        header.num_documents,
        header.max_id,
        header.vocab_size);
    const int64_t expected = boundaries_position(header) + 8 * (header.num_documents + 1);
    require(
        size == expected,
        "{}: {} bytes, but {} tokens in {} documents take {}: the file is {}",
        name,
        size,
        header.num_tokens,
        header.num_documents,
        expected,
        size < expected ? "truncated" : "damaged");
    require(
        boundaries()[0] == 0 && boundaries()[header.num_documents] == static_cast<uint64_t>(header.num_tokens),
        "{}: the positions of documents are damaged",
        name);
  }

  const char* bytes() const { return static_cast<const char*>(data); }
  const uint64_t* boundaries() const {
    return reinterpret_cast<const uint64_t*>(bytes() + boundaries_position(header));
  }
  const uint16_t* narrow() const { return reinterpret_cast<const uint16_t*>(bytes() + kHeaderBytes); }
  const int32_t* wide() const { return reinterpret_cast<const int32_t*>(bytes() + kHeaderBytes); }

  void verify_content() const {
    uint64_t hash = kHashStart;
    for (int64_t i = 0; i < header.num_documents; ++i) {
      const uint64_t begin = boundaries()[i], end = boundaries()[i + 1];
      require(
          begin <= end && end <= static_cast<uint64_t>(header.num_tokens),
          "{}: the positions of document {} are damaged. Create the file again",
          name,
          i);
      const auto count = static_cast<int64_t>(end - begin);
      hash = header.token_bytes == 2 ? hash_ids(hash, narrow() + begin, count) : hash_ids(hash, wide() + begin, count);
      hash = mix(hash, end);
    }
    require(
        hash == header.content_hash, "{}: the content is damaged (its checksum differs). Create the file again", name);
  }

  std::string name;
  void* data = nullptr;
  int64_t size = 0;
  Header header;
};

}  // namespace

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, int64_t vocab_size, uint64_t tokenizer_fingerprint)
    : path_(path), file_(path), boundaries_(path.string() + ".boundaries"), content_hash_(kHashStart) {
  require(vocab_size > 0, "{}: the vocabulary size is {}, expected at least 1", path.string(), vocab_size);
  info_.vocab_size = vocab_size;
  info_.tokenizer_fingerprint = tokenizer_fingerprint;
  const Header placeholder{};
  file_.append(&placeholder, sizeof(placeholder));
  const uint64_t zero = 0;
  boundaries_.append(&zero, sizeof(zero));
}

void TokenFileWriter::append(std::span<const int32_t> document) {
  int32_t low = 0, high = -1;
  for (const int32_t id : document) {
    low = std::min(low, id);
    high = std::max(high, id);
  }
  require(
      low >= 0 && high < info_.vocab_size,
      "{}: document {} contains the id {}, outside a vocabulary of {}",
      path_.string(),
      info_.num_documents,
      low < 0 ? low : high,
      info_.vocab_size);
  if (fits_16_bits(info_.vocab_size)) {
    narrow_.assign(document.begin(), document.end());
    file_.append(narrow_.data(), narrow_.size() * 2);
  } else {
    file_.append(document.data(), document.size_bytes());
  }
  info_.num_tokens += static_cast<int64_t>(document.size());
  info_.num_documents += 1;
  info_.max_id = std::max<int64_t>(info_.max_id, high);
  const auto end = static_cast<uint64_t>(info_.num_tokens);
  content_hash_ = mix(hash_ids(content_hash_, document.data(), static_cast<int64_t>(document.size())), end);
  boundaries_.append(&end, sizeof(end));
}

TokenFileInfo TokenFileWriter::finish() {
  const std::array<char, 8> zeros{};
  file_.append(zeros.data(), static_cast<size_t>((8 - file_.size() % 8) % 8));
  file_.append(boundaries_);
  Header header;
  header.token_bytes = fits_16_bits(info_.vocab_size) ? 2 : 4;
  header.num_tokens = info_.num_tokens;
  header.num_documents = info_.num_documents;
  header.vocab_size = info_.vocab_size;
  header.max_id = info_.max_id;
  header.tokenizer_fingerprint = info_.tokenizer_fingerprint;
  header.content_hash = content_hash_;
  header.header_hash = hash_header(header);
  file_.overwrite(0, &header, sizeof(header));
  file_.publish();
  return info_;
}

TokenStream open_token_file(const std::filesystem::path& path) {
  const auto mapping = std::make_shared<Mapping>(path);
  if (mapping->size <= kVerifyAtOpenBytes) {
    mapping->verify_content();
  }
  const Header& header = mapping->header;
  return TokenStream(TokenStorage{
      .name = path.string(),
      .narrow = header.token_bytes == 2 ? mapping->narrow() : nullptr,
      .wide = header.token_bytes == 2 ? nullptr : mapping->wide(),
      .num_tokens = header.num_tokens,
      .boundaries = mapping->boundaries(),
      .num_documents = header.num_documents,
      .vocab_size = header.vocab_size,
      .max_id = header.max_id,
      .tokenizer_fingerprint = header.tokenizer_fingerprint,
      .owner = mapping});
}

void verify_token_file(const std::filesystem::path& path) {
  Mapping(path).verify_content();
}

bool is_token_file(const std::filesystem::path& path) {
  if (!std::filesystem::is_regular_file(path)) {
    return false;  // opening a pipe would block
  }
  std::ifstream file(path, std::ios::binary);
  std::array<char, kMagic.size()> magic{};
  return file.read(magic.data(), magic.size()) && magic == kMagic;
}

}  // namespace lehr::data
