#include "lehr/data/jinja/problem.h"

namespace lehr::data::jinja {

void require_bytes(size_t bytes, std::string_view what) {
  if (bytes > kMaxBytes) {
    refuse("{} makes a value of more than {} bytes", what, kMaxBytes);
  }
}

}  // namespace lehr::data::jinja
