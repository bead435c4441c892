// The filter tojson: JSON in the format of Python's json.dumps.
#include <algorithm>
#include <cmath>

#include "lehr/data/jinja/value.h"
#include "lehr/data/unicode.h"

namespace lehr::data::jinja {
namespace {

void append_escaped(std::string& out, uint32_t code) {
  if (code >= 0x10000) {
    out += fmt::format("\\u{:04x}\\u{:04x}", 0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF));
  } else {
    out += fmt::format("\\u{:04x}", code);
  }
}

void append_string(std::string& out, const std::string& text, bool ensure_ascii) {
  out += '"';
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at != end;) {
    const DecodedChar next = decode_utf8(at, end);
    const std::string_view bytes(at, next.size);
    at += next.size;
    switch (next.code) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (next.code < 0x20 || (ensure_ascii && next.code > 0x7E && next.code != kInvalidCode)) {
          append_escaped(out, next.code);
        } else {
          out += bytes;
        }
    }
  }
  out += '"';
}

class Writer {
 public:
  Writer(const JsonStyle& style, std::string& out) : style_(style), out_(out) {}

  void write(const Value& value) {
    if (const auto* string = value.get<std::string>()) {
      append_string(out_, *string, style_.ensure_ascii);
    } else if (const auto* list = value.get<Value::SequencePtr>()) {
      const List& items = (*list)->items;
      group('[', ']', items.size(), [&](size_t i) { write(items[i]); });
    } else if (const auto* dict = value.get<Value::DictPtr>()) {
      write_dict(**dict);
    } else if (value.is_bool()) {
      out_ += value.truth() ? "true" : "false";
    } else if (value.is_float() && !std::isfinite(*value.get<double>())) {
      out_ += std::isnan(*value.get<double>())            ? "NaN"
              : value.truth() && *value.get<double>() < 0 ? "-Infinity"
                                                          : "Infinity";
    } else if (value.is_number()) {
      out_ += value.text();
    } else if (value.is_none()) {
      out_ += "null";
    } else {
      refuse("tojson: {} cannot be written as JSON", value.describe());
    }
  }

 private:
  void write_dict(const Dict& dict) {
    std::vector<const Dict::value_type*> entries;
    for (const auto& entry : dict) {
      entries.push_back(&entry);
    }
    if (style_.sort_keys) {
      std::sort(entries.begin(), entries.end(), [](auto* a, auto* b) { return a->first < b->first; });
    }
    group('{', '}', entries.size(), [&](size_t i) {
      append_string(out_, entries[i]->first, style_.ensure_ascii);
      out_ += style_.key_separator;
      write(entries[i]->second);
    });
  }

  template <class Item>
  void group(char open, char close, size_t size, const Item& item) {
    out_ += open;
    ++depth_;
    for (size_t i = 0; i < size; ++i) {
      out_ += i > 0 ? style_.item_separator : "";
      require_bytes(out_.size(), "tojson");
      new_line();
      item(i);
    }
    --depth_;
    if (size > 0) {
      new_line();
    }
    out_ += close;
  }

  void new_line() {
    if (style_.indent >= 0) {
      out_ += '\n';
      out_.append(static_cast<size_t>(style_.indent * depth_), ' ');
    }
  }

  const JsonStyle& style_;
  std::string& out_;
  int64_t depth_ = 0;
};

}  // namespace

std::string to_json(const Value& value, const JsonStyle& style) {
  std::string out;
  Writer(style, out).write(value);
  return out;
}

}  // namespace lehr::data::jinja
