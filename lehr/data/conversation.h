// Conversations as token ids, with the answers marked that a model shall learn to give.
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
  std::vector<uint8_t> learned;  ///< 1 for the tokens of an answer and the one that ends it, 0 for all others.
};

/// Encodes conversations by a template. Immutable; may encode on many threads at once.
///
/// A conversation is an object {"messages": [...], "tools": [...], "chat_template_kwargs": {...}}, of which the last
/// two may be missing. Its text is what the template renders. The answer of an assistant begins where the prompt ends
/// that a model would be given for it (the messages before, with the generation prompt), and ends with the token that
/// ends the turn. A template that marks answers itself, by {% generation %}, has the last word.
///
/// What lies between two such borders is encoded by itself, so that every border is one of tokens, and what a model
/// reads in training is what it will read and write token by token when it is used.
class ConversationEncoder {
 public:
  /// The tokenizer must outlive this object.
  ConversationEncoder(std::shared_ptr<const ChatTemplate> chat_template, const Tokenizer& tokenizer);

  /// Throws a usage error that names the message: none at all, none of an assistant, a role or content that is none,
  /// what the template refuses, an answer whose place cannot be told.
  EncodedConversation encode(const ChatJson& conversation) const;

  /// The ids that make the assistant answer `text`, said by a user.
  std::vector<int32_t> prompt(const std::string& text) const;

  /// The special token that ends an answer, if the template ends a plain one by such a token. Generation stops there.
  std::optional<int32_t> end_of_turn() const;

  /// Where the answers lie in the text of a conversation, as bytes [begin, end); for looking at data.
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
