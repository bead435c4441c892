// Chat templates: the input is a template, which renders a conversation.
#include <nlohmann/json.hpp>

#include "lehr/data/chat_template.h"
#include "test/fuzz/harness.h"

void lehr::fuzz::read_input(std::string_view input) {
  static const auto messages = data::ChatJson::parse(
      R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Wie geht's? \u00e9\n"},
          {"role":"assistant","content":"<think>a</think>b","tool_calls":[{"name":"f","arguments":{"x":1.5,"y":[]}}]}])");
  static const auto tools = data::ChatJson::parse(R"([{"type":"function","function":{"name":"f","parameters":{}}}])");
  accepts([&] {
    const data::ChatTemplate chat(std::string(input), "t.jinja", {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    accepts([&] { chat.render(messages, {.add_generation_prompt = true}); });
    accepts([&] { chat.render(messages, {.tools = &tools}); });
  });
}
