// Conversations: rows of a JSON list or of JSON lines, rendered by a template.
#include <nlohmann/json.hpp>

#include "lehr/data/chat_rows.h"
#include "lehr/data/chat_template.h"
#include "test/fuzz/harness.h"
#include "test/fuzz/json_mutator.h"

void lehr::fuzz::read_input(std::string_view input) {
  static const data::ChatTemplate chat(
      "{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}"
      "{% endif %}{% endfor %}{{ tools | tojson }}",
      "t.jinja");
  const auto path = as_file("rows.json", input);
  accepts([&] {
    data::ChatRowReader reader({.path = path.string()});
    while (const auto row = reader.next()) {
      accepts([&] {
        const data::ChatJson conversation = data::conversation_of(*row, {});
        const data::ChatJson tools = conversation.value("tools", data::ChatJson());
        chat.render(conversation["messages"], {.tools = &tools});
      });
    }
  });
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  return lehr::fuzz::mutate_json(data, size, most, seed);
}
