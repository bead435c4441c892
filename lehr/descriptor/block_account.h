// What each sub-block of a decoder takes, in closed form: parameters, memory, operations. Nothing is built.
#pragma once

#include <cstdint>
#include <vector>

#include "lehr/descriptor/block_config.h"

namespace lehr::descriptor {

/// What the sub-blocks of a decoder share, and which weights they have beside their matrices. Families say the flags,
/// a model's config the sizes.
struct DecoderForm {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0;  ///< Query heads.
  int64_t head_dim = 0;             ///< Need not be hidden_size / num_attention_heads.
  int64_t head_rows = 0;            ///< Rows of the output: vocab_size, the labels of a classifier, or 0 for no head.
  bool tied_head = false;           ///< The head's rows are the embeddings', which are stored and counted once.
  bool qk_norm = false;             ///< Norms of queries and keys, of head_dim weights each.
  bool qkv_bias = false;            ///< Biases of the query, key and value projections.
  bool output_bias = false;         ///< A bias of attention's output projection.
  bool attention_sinks = false;     ///< A learned sink for each query head.
  int64_t ffn_matrices = 3;         ///< Of a feed-forward block and of an expert: 3 with a gate, 2 without.
  bool ffn_bias = false;            ///< Biases of all of these matrices.
  bool router_bias = false;         ///< A bias of a mixture's router that is a parameter.
};

/// What is to be done with a model.
struct Workload {
  int64_t num_tokens = 4096;   ///< Of a sequence, prompt and continuation.
  int64_t num_sequences = 1;   ///< That the cache holds at once.
  int64_t bytes_a_weight = 2;  ///< 2: bfloat16.
  int64_t bytes_a_cached = 2;  ///< Of an element of the KV cache.
};

/// What a part of a model takes. Operations are the multiplications and additions of matrix products and of attention,
/// of one sequence; norms, activations and positions are left out. They and the cache grow with the workload beyond
/// what an integer holds; up to 2^53 they are exact.
struct Account {
  int64_t num_parameters = 0;
  int64_t active_parameters = 0;  ///< All but those of experts that a token does not go to.
  int64_t weight_bytes = 0;
  double kv_cache_bytes = 0;  ///< Of Workload::num_sequences sequences of num_tokens each.
  double prefill_flops = 0;   ///< num_tokens tokens at once, each attends to those before it; logits of the last one.
  double decode_flops = 0;    ///< One token, the last of num_tokens: the others are in the cache.

  Account& operator+=(const Account& other);
  bool operator==(const Account&) const = default;
};

/// The halves of a layer, each with the norm before it; a no-op is all zeros.
struct LayerAccount {
  Account attention;
  Account ffn;

  Account total() const;
};

struct ModelAccount {
  Account embeddings;
  std::vector<LayerAccount> layers;
  Account head;  ///< The final norm and the output's rows; of tied ones the operations only.

  /// Of the layers alone.
  Account all_layers() const;
  Account total() const;
};

/// Throws a usage error for sizes of the model that are so large that its parameters cannot be counted; any workload
/// can.
ModelAccount account_for(const DecoderForm& form, const std::vector<BlockConfig>& blocks, const Workload& work);

}  // namespace lehr::descriptor
