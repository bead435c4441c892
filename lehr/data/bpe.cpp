// Application of merges: a scan over all pairs for short words, a heap of pairs for long ones.
#include "lehr/data/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "lehr/base/error.h"
#include "lehr/data/unicode.h"

namespace lehr::data {

Merges::Slot& Merges::slot_of(uint64_t pair) {
  size_t i = hash(pair) & mask_;
  while (slots_[i].rank != kNone && slots_[i].pair != pair) {
    i = (i + 1) & mask_;
  }
  return slots_[i];
}

void Merges::add(int32_t left, int32_t right, int32_t merged) {
  const uint64_t pair = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  Slot& slot = slot_of(pair);
  pairs_ += slot.rank == kNone ? 1 : 0;
  slot = {pair, static_cast<uint32_t>(merged_.size())};
  merged_.push_back(merged);
  if (2 * pairs_ > slots_.size()) {  // by the pairs, not by the length of a list that may repeat them
    Merges larger(2 * slots_.size());
    for (const Slot& old : slots_) {
      if (old.rank != kNone) {
        larger.slot_of(old.pair) = old;
      }
    }
    slots_.swap(larger.slots_);
    mask_ = slots_.size() - 1;
  }
}

Bpe::Bpe(Vocabulary vocabulary, Merges merges, const BpeOptions& options, const std::string& where)
    : vocabulary_(std::move(vocabulary)),
      merges_(std::move(merges)),
      fuse_unk_(options.fuse_unk),
      ignore_merges_(options.ignore_merges),
      made_whole_(new std::atomic<uint8_t>[static_cast<size_t>(vocabulary_.size())]()) {
  if (options.unk_token) {
    unk_id_ = vocabulary_.id_of_spelling(*options.unk_token);
    require(unk_id_ >= 0, "{}.unk_token: \"{}\" is not in the vocabulary", where, *options.unk_token);
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_id_[byte] = vocabulary_.find({&c, 1});
    if (byte_id_[byte] >= 0) {
      continue;
    }
    has_all_bytes_ = false;
    if (options.byte_fallback) {
      for (char part : vocabulary_.spell(static_cast<uint8_t>(byte))) {
        fallback_[byte].push_back(
            vocabulary_.id_of_spelling(fmt::format("<0x{:02X}>", static_cast<unsigned>(static_cast<uint8_t>(part)))));
      }
      if (std::find(fallback_[byte].begin(), fallback_[byte].end(), -1) != fallback_[byte].end()) {
        fallback_[byte].clear();
      }
    }
  }
}

void Bpe::encode_word(std::string_view word, std::vector<int32_t>& ids) const {
  const int32_t whole = word.size() <= vocabulary_.longest() ? vocabulary_.find(word) : -1;
  if (whole >= 0) {
    std::atomic<uint8_t>& made_whole = made_whole_[static_cast<size_t>(whole)];
    const uint8_t known = made_whole.load(std::memory_order_relaxed);
    if (known == kWhole || ignore_merges_) {
      ids.push_back(whole);
      return;
    }
    if (known == kUnknown) {
      const size_t before = ids.size();
      merge_word(word, ids);
      const bool one = ids.size() == before + 1 && ids.back() == whole;
      made_whole.store(one ? kWhole : kParts, std::memory_order_relaxed);
      return;
    }
  }
  merge_word(word, ids);
}

void Bpe::merge_word(std::string_view word, std::vector<int32_t>& ids) const {
  ShortWord few;
  if (has_all_bytes_ && word.size() <= few.size()) {
    std::transform(word.begin(), word.end(), few.begin(), [&](char c) { return byte_id_[static_cast<uint8_t>(c)]; });
    merge_short(few, word.size(), ids);
    return;
  }
  const std::vector<int32_t> symbols = start_symbols(word);
  if (symbols.size() <= few.size()) {
    std::copy(symbols.begin(), symbols.end(), few.begin());
    merge_short(few, symbols.size(), ids);
  } else {
    merge_long(symbols, ids);
  }
}

void Bpe::merge_short(ShortWord& symbols, size_t count, std::vector<int32_t>& ids) const {
  std::array<uint32_t, kShortWord> ranks;  // rank of the pair that begins at each symbol
  for (size_t i = 0; i + 1 < count; ++i) {
    ranks[i] = merges_.rank(symbols[i], symbols[i + 1]);
  }
  while (count > 1) {
    size_t best = 0;
    uint32_t best_rank = ranks[0];
    for (size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < best_rank) {
        best = i;
        best_rank = ranks[i];
      }
    }
    if (best_rank == Merges::kNone) {
      break;
    }
    symbols[best] = merges_.merged(best_rank);
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      symbols[i] = symbols[i + 1];
      ranks[i - 1] = ranks[i];
    }
    if (best > 0) {
      ranks[best - 1] = merges_.rank(symbols[best - 1], symbols[best]);
    }
    if (best + 1 < count) {
      ranks[best] = merges_.rank(symbols[best], symbols[best + 1]);
    }
  }
  ids.insert(ids.end(), symbols.begin(), symbols.begin() + static_cast<ptrdiff_t>(count));
}

std::vector<int32_t> Bpe::start_symbols(std::string_view word) const {
  std::vector<int32_t> symbols;
  symbols.reserve(word.size());
  int pending_unk = 0;
  const auto flush_unk = [&] {
    symbols.insert(symbols.end(), static_cast<size_t>(pending_unk), unk_id_);
    pending_unk = 0;
  };
  const char* const end = word.data() + word.size();
  for (const char* at = word.data(); at < end;) {
    const uint32_t size = vocabulary_.spelling() == Spelling::bytes ? 1 : decode_utf8(at, end).size;
    const std::string_view symbol(at, size);
    at += size;
    const int32_t id = size == 1 ? byte_id_[static_cast<uint8_t>(symbol[0])] : vocabulary_.find(symbol);
    if (id >= 0) {
      flush_unk();
      symbols.push_back(id);
    } else if (const auto bytes = fallback(symbol); !bytes.empty()) {
      // `tokenizers` emits these before an unknown symbol that waits to be fused; equal ids matter more than order
      // here.
      symbols.insert(symbols.end(), bytes.begin(), bytes.end());
    } else if (unk_id_ >= 0) {
      if (pending_unk != 0 && !fuse_unk_) {
        flush_unk();
      }
      pending_unk = 1;
    }
  }
  flush_unk();
  return symbols;
}

std::vector<int32_t> Bpe::fallback(std::string_view symbol) const {
  std::vector<int32_t> tokens;
  for (char c : symbol) {
    const auto& of_byte = fallback_[static_cast<uint8_t>(c)];
    if (of_byte.empty()) {
      return {};
    }
    tokens.insert(tokens.end(), of_byte.begin(), of_byte.end());
  }
  return tokens;
}

void Bpe::merge_long(const std::vector<int32_t>& start, std::vector<int32_t>& ids) const {
  require(start.size() < INT32_MAX, "tokenizer: a word of {} bytes is too long and cannot be split", start.size());
  struct Symbol {
    int32_t id;
    int32_t previous;
    int32_t next;   // -1: none
    uint32_t rank;  // rank of the pair that begins here; a heap entry with another rank is stale
  };
  const auto count = static_cast<int32_t>(start.size());
  std::vector<Symbol> symbols(start.size());
  std::vector<uint64_t> heap;  // rank and position in one number: lowest rank first, then leftmost
  heap.reserve(start.size());
  const auto entry = [](uint32_t rank, int32_t at) {
    return static_cast<uint64_t>(rank) << 32 | static_cast<uint32_t>(at);
  };
  const auto at = [&](int32_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
  for (int32_t i = 0; i < count; ++i) {
    const bool last = i + 1 == count;
    const int32_t id = start[static_cast<size_t>(i)];
    const uint32_t rank = last ? Merges::kNone : merges_.rank(id, start[static_cast<size_t>(i) + 1]);
    at(i) = {id, i - 1, last ? -1 : i + 1, rank};
    if (rank != Merges::kNone) {
      heap.push_back(entry(rank, i));
    }
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto set_rank = [&](int32_t i) {
    Symbol& symbol = at(i);
    symbol.rank = symbol.next < 0 ? Merges::kNone : merges_.rank(symbol.id, at(symbol.next).id);
    if (symbol.rank != Merges::kNone) {
      heap.push_back(entry(symbol.rank, i));
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  };
  while (!heap.empty()) {
    const uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto left = static_cast<int32_t>(top & UINT32_MAX);
    const auto rank = static_cast<uint32_t>(top >> 32);
    if (at(left).rank != rank) {
      continue;
    }
    const int32_t right = at(left).next;
    const int32_t after = at(right).next;
    at(left).id = merges_.merged(rank);
    at(left).next = after;
    at(right).rank = Merges::kNone;  // merged into its left neighbour
    if (after >= 0) {
      at(after).previous = left;
    }
    if (at(left).previous >= 0) {
      set_rank(at(left).previous);
    }
    set_rank(left);
  }
  for (int32_t i = count == 0 ? -1 : 0; i >= 0; i = at(i).next) {
    ids.push_back(at(i).id);
  }
}

}  // namespace lehr::data
