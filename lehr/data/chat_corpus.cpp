#include "lehr/data/chat_corpus.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

#include "lehr/base/error.h"
#include "lehr/base/usable_cores.h"
#include "lehr/data/chat_rows.h"
#include "lehr/data/ordered_pipeline.h"
#include "lehr/data/tokenize_corpus.h"

namespace lehr::data {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 16;

EncodedConversation encode_row(const ChatRow& row, const DatasetConfig& dataset, const ConversationEncoder& encoder) {
  try {
    return encoder.encode(conversation_of(row, dataset));
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", row.where(), error.what()));
  }
}

/// The first token has no predecessor to predict it, so it cannot be a label.
bool has_something_to_learn(const EncodedConversation& conversation) {
  const auto& learned = conversation.learned;
  return !learned.empty() && std::find(learned.begin() + 1, learned.end(), 1) != learned.end();
}

}  // namespace

TokenStream read_conversations(
    const DatasetConfig& dataset,
    const ConversationEncoder& encoder,
    const Tokenizer& tokenizer,
    int64_t max_length,
    const std::function<void(const std::string&)>& inform) {
  using Rows = std::vector<ChatRow>;
  using Conversations = std::vector<EncodedConversation>;
  ChatRowReader reader(dataset);
  const auto take = [&]() -> std::optional<Rows> {
    Rows rows;
    for (size_t bytes = 0; bytes < kChunkBytes;) {
      auto row = reader.next();
      if (!row) {
        break;
      }
      bytes += row->text.size();
      rows.push_back(std::move(*row));
    }
    return rows.empty() ? std::nullopt : std::optional(std::move(rows));
  };
  const auto encode = [&](Rows&& rows) {
    Conversations encoded;
    for (const ChatRow& row : rows) {
      encoded.push_back(encode_row(row, dataset, encoder));
    }
    return encoded;
  };

  const int64_t threads = static_cast<int64_t>(std::ceil(usable_cores()));
  OrderedPipeline<Rows, Conversations> pipeline(threads, 2 * threads + 2, take, encode);
  TokenBuffer buffer(dataset.path, tokenizer.vocab_size(), tokenizer_fingerprint(tokenizer));
  int64_t kept = 0, dropped = 0, cut = 0, without_answer = 0;
  while (auto chunk = pipeline.next()) {
    for (EncodedConversation& conversation : *chunk) {
      if (static_cast<int64_t>(conversation.ids.size()) > max_length) {
        if (dataset.too_long == TooLong::drop) {
          ++dropped;
          continue;
        }
        ++cut;
        conversation.ids.resize(static_cast<size_t>(max_length));
        conversation.learned.resize(static_cast<size_t>(max_length));
      }
      if (!has_something_to_learn(conversation)) {
        ++without_answer;
        continue;
      }
      ++kept;
      buffer.append(conversation.ids, conversation.learned);
    }
  }
  require(kept + dropped + without_answer > 0, "{}: holds no conversation", dataset.path);
  require(
      kept > 0,
      "{}: no conversation is left to train on: {} are longer than training.seq_len = {}, {} have no token of an "
      "answer within it",
      dataset.path,
      dropped,
      max_length,
      without_answer);
  if (const std::string replaced = reader.lone_surrogates().report(); inform && !replaced.empty()) {
    inform(replaced);
  }
  if (inform && dropped + cut + without_answer > 0) {
    inform(fmt::format(
        "{}: {} conversations; {} longer than training.seq_len = {} were {}, {} without a token to learn were dropped",
        dataset.path,
        kept,
        dropped + cut,
        max_length,
        dataset.too_long == TooLong::drop ? "dropped (too_long = \"truncate\" would truncate them)" : "truncated",
        without_answer));
  } else if (inform) {
    inform(fmt::format("{}: {} conversations", dataset.path, kept));
  }
  return buffer.take();
}

}  // namespace lehr::data
