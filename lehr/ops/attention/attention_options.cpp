#include "lehr/ops/attention/attention_options.h"

#include <cmath>

#include "lehr/base/error.h"

namespace lehr::ops {

double default_scale(int64_t head_size) {
  return 1 / std::sqrt(static_cast<double>(head_size));
}

AttentionMask without_first_keys(const AttentionMask& mask, int64_t count, int64_t keys) {
  AttentionMask rest = mask;
  for (at::Tensor* tensor : {&rest.document_ids, &rest.key_padding, &rest.allowed, &rest.bias}) {
    if (tensor->defined() && tensor->size(-1) == keys) {
      *tensor = tensor->narrow(-1, count, keys - count);
    }
  }
  if (count > 0) {  // those of all keys; they are derived again from the ids
    rest.sequence_ends.reset();
    rest.cumulative_lengths.reset();
  }
  return rest;
}

void check_attention_options(const char* subject, const AttentionOptions& options) {
  require(
      !options.scale || std::isfinite(*options.scale),
      "{}: scale: expected a finite number, found {}",
      subject,
      options.scale.value_or(0));
  require(
      !options.softcap || (*options.softcap > 0 && std::isfinite(*options.softcap)),
      "{}: softcap: expected a positive number, found {}; leave it out for none",
      subject,
      options.softcap.value_or(0));
  require(
      !options.window || *options.window >= 1,
      "{}: window: expected 1 or more tokens, found {}; leave it out for none",
      subject,
      options.window.value_or(0));
}

}  // namespace lehr::ops
