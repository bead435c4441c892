#!/usr/bin/env python3
"""Writes test/data/jinja/cases.json: the output of Jinja, configured as in transformers, for a list of small templates.

Usage: make_jinja_fixtures.py OUT      (needs the package jinja2)
"""
import json, sys

import jinja2, jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

CALL = {"function": {"name": "f", "arguments": {"a": 1, "b": [1.0, 2.5e-7, 1e16, None, True, "\u00fc\u2028\x01\"\\"]}}}
VARIABLES = {
    "messages": [
        {"role": "system", "content": "  Be \u00e9 \n"},
        {"role": "user", "content": "Hi 'you' \"x\"", "n": 3},
        {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nans", "tool_calls": [CALL]},
    ],
    "x": 5, "s": "h\u00e9llo w\u00f6rld", "l": [3, 1, 2], "d": {"b": 1, "a": {"c": [1, 2]}, "B": 2}, "e": [], "n": None,
    "t": True, "f": 2.5, "big": 10**15, "z": "a,b,,c",
}

# Templates, with a line of %%%% between two.
TEMPLATES = r"""
{{ x }} {{ s }} {{ l }} {{ d }} {{ n }} {{ t }} {{ f }} {{ missing }} {{ e }}
%%%%
{{ s[0] }} {{ s[-1] }} {{ s[1:4] }} {{ s[::-1] }} {{ l[::-1] }} {{ l[1:] }} {{ l[:-1] }} {{ l[-2:] }} {{ s[10:2:-2] }} {{ l[5:] }} {{ s[-100:3] }}
%%%%
{{ s|length }} {{ d|length }} {{ z.split(',') }} {{ z.split(',',1) }} {{ z.rsplit(',',1) }} {{ ' a  b '.split() }}{{ 'a b c d'.split(None,2) }}
%%%%
{{ d|tojson }} {{ messages|tojson }} {{ d|tojson(indent=4) }} {{ e|tojson(indent=2) }} {{ d|tojson(sort_keys=true) }} {{ messages|tojson(ensure_ascii=true) }} {{ d|tojson(separators=(',',':')) }} {{ d | tojson(indent=2, separators=(', ', ' = ')) }}
%%%%
{% for m in messages %}
    {% if loop.first %}first{% endif %}
  {{ m.role }}: {{ m.content | trim }}{{ "!" if loop.last }}
    {%- if not loop.last -%}
      ,
    {%+ endif %}
{% endfor %}end
%%%%
{%- for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in d|items %}{{ k }}{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for k,v in d|dictsort %}{{k}}{{v}}{% endfor %}
%%%%
{% set ns = namespace(a=1, found=false) %}{% for i in l %}{% set ns.a = ns.a + i %}{% set q = i %}{% endfor %}{{ ns.a }} {{ q is defined }} {{ ns.found }}
%%%%
{% set a, b = 1, 'two' %}{{ a }}{{ b }} {% set tup = (1,'x') %}{{ tup }} {{ (1,) }} {{ () }}
%%%%
{% macro say(who, greet='hi', n=2) %}{{ greet }} {{ who }}{{ n }}{% endmacro %}{{ say('bob') }} {{ say('al', n=3) }} {{ say('al','yo')|upper }}
%%%%
{% set block %}
  text {{ x }}
{% endset %}[{{ block }}] {% set up | upper | trim %} abc {% endset %}[{{ up }}]
%%%%
{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 1 + 2 * 3 }} {{ 'a' ~ 1 ~ none }} {{ 'ab' * 3 }} {{ [1] + [2] }} {{ 6 / 2 }} {{ -x|abs if false else 0 }} {{ 2 ** -1 }} {{ 1e3 }} {{ 5.0 % 3 }} {{ -(3) }} {{ 1 - -1 }}
%%%%
{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 'a' in 'abc' }} {{ 3 not in l }} {{ 'b' in d }} {{ not x == 5 }} {{ x == 5 and 'yes' or 'no' }} {{ n or 'dflt' }} {{ 0 or e or 'z' }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1,2] == [1,2] }} {{ n == none }} {{ missing == none }}
%%%%
{{ x is defined }} {{ missing is defined }} {{ missing is not defined }} {{ n is none }} {{ s is string }} {{ d is mapping }} {{ l is iterable }} {{ s is iterable }} {{ l is sequence }} {{ x is number }} {{ t is number }} {{ t is boolean }} {{ f is float }} {{ x is integer }} {{ t is integer }} {{ x is odd }} {{ x is divisibleby 5 }} {{ x is divisibleby(3) }} {{ t is true }} {{ x is true }} {{ x is in [5] }} {{ x is eq 5 }} {{ not missing is defined }} {{ x is number and s is string }} {{ x is even or l is sequence }}
%%%%
{{ l|join(', ') }} {{ l|first }} {{ l|last }} {{ messages|map(attribute='role')|join('|') }} {{ messages|map(attribute='n', default=0)|list }} {{ ['a ',' b']|map('trim')|list }} {{ messages|selectattr('role','equalto','user')|list|length }} {{ messages|rejectattr('role','equalto','user')|map(attribute='role')|list }} {{ messages|selectattr('tool_calls')|list|length }} {{ messages|selectattr('tool_calls','defined')|list|length }} {{ [0,1,2]|select|list }} {{ [0,1,2]|reject('odd')|list }} {{ l|reverse|list }} {{ 'abc'|reverse }}
%%%%
{{ missing|default('d') }} {{ ''|default('d') }} {{ ''|default('d', true) }} {{ n|default('q') }} {{ n|d('q', boolean=true) }} {{ '3.7'|int }} {{ ' 42 '|int }} {{ 'x'|int }} {{ 'x'|int(7) }} {{ f|int }} {{ '2.5'|float }} {{ x|float }} {{ x|string + 'a' }} {{ 'abc'|upper }} {{ 'ABC d'|lower }} {{ 'hello world'|title }} {{ 'hELLO'|capitalize }} {{ 'aXbX'|replace('X','-') }} {{ 'abc'|list }}
%%%%
{{ '  x '.strip() }}| {{ 'xxaxx'.strip('x') }} {{ '\n\na'.lstrip('\n') }} {{ 'a\u00a0'.rstrip() }}| {{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x','c')) }} {{ 'a-b'.replace('-', '+') }} {{ d.get('b') }} {{ d.get('zz') }} {{ d.get('zz', 4) }} {{ d.keys()|list }} {{ d.values()|list|length }} {{ 'Abc'.upper() }} {{ 'ab cd'.title() }} {{ '-'.join(['a','b']) }} {{ 'aXbXc'.count('X') }} {{ 'prefix-a'.removeprefix('prefix-') }}
%%%%
{# comment {{ x }} #}after comment
%%%%
   {# lstripped comment #}
%%%%
next {#- eats -#}   all
%%%%
{%- if x > 3 and
       s %}
multi
{% elif x %}no{% else %}no{% endif %}
%%%%
{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %} {{ range(2,8,3)|list }} {{ range(3,0,-1)|list }}
%%%%
{% for i in l if i > 1 %}{{ loop.index }}/{{ loop.length }}:{{ i }}{{ loop.revindex0 }} {% else %}none{% endfor %}{% for i in e %}x{% else %}empty{% endfor %}
%%%%
{% for i in l %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {{ loop.cycle('a','b') }}{% endfor %}
%%%%
{{ "quote\"s and \\ and \x41 \u00e9" }} {{ 'it''s' }} {{ "a" "b" }}
%%%%
{{ {'k': {'v': 1}, 'l': [1,2]} }} {{ {'k':1}['k'] }} {{ {'k':1}.k }} {{ d['a']['c'][1] }} {{ d.a.c.0 }} {{ messages[0]['role'] }} {{ messages[-1].role }} {{ messages[7] }}
%%%%
{% generation %}gen {{ x }}{% endgeneration %} {% for i in [1,2] %}{% for j in [3,4] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}
%%%%
{{ 'a' if x == 5 else 'b' }} {{ ('a' if x else 'b') ~ 'c' }} {{ 'q' if missing is defined and missing else 'r' }} {{ "y" if x in [1,5] }} {{ 'n' if false }}
%%%%
{{ messages[1:] | length }} {{ (messages | length) - 1 }} {{ messages|length - 1 }} {{ 'abc' | length == 3 }} {{ ['a','b'] | join('') + 'c' }} {{ f|string|length }}
%%%%
{%- set content = 'x' -%} {% for m in messages %}{% set content = m.content %}{% if loop.last %}{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}{{ content }}{% endfor %}{{ content }}
%%%%
{{ l.append(4) }}
%%%%
{{ missing.foo }}
%%%%
{{ missing + 1 }}
%%%%
{{ x + 'a' }}
%%%%
{{ raise_exception('no ' ~ x) }}
%%%%
{{ x | nosuch }}
%%%%
{{ x is nosuch }}
%%%%
{% include 'a' %}
%%%%
{{ 'a' | tojson | length }} {{ 1.5|tojson }} {{ none|tojson }} {{ true|tojson }} {{ 'é'|tojson }} {{ 100000000000000000000.0|tojson }} {{ 1e-7|tojson }} {{ 123456789.123|tojson }}
%%%%
   {%- if x %} a {%- endif %} b
%%%%
text   {{- x -}}   text {%+ if x %}   y{% endif +%}
%%%%
 after
%%%%
{% if x %}
   {% if t %}
	tab
   {% endif %}
{% endif %}
%%%%
{{ "a\
b" }} {{- '' -}} {{ [1, 2,] }} {{ {'a': 1,} }} {{ x.__class__ is defined }}
%%%%
{{ 'a  b  '.split(None, 1) }} {{ ' a b '.split(None, 0) }} {{ 'a b '.split(None, 2) }} {{ 'a b '.split(None, 5) }}
%%%%
{{ "don't o'neil 3rd a-b (c [d {e <f g.h i/j"|title }} {{ 'a\tb_c'|title }} {{ "don't 3rd"|capitalize }} {{ "don't 3rd".title() }}
%%%%
{{ '+3'|int }} {{ '1_000'|int }} {{ '1_0.5'|float }} {{ '1_0.5'|int }} {{ ' -1_2 '|int }} {{ '+ 3'|int }} {{ '+-3'|int }} {{ '++3'|int }} {{ '1__0'|int }} {{ '_1'|int }} {{ '1_'|int }} {{ '+'|int(7) }} {{ '+1.5'|float }} {{ '+-1.5'|float(2) }}
%%%%
{{ ['a\u00a0b\u200b\u2028\u00ad\u0085', '\u3000\ufeff\ue000\uffff', '\U0001f600\U000e0001\U0010ffff', '\u00e9\u0301\x00\x7f'] }} {{ {'\u00a0': '\u2003\t'} }} {{ '\u00a0' }}
"""


class Generation(jinja2.ext.Extension):
    """{% generation %}: writes its body without change."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_write"), [], [], body).set_lineno(line)

    def _write(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def main():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    templates = TEMPLATES[1:-1].split("\n%%%%\n")
    rendered = []
    for template in templates:
        try:
            rendered.append([template, env.from_string(template).render(**VARIABLES)])
        except Exception:  # refused; the message does not matter
            rendered.append([template, None])
    together = "\n".join(template for template, text in rendered if text is not None)
    for template in (together, together.replace("\n", "\r\n") + "\r\n"):
        rendered.append([template, env.from_string(template).render(**VARIABLES)])
    with open(sys.argv[1], "w") as out:
        lines = ",\n".join(json.dumps(case) for case in rendered)
        out.write(f'{{"variables": {json.dumps(VARIABLES)},\n"cases": [\n{lines}\n]}}\n')
    print(len(rendered), "cases,", sum(text is None for _, text in rendered), "of them refused")


if __name__ == "__main__":
    main()
