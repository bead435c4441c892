// lehr tokenize: converts lines to ids and back, or whole corpora to a token file.
#include <iostream>

#include "lehr/app/command.h"
#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/base/value_of.h"
#include "lehr/config/command_line.h"
#include "lehr/config/json.h"
#include "lehr/config/node_list.h"
#include "lehr/data/byte_source.h"
#include "lehr/data/lone_surrogates.h"
#include "lehr/data/tokenize_corpus.h"
#include "lehr/data/tokenizer.h"

namespace lehr::app {

namespace {
struct TokenizeOptions {
  std::string tokenizer;
  std::optional<std::string> output;
  bool jsonl = false;
  bool decode = false;
  bool skip_special = false;
  std::optional<bool> append_eos;
  bool special_tokens = true;
  std::string kind = "auto";
  std::string text_key = "text";
  std::string split_documents;
  int64_t threads = 0;
  void fields(FieldVisitor& v) {
    v.required("tokenizer", tokenizer, "\"byte\", a folder with tokenizer.json, or the file itself.");
    v.optional("output", output, "Token file to write, for example corpus.tokens.");
    v.optional("jsonl", jsonl, "Read lines {\"text\": ...} from standard input, and write lines {\"ids\": [...]}.");
    v.optional("decode", decode, "With --jsonl: convert lines {\"ids\": [...]} to lines {\"text\": ...}.");
    v.optional("skip_special", skip_special, "With --decode: leave special tokens out.");
    v.optional(
        "append_eos",
        append_eos,
        "Append the tokenizer's end-of-text id to each document (--no-append-eos: do not); unset: in token files only.");
    v.optional(
        "special_tokens",
        special_tokens,
        "Put the special tokens of the tokenizer's post-processor, such as a bos, around each text "
        "(--no-special-tokens: do not).");
    v.optional(
        "kind",
        kind,
        "Format of the files; auto: by their names; jsonl: JSON lines or tables.",
        one_of({"auto", "text", "jsonl"}));
    v.optional("text_key", text_key, "Key of the text in JSON lines, or its column in tables.");
    v.optional(
        "split_documents",
        split_documents,
        "End of a document in a text file: \"line\", \"blank_line\" or a separator.");
    v.optional("threads", threads, "Number of encoding threads; 0: all cores.", at_least(0));
  }
};

Node ids_node(const std::vector<int32_t>& ids) {
  return node_list(ids, [](int32_t id) { return Node(int64_t{id}); });
}

void convert_lines(const TokenizeOptions& options, const data::Tokenizer& tokenizer) {
  const auto special = options.special_tokens ? tokenizer.special_tokens() : data::SpecialTokens();
  const auto eos = options.append_eos.value_or(false) ? tokenizer.eos_id() : std::nullopt;
  std::string line;
  data::LoneSurrogates lone_surrogates;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    line = data::without_byte_order_mark(line, number);
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    const std::string where = fmt::format("standard input, line {}", number);
    lone_surrogates.replace(line, "standard input", number);
    const Node input = parse_json(line, where);
    Node result = Node::make_table();
    if (options.decode) {
      std::vector<int32_t> ids;
      for (const Node& id : input.at("ids").items()) {
        const int64_t wide = id.as_int();
        require(
            wide >= 0 && wide < tokenizer.vocab_size(),
            "{}: ids: expected ids from 0 to {}, found {}",
            where,
            tokenizer.vocab_size() - 1,
            wide);
        ids.push_back(static_cast<int32_t>(wide));
      }
      result.set("text", Node(tokenizer.decode(ids, options.skip_special)));
    } else {
      result.set("ids", ids_node(data::document_ids(input.at(options.text_key).as_string(), tokenizer, special, eos)));
    }
    std::cout << to_json(result) << '\n';
  }
  std::cout.flush();
  if (const std::string replaced = lone_surrogates.report(); !replaced.empty()) {
    Logger().warn("{}", replaced);
  }
}

void write_token_file(
    const TokenizeOptions& options,
    const data::Tokenizer& tokenizer,
    const std::vector<std::string>& inputs,
    const std::function<void()>& stop_if_asked) {
  const std::string& output = value_of(options.output, "--output");
  std::vector<data::TextSource> sources;
  for (const auto& input : inputs) {
    sources.push_back(
        {.path = input,
         .kind = options.kind == "text"    ? data::TextKind::text
                 : options.kind == "jsonl" ? data::TextKind::rows
                                           : data::TextKind::by_name,
         .text_key = options.text_key,
         .split_documents = options.split_documents});
  }
  Logger log;
  const auto info = data::tokenize_corpus(
      std::move(sources),
      tokenizer,
      output,
      {.num_threads = options.threads,
       .append_eos = options.append_eos.value_or(true),
       .special_tokens = options.special_tokens,
       .progress =
           [&](const data::TokenizeProgress& p) {
             stop_if_asked();
             log.live(fmt::format(
                 "{} of {} read, {} documents, {} tokens",
                 human_bytes(static_cast<double>(p.finished_bytes)),
                 human_bytes(static_cast<double>(p.total_bytes)),
                 human_count(static_cast<double>(p.documents)),
                 human_count(static_cast<double>(p.tokens))));
           },
       .inform = [&](const std::string& text) { log.warn("{}", text); }});
  log.end_live();
  log.info("{}: {} tokens in {} documents", output, info.num_tokens, info.num_documents);
}
}  // namespace

int tokenize(const std::vector<std::string>& args) {
  TokenizeOptions options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options));
  if (arguments.help) {
    return print_help(
        "lehr tokenize --tokenizer DIR INPUT... --output corpus.tokens\n"
        "lehr tokenize --tokenizer DIR --jsonl [--decode] < lines\n\n"
        "Converts text files, JSON lines (also .gz and .zst), Parquet and Arrow files or folders of them to a\n"
        "memory-mapped token file for [[data.datasets]], or converts standard input line by line.\n\n",
        ConfigObject::of(options));
  }
  const bool corpus = !arguments.positionals.empty();
  require(
      arguments.overrides.empty(),
      "lehr tokenize: '--{}' is not an option; see --help",
      arguments.overrides.empty() ? "" : arguments.overrides[0].first);
  require(
      corpus != options.jsonl, "lehr tokenize: expected either input files, or --jsonl for standard input; see --help");
  require(!corpus || options.output, "lehr tokenize: expected --output, the token file to write");
  require(options.jsonl || !options.decode, "lehr tokenize: --decode needs --jsonl");
  require(options.decode || !options.skip_special, "lehr tokenize: --skip-special needs --decode");
  require(!options.decode || !options.append_eos, "lehr tokenize: --append-eos is for encoding; leave out --decode");
  require(
      corpus || !options.output,
      "lehr tokenize: --output: with --jsonl the result goes to standard output; leave it out, and write > FILE");
  require(
      corpus || (options.kind == "auto" && options.split_documents.empty() && options.threads == 0),
      "lehr tokenize: --kind, --split-documents and --threads are for files; leave them out with --jsonl");
  const auto tokenizer = data::load_tokenizer(options.tokenizer);
  require(
      !options.append_eos.value_or(false) || tokenizer->eos_id(),
      "lehr tokenize: --append-eos: {} names no eos_token; name it in tokenizer_config.json beside tokenizer.json",
      options.tokenizer);
  if (options.jsonl) {
    convert_lines(options, *tokenizer);
    return 0;
  }
  return write_or_stop(
      "tokenize", value_of(options.output, "--output"), [&](const std::function<void()>& stop_if_asked) {
        write_token_file(options, *tokenizer, arguments.positionals, stop_if_asked);
      });
}

}  // namespace lehr::app
