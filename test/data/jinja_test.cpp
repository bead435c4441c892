// Templates render as in Jinja, and unsupported constructs are errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lehr/data/jinja/template.h"
#include "test/data/support.h"

namespace lehr::data::jinja {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

std::string render(const std::string& source, const Dict& variables = {}) {
  return Template(source, "t.jinja").render(variables).text;
}

std::string refusal(const std::string& source, const Dict& variables = {}) {
  return usage_error_of([&] { render(source, variables); });
}

TEST(Jinja, RendersAsRecorded) {
  const auto fixture = nlohmann::ordered_json::parse(read_file(repository("test/data/jinja/cases.json")));
  Dict variables;
  for (const auto& [name, value] : fixture["variables"].items()) {
    variables.emplace_back(name, Value::from_json(value));
  }
  ASSERT_GE(fixture["cases"].size(), 45u);
  for (const auto& entry : fixture["cases"]) {
    const auto source = entry[0].get<std::string>();
    if (entry[1].is_null()) {
      EXPECT_THAT(refusal(source, variables), HasSubstr("t.jinja:1: ")) << source;
    } else {
      EXPECT_EQ(render(source, variables), entry[1].get<std::string>()) << source;
    }
  }
}

TEST(Jinja, BlocksTrimTheirLines) {
  EXPECT_EQ(render("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
  EXPECT_EQ(render("a\n  {{ 1 }}\nb"), "a\n  1\nb");
  EXPECT_EQ(render("a \n {%- if true -%} \n b {% endif %}"), "ab ");
  EXPECT_EQ(render("a\n  {%+ if true +%}\nb{% endif %}"), "a\n  \nb");
  EXPECT_EQ(render("a {# x #}\nb {#- y -#} c"), "a bc");
}

TEST(Jinja, NamesOfALoopOrMacroAreLocal) {
  EXPECT_EQ(render("{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}"), "231");
  EXPECT_EQ(
      render("{% macro f(a) %}{% set x = a %}{{ x }}{{ y }}{% endmacro %}{% set y = 7 %}{{ f(1) }}{{ x }}"), "17");
  EXPECT_EQ(render("{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}"), "3210");
}

TEST(Jinja, ReportsTheRangesOfGenerationBlocks) {
  const auto rendering = Template(
                             "ab{% generation %}cd{% endgeneration %}{% for i in [1] %}{% generation %}e"
                             "{% endgeneration %}{% endfor %}f",
                             "t")
                             .render({});
  EXPECT_EQ(rendering.text, "abcdef");
  EXPECT_THAT(rendering.generated, ElementsAre(Pair(2u, 4u), Pair(4u, 5u)));
}

TEST(Jinja, NamesTheLineAndTheUnsupportedConstruct) {
  EXPECT_THAT(refusal("a\nb\n{% include 'x' %}"), HasSubstr("t.jinja:3: the block 'include' is not supported"));
  EXPECT_THAT(refusal("\n{{ x | wordwrap }}"), HasSubstr("t.jinja:2: the filter 'wordwrap' is not supported"));
  EXPECT_THAT(refusal("{{ x is escaped }}"), HasSubstr("t.jinja:1: the test 'escaped' is not supported"));
  EXPECT_THAT(refusal("{{ 'a'.zfill(3) }}"), HasSubstr("the method 'zfill' of a string is not supported"));
  EXPECT_THAT(refusal("{{ f(*x) }}"), HasSubstr("'*' before an argument is not supported"));
  EXPECT_THAT(refusal("{{ '\xC3\xA9' | upper }}"), HasSubstr("outside ASCII"));
  EXPECT_THAT(refusal("{% for x in y recursive %}{% endfor %}"), HasSubstr("'recursive' loops"));
}

TEST(Jinja, RefusesInvalidTemplates) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"a\n{{ x", "t.jinja:2: the output {{ does not end"},
      {"{% if x %}\n\n", "t.jinja:2: the template ends, but 'endif' is missing"},
      {"{% for a in x %}\n\n", "t.jinja:2: the template ends, but 'endfor' is missing"},
      {"{% endif %}", "'endif' has no matching start"},
      {"{# x", "the comment {# does not end"},
      {"{{ 'x }}", "a string does not end"},
      {"{{ (1 }}", "expected ')'"},
      {"{{ 1 2 }}", "expected '}}', found '2'"},
      {"{{ x ! y }}", "'!' is not allowed here"},
      {"{{ 99999999999999999999 }}", "too large"},
      {"\n\n{{ a.b }}", "t.jinja:3: 'a', which is undefined has no 'b'"},
      {"{{ f() }}", "'f', which is undefined cannot be called"},
      {"{{ 1 + 'a' }}", "'+' between the number 1 and a string is not defined"},
      {"{{ 1 // 0 }}", "divides by zero"},
      {"{{ [] | tojson(1, 2, 3, 4, 5) }}", "takes at most 4 arguments, found 5"},
      {"{{ 'a'.split(by='x') }}", "split: has no argument 'by'"},
      {"{% set a, b = [1] %}", "cannot be unpacked into 2 names"},
      {"{% set a.b = 1 %}", "only the entries of a namespace can be set"},
      {"{% for x in 5 %}{% endfor %}", "for: expected an iterable, found the number 5"},
      {"{% break %}", "'break' is outside of a loop"},
      {"{{ range(1000000) | length }}", "range: more than 100000 numbers"},
      {"{{ 'a' * 100000000 }}", "'*' makes more than"},
      {"{{ 2 ** 64 }}", "too large for 64 bits"},
      {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls macros more than 50 deep"},
      {"\n{{ raise_exception('roles must alternate') }}",
       "t.jinja:2: the template refuses this: roles must alternate"}};
  for (const auto& [source, expected] : cases) {
    EXPECT_THAT(refusal(source), HasSubstr(expected)) << source;
  }
}

TEST(Jinja, RefusesDeepNestingInsteadOfOverflowingTheStack) {
  const std::string open(100000, '(');
  EXPECT_THAT(refusal("{{ " + open + " }}"), HasSubstr("too"));
  std::string blocks, sum = "{{ 1", signs(100000, '-');
  for (int i = 0; i < 20000; ++i) {
    blocks += "{% if x %}";
    sum += " + 1";
  }
  EXPECT_THAT(refusal(blocks), HasSubstr("blocks are nested too deeply"));
  EXPECT_THAT(refusal(sum + " }}"), HasSubstr("the tag is too long"));
  EXPECT_THAT(refusal("{{ " + signs + "1 }}"), HasSubstr("too long"));
}

}  // namespace
}  // namespace lehr::data::jinja
