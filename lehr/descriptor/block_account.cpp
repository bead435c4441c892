#include "lehr/descriptor/block_account.h"

#include <algorithm>
#include <initializer_list>

#include "lehr/base/error.h"

namespace lehr::descriptor {

namespace {
[[noreturn]] void refuse_size() {
  fail("model: its sizes are too large to count; check config.json for a number with too many digits");
}

int64_t product(std::initializer_list<int64_t> factors) {
  int64_t result = 1;
  for (const int64_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result)) {
      refuse_size();
    }
  }
  return result;
}

int64_t sum(std::initializer_list<int64_t> terms) {
  int64_t result = 0;
  for (const int64_t term : terms) {
    if (__builtin_add_overflow(result, term, &result)) {
      refuse_size();
    }
  }
  return result;
}

double real(int64_t number) {
  return static_cast<double>(number);
}

// The costs of stored weights, of which `multiplied` are in matrices that a token is multiplied with.
Account of_weights(int64_t parameters, int64_t active, int64_t multiplied, const Workload& work) {
  return {
      .num_parameters = parameters,
      .active_parameters = active,
      .weight_bytes = product({parameters, work.bytes_per_weight}),
      .kv_cache_bytes = 0,
      .prefill_flops = 2 * real(multiplied) * real(work.num_tokens),
      .decode_flops = 2 * real(multiplied)};
}

// Pairs of a query and a key that it attends to, with causal attention.
struct Pairs {
  double prefill, decode;  // of all tokens; of the last one
};
// `window` 0: none.
Pairs pairs_of(int64_t window, const Workload& work) {
  const double tokens = real(work.num_tokens);
  const double seen = window > 0 ? std::min(tokens, real(window)) : tokens;  // by the last token
  return {.prefill = seen * (seen + 1) / 2 + (tokens - seen) * seen, .decode = seen};
}

double cached(double elements, const Workload& work) {
  return elements * real(work.num_sequences) * real(work.bytes_per_cached);
}

// Prefill projects the latents to keys and values of each head. Decoding projects the query and the result instead,
// which takes the same matrix once, and attends to the latents: one key of rank + rope elements, and one value of rank.
Account of_latent_attention(const DecoderForm& form, const LatentAttentionForm& sizes, const Workload& work) {
  const int64_t heads = form.num_attention_heads, hidden = form.hidden_size;
  const int64_t query = sum({sizes.qk_nope_head_dim, sizes.qk_rope_head_dim});
  const int64_t cached_width = sum({sizes.kv_lora_rank, sizes.qk_rope_head_dim});
  const int64_t queries = product({heads, query});
  const int64_t of_query =
      sizes.q_lora_rank > 0 ? product({sizes.q_lora_rank, sum({hidden, queries})}) : product({hidden, queries});
  const int64_t matrices = sum(
      {of_query,
       product({hidden, cached_width}),
       product({sizes.kv_lora_rank, heads, sum({sizes.qk_nope_head_dim, sizes.v_head_dim})}),
       product({heads, sizes.v_head_dim, hidden})});
  const int64_t parameters = sum(
      {matrices,
       product({form.attention_norms, hidden}),
       sizes.q_lora_rank,
       sizes.kv_lora_rank,  // the norms of the latents
       sizes.bias ? sum({sizes.q_lora_rank, cached_width, hidden}) : 0});
  Account account = of_weights(parameters, parameters, matrices, work);
  const Pairs pairs = pairs_of(0, work);
  account.prefill_flops += 2 * real(heads) * real(sum({query, sizes.v_head_dim})) * pairs.prefill;
  account.decode_flops += 2 * real(heads) * real(sum({cached_width, sizes.kv_lora_rank})) * pairs.decode;
  account.kv_cache_bytes = cached(real(cached_width) * real(work.num_tokens), work);
  return account;
}

// Adds the work of a state of `state` numbers, of which a token makes `passes` multiply-adds each, and the cache: the
// state, and the tokens before the convolutions of `channels`.
void add_state(
    const Workload& work, double state, double passes, int64_t channels, int64_t conv_kernel, Account& account) {
  account.prefill_flops += 2 * passes * state * real(work.num_tokens);
  account.decode_flops += 2 * passes * state;
  constexpr int64_t kBytesOfState = 4;  // float32, whatever the model's dtype, unless that is float64
  account.kv_cache_bytes = cached(real(product({channels, conv_kernel - 1})), work) +
                           state * real(work.num_sequences) * real(std::max(work.bytes_per_cached, kBytesOfState));
}

// A token reads the state of each value head by its key, corrects it, and reads it by its query.
Account of_delta_net(const DecoderForm& form, const GatedDeltaNetForm& sizes, const Workload& work) {
  const int64_t keys = product({sizes.num_key_heads, sizes.key_head_dim});
  const int64_t values = product({sizes.num_value_heads, sizes.value_head_dim});
  const int64_t channels = sum({product({2, keys}), values});  // of the convolutions
  const int64_t matrices = product(
      {form.hidden_size, sum({channels, values, product({2, sizes.num_value_heads}), values})});  // q k v, z, b a; out
  const int64_t parameters = sum(
      {matrices,
       product({channels, sizes.conv_kernel}),
       2 * sizes.num_value_heads,  // dt_bias and A_log
       sizes.value_head_dim,       // the gated norm
       product({form.attention_norms, form.hidden_size})});
  Account account = of_weights(parameters, parameters, matrices, work);
  add_state(work, real(values) * real(sizes.key_head_dim), 3, channels, sizes.conv_kernel, account);
  return account;
}

// A token adds to the state of each head, and reads it.
Account of_mamba2(const DecoderForm& form, const Mamba2Form& sizes, const Workload& work) {
  const int64_t values = product({sizes.num_heads, sizes.head_dim});
  const int64_t channels = sum({values, product({2, sizes.num_groups, sizes.state_size})});  // of the convolutions
  const int64_t matrices =
      product({form.hidden_size, sum({values, channels, sizes.num_heads, values})});  // z, x B C, dt; out
  const int64_t parameters = sum(
      {matrices,
       product({channels, sum({sizes.conv_kernel, sizes.conv_bias ? 1 : 0})}),
       product({3, sizes.num_heads}),  // dt_bias, A_log and D
       values,                         // the gated norm
       product({form.attention_norms, form.hidden_size})});
  Account account = of_weights(parameters, parameters, matrices, work);
  add_state(work, real(values) * real(sizes.state_size), 2, channels, sizes.conv_kernel, account);
  return account;
}

// `window` 0: none; `reads`: the keys and values of an earlier layer.
Account of_attention(
    const DecoderForm& form, const AttentionSubblock& attention, int64_t window, bool reads, const Workload& work) {
  const AttentionHeadsForm heads = form.heads(window);
  const int64_t queries = product({form.num_attention_heads, heads.head_dim});
  const int64_t keys = reads ? 0 : product({attention.num_key_value_heads, heads.head_dim});
  const int64_t values = heads.keys_as_values ? 0 : keys;  // of the projection
  const int64_t gates = form.output_gate ? queries : 0;
  const int64_t matrices = product({form.hidden_size, sum({queries, gates, keys, values, queries})});
  const int64_t of_qk_norms =
      form.qk_norm_width == nn::QKNormWidth::full ? sum({queries, keys}) : product({reads ? 1 : 2, heads.head_dim});
  const int64_t vectors = sum(
      {product({form.attention_norms, form.hidden_size}),
       form.qk_norm ? of_qk_norms : 0,
       form.qkv_bias ? sum({queries, keys, values}) : 0,
       form.output_bias ? form.hidden_size : 0,
       form.attention_sinks ? form.num_attention_heads : 0});
  const int64_t parameters = sum({matrices, vectors});
  Account account = of_weights(parameters, parameters, matrices, work);
  // Two multiply-adds per query head, element and attended position: the score and the weighted value.
  const Pairs pairs = pairs_of(window, work);
  account.prefill_flops += 4 * real(queries) * pairs.prefill;
  account.decode_flops += 4 * real(queries) * pairs.decode;
  account.kv_cache_bytes = cached(2 * real(keys) * pairs.decode, work);  // the tokens that the last one attends to
  return account;
}

// The sizes of one feed-forward block, or of one expert: its matrices and its biases.
struct Ffn {
  int64_t matrices, biases;
};
Ffn ffn_of(const DecoderForm& form, int64_t hidden_size, int64_t width) {
  return {
      .matrices = product({form.ffn_matrices, hidden_size, width}),
      .biases = form.ffn_bias && width > 0 ? sum({product({form.ffn_matrices - 1, width}), hidden_size}) : 0};
}

Account of_ffn(const DecoderForm& form, const FFNSubblock& ffn, const Workload& work) {
  const auto [matrices, biases] = ffn_of(form, form.hidden_size, ffn.intermediate_size);
  const int64_t parameters = sum({matrices, biases, product({form.ffn_norms, form.hidden_size})});
  return of_weights(parameters, parameters, matrices, work);
}

Account of_moe_layer(const DecoderForm& form, const MoESubblock& moe, const Workload& work) {
  const int64_t latent = form.moe_latent_size;
  const Ffn expert = ffn_of(form, latent > 0 ? latent : form.hidden_size, moe.expert_intermediate_dim);
  const Ffn shared = ffn_of(form, form.hidden_size, moe.shared_expert_intermediate_dim);
  const int64_t projections = product({2, form.hidden_size, latent});
  const int64_t router = product({moe.num_local_experts, form.hidden_size});
  const int64_t gate = form.shared_expert_gate && moe.shared_expert_intermediate_dim > 0 ? form.hidden_size : 0;
  const int64_t rest = sum(
      {shared.matrices,
       shared.biases,
       projections,
       router,
       gate,
       form.router_bias ? moe.num_local_experts : 0,
       form.router_scales ? sum({form.hidden_size, moe.num_local_experts}) : 0,
       product({form.ffn_norms, form.hidden_size})});
  const int64_t size = sum({expert.matrices, expert.biases});
  return of_weights(
      sum({product({moe.num_local_experts, size}), rest}),
      sum({product({moe.num_experts_per_tok, size}), rest}),
      sum({product({moe.num_experts_per_tok, expert.matrices}), shared.matrices, projections, router, gate}),
      work);
}

Account of_linear(const DecoderForm& form, int64_t norms, const Workload& work) {
  const int64_t matrix = product({form.hidden_size, form.hidden_size});
  const int64_t parameters = sum({matrix, product({norms, form.hidden_size})});
  return of_weights(parameters, parameters, matrix, work);
}

// `reads`: a layer with grouped-query attention reads the keys and values of an earlier layer.
Account of_mixer(
    const DecoderForm& form, const AttentionSubblock& attention, size_t layer, bool reads, const Workload& work) {
  if (form.has_states(layer)) {
    return form.mamba2 ? of_mamba2(form, *form.mamba2, work)
                       : of_delta_net(form, form.delta_net.value_or(GatedDeltaNetForm{}), work);
  }
  if (form.latent_attention) {
    return of_latent_attention(form, *form.latent_attention, work);
  }
  return of_attention(form, attention, form.window(layer, attention), reads, work);
}

// The gate and the projection of a layer's own input, and the norm after them.
Account of_layer_input(const DecoderForm& form, const Workload& work) {
  const int64_t matrices = product({2, form.hidden_size, form.hidden_size_per_layer_input});
  const int64_t parameters = matrices > 0 ? sum({matrices, form.hidden_size}) : 0;
  return of_weights(parameters, parameters, matrices, work);
}

LayerAccount of_layer(
    const DecoderForm& form, const BlockConfig& block, size_t index, bool reads, const Workload& work) {
  LayerAccount layer;
  if (const auto* attention = std::get_if<AttentionSubblock>(&block.attention)) {
    layer.attention = of_mixer(form, *attention, index, reads, work);
  } else if (block.attention_is_linear()) {
    layer.attention = of_linear(form, form.attention_norms, work);
  }
  if (const auto* ffn = std::get_if<FFNSubblock>(&block.ffn)) {
    layer.ffn = of_ffn(form, *ffn, work);
  } else if (const auto* moe = std::get_if<MoESubblock>(&block.ffn)) {
    layer.ffn = of_moe_layer(form, *moe, work);
  } else if (block.ffn_is_linear()) {
    layer.ffn = of_linear(form, form.ffn_norms, work);
  }
  layer.ffn += of_layer_input(form, work);
  return layer;
}
}  // namespace

bool DecoderForm::has_states(size_t layer) const {
  return std::binary_search(state_layers.begin(), state_layers.end(), static_cast<int64_t>(layer));
}

int64_t DecoderForm::window(size_t layer, const AttentionSubblock& attention) const {
  return attention.window > 0 ? attention.window : layer < windows.size() ? windows[layer] : 0;
}

AttentionHeadsForm DecoderForm::heads(int64_t window) const {
  return window == 0 && full_attention ? *full_attention : AttentionHeadsForm{.head_dim = head_dim};
}

Account& Account::operator+=(const Account& other) {
  num_parameters = sum({num_parameters, other.num_parameters});
  active_parameters = sum({active_parameters, other.active_parameters});
  weight_bytes = sum({weight_bytes, other.weight_bytes});
  kv_cache_bytes += other.kv_cache_bytes;
  prefill_flops += other.prefill_flops;
  decode_flops += other.decode_flops;
  return *this;
}

Account LayerAccount::total() const {
  Account account = attention;
  return account += ffn;
}

Account ModelAccount::all_layers() const {
  Account account;
  for (const LayerAccount& layer : layers) {
    account += layer.total();
  }
  return account;
}

Account ModelAccount::total() const {
  Account account = all_layers();
  account += embeddings;
  return account += head;
}

ModelAccount account_for(const DecoderForm& form, const std::vector<BlockConfig>& blocks, const Workload& work) {
  const auto num_layers = static_cast<int64_t>(blocks.size());
  const int64_t inputs = product({num_layers, form.hidden_size_per_layer_input});  // of all layers
  const int64_t projection = product({inputs, form.hidden_size});
  const int64_t table = product({form.vocab_size, sum({form.hidden_size, inputs})});
  const int64_t embeddings = sum({table, projection, form.hidden_size_per_layer_input});  // with a norm
  const int64_t rows = product({form.head_rows, form.hidden_size});
  const int64_t bias = form.head_bias ? form.head_rows : 0;
  const int64_t of_head = sum({form.tied_head ? 0 : rows, bias, form.hidden_size});  // with the final norm
  ModelAccount account{
      .embeddings = of_weights(embeddings, embeddings, projection, work),
      .layers = {},
      .head = of_weights(of_head, of_head, rows, work)};
  account.head.prefill_flops = account.head.decode_flops;
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    const bool reads = reads_keys_and_values(static_cast<int64_t>(layer), num_layers, form.num_kv_shared_layers);
    account.layers.push_back(of_layer(form, blocks[layer], layer, reads, work));
  }
  return account;
}

}  // namespace lehr::descriptor
