// Chat templates made to run code, or to take all time, memory or stack.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <chrono>

#include "lehr/data/chat_template.h"
#include "lehr/data/jinja/template.h"
#include "test/data/support.h"

namespace lehr::data::jinja {
namespace {

using testing::HasSubstr;

std::string refusal(const std::string& source, const Dict& variables = {}) {
  const auto start = std::chrono::steady_clock::now();
  const std::string message = usage_error_of([&] { Template(source, "t.jinja").render(variables); });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << source.substr(0, 200);
  return message;
}

// llama-cpp-python CVE-2024-34359, SGLang CVE-2026-5760, vLLM's of 2025: templates that reach Python's objects.
TEST(HostileTemplate, HasNoObjectsOfTheHost) {
  for (const char* source :
       {"{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ lipsum.__globals__['os'].system('id') }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.__class__.__base__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ range.__self__.eval('1') }}",
        "{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}"}) {
    EXPECT_THAT(refusal(source, {{"messages", Value::list({})}}), HasSubstr("t.jinja:1: ")) << source;
  }
  EXPECT_THAT(refusal("{{ ''|attr('__class__') }}"), HasSubstr("the filter 'attr' is not supported"));
  for (const char* tag :
       {"import 'os' as os", "include '/etc/passwd'", "from 'a' import b", "extends 'a'", "do x", "call f()"}) {
    EXPECT_THAT(refusal(fmt::format("{{% {} %}}", tag)), HasSubstr("is not supported")) << tag;
  }
  EXPECT_EQ(Template("{{ messages.append is defined }}", "t").render({{"messages", Value::list({})}}).text.size(), 4u);
}

// llama-cpp-python #2225: {% generation %} and tags unknown to a program end with an error that names the line.
TEST(HostileTemplate, UnknownTagsNameTheLine) {
  EXPECT_THAT(refusal("a\n{% whatever %}"), HasSubstr("t.jinja:2: the block 'whatever' is not supported"));
  EXPECT_EQ(Template("{% generation %}x{% endgeneration %}", "t").render({}).text, "x");
}

TEST(HostileTemplate, LoopsEnd) {
  std::string nested;
  for (int i = 0; i < 12; ++i) {
    nested += "{% for x in range(100000) %}";
  }
  for (int i = 0; i < 12; ++i) {
    nested += "{% endfor %}";
  }
  EXPECT_THAT(refusal(nested), HasSubstr("the template does too much work"));
  EXPECT_THAT(
      refusal("{% macro f(n) %}{% for i in range(100) %}{{ f(n + 1) if n < 40 }}{% endfor %}{% endmacro %}{{ f(0) }}"),
      HasSubstr("too much work"));
}

// Each iteration costs its kIteration bytes of the budget, though this one evaluates nothing.
TEST(HostileTemplate, EmptyIterationsAreWork) {
  EXPECT_THAT(refusal("{% for x in range(50000) %}{% endfor %}"), HasSubstr("too much work"));
  EXPECT_EQ(Template("{% for x in range(1000) %}{% endfor %}", "t").render({}).text, "");
}

// With a large variable the budget would allow it, but not the limit of one value.
TEST(HostileTemplate, OneValueHasAtMost32MiB) {
  const Dict large{{"x", Value(std::string(size_t{1} << 24, 'a'))}};
  EXPECT_EQ(Template("{{ (x ~ x) | length }}", "t").render(large).text, std::to_string(size_t{1} << 25));
  EXPECT_THAT(
      refusal("{{ (x ~ x ~ 'a') | length }}", large), HasSubstr("'~' makes a value of more than 33554432 bytes"));
}

TEST(HostileTemplate, ValuesStaySmall) {
  const std::string loop = "{% set ns = namespace(x='aaaaaaaa', l=[1]) %}{% for i in range(100) %}";
  for (const char* growth :
       {"{% set ns.x = ns.x ~ ns.x %}",
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x = ns.x * 100 %}",
        "{% set ns.x = ns.x.replace('a', 'aaaa') %}",
        "{% set ns.x = ns.x.join([ns.x, ns.x]) %}",
        "{% set ns.x = [ns.x, ns.x] | join %}",
        "{% set ns.l = ns.l + ns.l %}",
        "{% set ns.l = ns.l * 100 %}",
        "{% set ns.l = [ns.l, ns.l, ns.l] %}",
        "{% set ns.x = [ns.x, ns.x] | tojson %}",
        "{% set ns.l = {'a': ns.l, 'b': ns.l} %}",
        "{% set ns.x = ([ns.x, ns.x] | string) %}",
        "{{ ns.x }}{% set ns.x = ns.x ~ ns.x %}"}) {
    const std::string message = refusal(loop + growth + "{% endfor %}");
    EXPECT_THAT(
        message,
        testing::AnyOf(
            HasSubstr("too much work"),
            HasSubstr("more than 33554432 bytes"),
            HasSubstr("more than 1073741824 bytes"),
            HasSubstr("makes more than")))
        << growth;
  }
  EXPECT_THAT(refusal("{{ ('a,' * 500000).split(',') | length }}"), HasSubstr("split makes more than 100000 parts"));
  EXPECT_THAT(refusal(std::string(2 << 20, 'a')), HasSubstr("the template has 2097152 bytes, at most 1048576"));
}

TEST(HostileTemplate, SharedListsAreNotComparedOrPrintedForever) {
  // 2^22 leaves that are one list.
  const std::string shared =
      "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(22) %}{% set ns.l = [ns.l, ns.l] %}"
      "{% set ns.m = [ns.m, ns.m] %}{% endfor %}";
  for (const char* use :
       {"{{ ns.l }}",
        "{{ ns.l | tojson }}",
        "{% for i in range(1000) %}{{ ns.l == ns.m }}{% endfor %}",
        "{% for i in range(1000) %}{{ ns.l in [ns.m] }}{% endfor %}",
        "{% for i in range(1000) %}{{ ns.l is eq(ns.m) }}{% endfor %}"}) {
    EXPECT_THAT(refusal(shared + use), HasSubstr("t.jinja:1: ")) << use;
  }
}

TEST(HostileTemplate, NestingIsLimited) {
  const std::string loop = "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}";
  EXPECT_THAT(refusal(loop + "{% set ns.l = [ns.l] %}{% endfor %}"), HasSubstr("nested more than 256 deep"));
  EXPECT_THAT(refusal(loop + "{% set ns.l = {'a': ns.l} %}{% endfor %}"), HasSubstr("nested more than 256 deep"));
  // A macro that is called at the bottom of a deep expression.
  std::string sum = "f(n + 1)";
  for (int i = 0; i < 700; ++i) {
    sum += " ~ 1";
  }
  EXPECT_THAT(
      refusal("{% macro f(n) %}{{ " + sum + " }}{% endmacro %}{{ f(0) }}"), HasSubstr("nested more than 2000 deep"));
  std::string longest = "1";
  for (int i = 0; i < 1400; ++i) {
    longest += " + 1";
  }
  EXPECT_EQ(Template("{{ " + longest + " }}", "t").render({}).text, "1401");
}

TEST(HostileTemplate, NamespacesCannotContainThemselves) {
  EXPECT_THAT(refusal("{% set ns = namespace() %}{% set ns.me = ns %}"), HasSubstr("a namespace cannot be in"));
  EXPECT_THAT(refusal("{% set ns = namespace() %}{% set ns.me = [ns] %}"), HasSubstr("a namespace cannot be in"));
  EXPECT_THAT(
      refusal("{% set ns = namespace() %}{% set m = namespace(n=ns) %}"), HasSubstr("a namespace cannot be in"));
}

TEST(HostileTemplate, ALargeConversationHasRoom) {
  auto messages = nlohmann::ordered_json::array();
  for (int i = 0; i < 2000; ++i) {
    messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::string(2000, 'a')}});
  }
  const ChatTemplate chat(
      "{% for m in messages %}{% if loop.index0 > 0 and messages[loop.index0 - 1].role == m.role %}"
      "{{ raise_exception('roles') }}{% endif %}{% if messages | length > 1 and m.content is string %}"
      "<|{{ m.role }}|>{{ m.content | trim }}{{ '\\n' if not loop.last }}{% endif %}{% endfor %}",
      "t.jinja");
  EXPECT_GT(chat.render(messages).text.size(), 4'000'000u);
}

}  // namespace
}  // namespace lehr::data::jinja
