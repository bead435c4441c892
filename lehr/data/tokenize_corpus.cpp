// The tokenizing pipeline: one thread reads, many encode, one writes in order.
#include "lehr/data/tokenize_corpus.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "lehr/base/error.h"
#include "lehr/base/usable_cores.h"
#include "lehr/data/ordered_pipeline.h"
#include "lehr/data/tokenizer_file.h"

namespace lehr::data {
namespace {

/// Enough text per chunk that the cost of passing it between threads is negligible.
constexpr size_t kChunkBytes = size_t{1} << 18;

struct TextChunk {
  std::vector<std::string> texts;
  int64_t finished_bytes = 0;
};

struct IdChunk {
  std::vector<int32_t> ids;
  std::vector<size_t> ends;
  int64_t text_bytes = 0;
  int64_t finished_bytes = 0;
};

}  // namespace

std::vector<int32_t> document_ids(
    std::string_view text, const Tokenizer& tokenizer, const SpecialTokens& special, std::optional<int32_t> eos) {
  std::vector<int32_t> ids = special.around(tokenizer.encode(text));
  if (eos && (special.after.empty() || special.after.back() != *eos)) {
    ids.push_back(*eos);
  }
  return ids;
}

TokenizeProgress tokenize_documents(
    std::vector<TextSource> sources,
    const Tokenizer& tokenizer,
    const TokenizeOptions& options,
    const std::function<void(std::span<const int32_t>)>& sink) {
  CorpusReader reader(std::move(sources));
  const std::optional<int32_t> eos = options.append_eos ? tokenizer.eos_id() : std::nullopt;
  const SpecialTokens special = options.special_tokens ? tokenizer.special_tokens() : SpecialTokens{};
  if (options.append_eos && !eos && special.after.empty() && options.inform) {
    options.inform(
        "the tokenizer names no eos_token, so nothing marks the end of a document; name it in tokenizer_config.json "
        "beside tokenizer.json");
  }

  const auto take = [&]() -> std::optional<TextChunk> {
    TextChunk chunk;
    for (size_t bytes = 0; bytes < kChunkBytes;) {
      auto document = reader.next();
      if (!document) {
        break;
      }
      bytes += document->text.size();
      chunk.texts.push_back(std::move(document->text));
    }
    chunk.finished_bytes = reader.finished_bytes();
    return chunk.texts.empty() ? std::nullopt : std::optional(std::move(chunk));
  };
  const auto encode = [&](TextChunk&& chunk) {
    IdChunk result;
    result.finished_bytes = chunk.finished_bytes;
    for (const std::string& text : chunk.texts) {
      const auto ids = document_ids(text, tokenizer, special, eos);
      result.ids.insert(result.ids.end(), ids.begin(), ids.end());
      result.ends.push_back(result.ids.size());
      result.text_bytes += static_cast<int64_t>(text.size());
    }
    return result;
  };

  const int64_t threads =
      options.num_threads > 0 ? options.num_threads : static_cast<int64_t>(std::ceil(usable_cores()));
  TokenizeProgress done{.total_bytes = reader.total_bytes()};
  OrderedPipeline<TextChunk, IdChunk> pipeline(threads, 2 * threads + 2, take, encode);
  while (const auto chunk = pipeline.next()) {
    size_t begin = 0;
    for (const size_t end : chunk->ends) {
      sink(std::span(chunk->ids).subspan(begin, end - begin));
      begin = end;
    }
    done.documents += static_cast<int64_t>(chunk->ends.size());
    done.tokens += static_cast<int64_t>(chunk->ids.size());
    done.text_bytes += chunk->text_bytes;
    done.finished_bytes = chunk->finished_bytes;
    if (options.progress) {
      options.progress(done);
    }
  }
  done.finished_bytes = done.total_bytes;
  if (options.progress) {
    options.progress(done);
  }
  if (const std::string replaced = reader.lone_surrogates().report(); options.inform && !replaced.empty()) {
    options.inform(replaced);
  }
  return done;
}

TokenFileInfo tokenize_corpus(
    std::vector<TextSource> sources,
    const Tokenizer& tokenizer,
    const std::filesystem::path& output,
    const TokenizeOptions& options) {
  require(
      !std::filesystem::is_directory(output), "{}: is a folder, expected the name of a token file", output.string());
  // Never overwrites input files or other data.
  for (const auto& source : sources) {
    for (const auto& file : list_files(source)) {
      std::error_code none;
      require(!std::filesystem::equivalent(file, output, none), "{}: is one of the inputs", output.string());
    }
  }
  require(
      !std::filesystem::exists(output) || is_token_file(output),
      "{}: exists and is not a token file; choose another name, or remove it",
      output.string());
  TokenFileWriter writer(output, tokenizer.vocab_size(), tokenizer_fingerprint(tokenizer));
  tokenize_documents(
      std::move(sources), tokenizer, options, [&](std::span<const int32_t> document) { writer.append(document); });
  return writer.finish();
}

uint64_t tokenizer_fingerprint(const Tokenizer& tokenizer) {
  constexpr std::string_view kProbe =
      "The quick brown fox, 3.14159 of 1234567890!\n\n  def f(x):\n\treturn x**2  # don't you'll We'VE\r\n"
      "Gl\xC3\xBC"
      "ck \xC3\xA9t\xC3\xA9 na\xC3\xAFve \xCE\xB1\xCE\xB2\xCE\xB3 \xD0\x9F\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5"
      "\xD1\x82 \xE4\xBD\xA0\xE5\xA5\xBD\xE4\xB8\x96\xE7\x95\x8C \xE3\x81\x93\xE3\x82\x93 \xED\x95\x9C\xEA\xB5\xAD "
      "\xD8\xA7\xD9\x84 \xE0\xA4\xA8 \xF0\x9F\x98\x80 <|endoftext|><|im_start|></s> internationalization";
  uint64_t hash = 0x243F6A8885A308D3;
  const auto mix = [&](int64_t value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x9E3779B97F4A7C15;
    hash ^= hash >> 29;
  };
  for (const int32_t id : tokenizer.encode(kProbe)) {
    mix(id);
  }
  mix(tokenizer.eos_id().value_or(-1));
  return hash | 1;
}

bool has_other_tokenizer(const std::filesystem::path& folder, const Tokenizer& tokenizer) {
  constexpr std::string_view kOrdinary = "The quick brown fox, 3.14159 of 1234567890!\n\n  def f(x):\n\treturn x**2";
  if (!find_file(folder, "tokenizer.json")) {
    return false;
  }
  try {
    return load_tokenizer(folder.string())->encode(kOrdinary) != tokenizer.encode(kOrdinary);
  } catch (const Error&) {
    return false;
  }
}

}  // namespace lehr::data
