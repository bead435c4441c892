#include "lehr/model/decoder_limits.h"

#include "lehr/base/error.h"

namespace lehr::model {

void require_size(const std::string& where, const char* name, int64_t value, int64_t most) {
  require(value > 0, "{}{}: expected a positive number, found {}", where, name, value);
  require(value <= most, "{}{}: expected at most {}, found {}", where, name, most, value);
}

}  // namespace lehr::model
