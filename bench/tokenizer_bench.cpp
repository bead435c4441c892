// Speed of a tokenizer's encoding: MB/s over given files, on one or several threads.
//
// usage: tokenizer_bench TOKENIZER FILE... [--lines] [--threads=N] [--rounds=N] [--step]
//
// Prints one JSON object per round: seconds and MB/s (10^6 bytes). A document is a whole file, or each line with
// --lines. With --step each round waits for a line of input, so that a script can alternate with another program
// (bench/tokenizer_vs_python.py). Loading is timed separately.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/data/tokenizer.h"
#include "lehr/data/tokenizer_file.h"

namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Arguments {
  std::vector<std::string> positional;
  bool lines = false;
  bool step = false;
  size_t threads = 1;
  int rounds = 5;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--lines") {
      arguments.lines = true;
    } else if (word == "--step") {
      arguments.step = true;
    } else if (word.starts_with("--threads=")) {
      arguments.threads = std::max<size_t>(1, std::stoul(word.substr(10)));
    } else if (word.starts_with("--rounds=")) {
      arguments.rounds = std::stoi(word.substr(9));
    } else {
      lehr::require(!word.starts_with("--"), "{}: unknown option", word);
      arguments.positional.push_back(word);
    }
  }
  lehr::require(
      arguments.positional.size() >= 2,
      "usage: tokenizer_bench TOKENIZER FILE... [--lines] [--threads=N] [--rounds=N] [--step]");
  return arguments;
}

void append_lines(std::string_view text, std::vector<std::string_view>& documents) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    documents.push_back(text.substr(begin, end - begin));
    begin = end;
  }
}

/// Encodes all documents; each thread takes the next free one. Returns the number of tokens.
size_t encode_all(
    const lehr::data::Tokenizer& tokenizer, const std::vector<std::string_view>& documents, size_t num_threads) {
  constexpr size_t kBatch = 16;
  std::atomic<size_t> next{0};
  std::atomic<size_t> tokens{0};
  const auto work = [&] {
    size_t mine = 0;
    for (size_t begin = next.fetch_add(kBatch); begin < documents.size(); begin = next.fetch_add(kBatch)) {
      for (size_t i = begin; i < std::min(begin + kBatch, documents.size()); ++i) {
        mine += tokenizer.encode(documents[i]).size();
      }
    }
    tokens += mine;
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < num_threads; ++i) {
    threads.emplace_back(work);
  }
  work();
  for (std::thread& thread : threads) {
    thread.join();
  }
  return tokens;
}

void run(const Arguments& arguments) {
  const double begin_load = seconds_now();
  const auto tokenizer = lehr::data::load_tokenizer(arguments.positional[0]);
  fmt::print("{{\"load_seconds\": {:.4f}}}\n", seconds_now() - begin_load);
  std::vector<std::string> files;
  std::vector<std::string_view> documents;
  size_t bytes = 0;
  for (size_t i = 1; i < arguments.positional.size(); ++i) {
    files.push_back(lehr::data::read_whole_file(arguments.positional[i]));
    bytes += files.back().size();
  }
  for (const std::string& file : files) {
    if (arguments.lines) {
      append_lines(file, documents);
    } else {
      documents.push_back(file);
    }
  }
  std::fflush(stdout);
  std::string line;
  for (int round = 0; round < arguments.rounds && (!arguments.step || std::getline(std::cin, line)); ++round) {
    const double begin = seconds_now();
    const size_t tokens = encode_all(*tokenizer, documents, arguments.threads);
    const double seconds = seconds_now() - begin;
    fmt::print(
        "{{\"round\": {}, \"threads\": {}, \"documents\": {}, \"bytes\": {}, \"tokens\": {}, \"seconds\": {:.6f}, "
        "\"mb_per_second\": {:.2f}}}\n",
        round,
        arguments.threads,
        documents.size(),
        bytes,
        tokens,
        seconds,
        static_cast<double>(bytes) / 1e6 / seconds);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
  } catch (const lehr::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    fmt::print(stderr, "tokenizer_bench: {}\n", error.what());
    return 2;
  }
}
