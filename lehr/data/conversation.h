// Encoding of conversations as token ids, with the loss mask: the tokens of the answers, which a model learns.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lehr/data/chat_template.h"
#include "lehr/data/tokenizer.h"

namespace lehr::data {

/// A conversation as ids.
struct EncodedConversation {
  std::vector<int32_t> ids;
  /// The loss mask (transformers' assistant_masks): 1 for the tokens of an answer including its end token, 0 for all
  /// others.
  std::vector<uint8_t> learned;
};

/// Encodes conversations by a template. Immutable; several threads may encode concurrently.
///
/// A conversation is an object {"messages": [...], "tools": [...], "chat_template_kwargs": {...}}; the last two are
/// optional. Its text is the rendered template. An assistant's answer begins where the prompt for it would end (the
/// messages before it, rendered with the generation prompt), and ends with the token that ends the turn. If the
/// template marks answers with {% generation %}, its marks are used instead. A message with "weight": 0 (OpenAI's
/// format) is no answer.
///
/// No token crosses such a border, so that the model reads the same tokens in training as in generation.
class ConversationEncoder {
 public:
  /// The tokenizer must outlive this object.
  ConversationEncoder(std::shared_ptr<const ChatTemplate> chat_template, const Tokenizer& tokenizer);

  /// Throws a usage error that names the message: no messages, none of an assistant, an invalid role or content, an
  /// error of the template, an answer whose position cannot be determined.
  EncodedConversation encode(const ChatJson& conversation) const;

  /// Returns the ids of the prompt after which the assistant answers `text` of a user.
  std::vector<int32_t> prompt(const std::string& text) const;

  /// Returns the special token that ends an answer, if the template ends a plain answer with one. Generation stops
  /// there.
  std::optional<int32_t> end_of_turn() const;

  /// The text of a conversation and its answers as byte ranges [begin, end), for inspection of data.
  struct Marked {
    std::string text;
    std::vector<std::pair<size_t, size_t>> answers;
  };
  Marked mark(const ChatJson& conversation) const;

 private:
  std::pair<size_t, size_t> answer(
      const ChatJson& messages, size_t index, const std::string& text, const ChatOptions& options) const;
  size_t end_with_token(const std::string& text, size_t end, const std::string& closing) const;
  std::string special_text(const std::string& text) const;

  std::shared_ptr<const ChatTemplate> chat_template_;
  const Tokenizer& tokenizer_;
};

}  // namespace lehr::data
