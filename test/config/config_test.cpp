#include "lehr/config/config.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/config/command_line.h"
#include "lehr/config/json.h"
#include "lehr/config/toml.h"
#include "test/base/error_of.h"

namespace lehr {
namespace {
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::Throws;

struct Part {
  std::string path;
  double weight = 1;
  void fields(FieldVisitor& v) {
    v.required("path", path, "Where it is.");
    v.optional("weight", weight, "How much of it.", positive());
  }
};

/// A table with keys of any type beside its fields.
struct Open {
  int64_t size = 1;
  Node rest = Node::make_table();
  void fields(FieldVisitor& v) {
    v.optional("size", size, "How large.");
    v.others(rest, "Whatever else.");
  }
};

struct WithOpen {
  Open open;
  void fields(FieldVisitor& v) { v.group("open", open, "Open."); }
};

enum class Kind { plain, fancy };

struct Section {
  int64_t steps = 10;
  double rate = 0.5;
  bool enable = false;
  Kind kind = Kind::plain;
  std::optional<int64_t> limit;
  std::vector<int64_t> sizes = {1, 2};
  std::map<std::string, int64_t> table;
  std::vector<Part> parts;
  void fields(FieldVisitor& v) {
    v.optional("steps", steps, "How many steps.", positive());
    v.optional("rate", rate, "How fast.", from_below(0, 1));
    v.optional("enable", enable, "Whether.");
    v.choice("kind", kind, {{"plain", Kind::plain}, {"fancy", Kind::fancy}}, "Which.");
    v.optional("limit", limit, "An end.", at_least(0));
    v.optional("sizes", sizes, "Sizes.", positive());
    v.optional("table", table, "Names and numbers.");
    v.list("parts", parts, "Parts.");
  }
};

struct Sample {
  std::string name = "x";
  Section training;
  Section other;
  void fields(FieldVisitor& v) {
    v.optional("name", name, "A name.");
    v.group("training", training, "One section.");
    v.group("other", other, "Another.");
  }
  void check(Problems& problems) const {
    if (training.limit && *training.limit > training.steps) {
      problems.add("training.limit", "must not be larger than training.steps");
    }
    if (other.enable && other.parts.empty()) {
      problems.add("other.parts", "at least one is needed");
    }
  }
};

Sample load(const std::string& text) {
  return from_node<Sample>(parse_toml(text, "run.toml"), "run.toml");
}

std::string problem(const std::string& text) {
  return error_of([&] { load(text); });
}

TEST(Config, ReadsEveryKindOfField) {
  const Sample s = load(R"(
name = "y"
[training]
steps = 3
rate = 0
enable = true
kind = "fancy"
limit = 2
sizes = [4, 5]
table = {a = 1}
[[training.parts]]
path = "p"
[[training.parts]]
path = "q"
weight = 2
)");
  EXPECT_EQ(s.name, "y");
  EXPECT_EQ(s.training.steps, 3);
  EXPECT_EQ(s.training.rate, 0);  // an integer is accepted as a number
  EXPECT_TRUE(s.training.enable);
  EXPECT_EQ(s.training.kind, Kind::fancy);
  EXPECT_EQ(s.training.limit, 2);
  EXPECT_THAT(s.training.sizes, ::testing::ElementsAre(4, 5));
  EXPECT_EQ(s.training.table.at("a"), 1);
  ASSERT_EQ(s.training.parts.size(), 2U);
  EXPECT_EQ(s.training.parts[1].weight, 2);
}

TEST(Config, NamesFileLineAndColumnOfAllProblemsInOneError) {
  const std::string message = problem("[training]\nstps = 3\nrate = 2.0\nenable = 1\nkind = \"fansy\"\nsizes = [0]\n");
  EXPECT_THAT(message, HasSubstr("run.toml:2:1: training.stps: unknown key; did you mean 'training.steps'?"));
  EXPECT_THAT(message, HasSubstr("run.toml:3:1: training.rate: expected at least 0 and less than 1, found number 2"));
  EXPECT_THAT(message, HasSubstr("run.toml:4:1: training.enable: expected true or false, found integer 1"));
  EXPECT_THAT(
      message,
      HasSubstr("run.toml:5:1: training.kind: expected one of \"plain\", \"fancy\" (did you mean \"fancy\"?)"));
  EXPECT_THAT(message, HasSubstr("run.toml:6:1: training.sizes: expected more than 0"));
}

TEST(Config, NamesTheTableThatAKeyBelongsTo) {
  EXPECT_THAT(problem("steps = 3\n"), HasSubstr("'steps' belongs in [training] or [other]"));
  EXPECT_THAT(problem("[trainign]\nsteps = 3\n"), HasSubstr("did you mean 'training'?"));
  EXPECT_THAT(
      problem("[training]\n[[training.parts]]\nweight = 1.0\n"), HasSubstr("training.parts.0.path: is missing"));
  EXPECT_EQ(problem("[[training]]\nsteps = 3\n"), "run.toml:1:3: training: expected a table, found a list of 1");
}

TEST(Config, NeverConvertsOneTypeToAnother) {
  EXPECT_THAT(problem("[training]\nsteps = 3.0\n"), HasSubstr("expected an integer, found number 3; write 3, without"));
  EXPECT_THAT(
      problem("[training]\nsteps = 1e2\n"), HasSubstr("found number 100; write 100, without point or exponent"));
  EXPECT_THAT(problem("[training]\nsteps = 3.5\n"), EndsWith("expected an integer, found number 3.5"));
  EXPECT_THAT(problem("[training]\nsteps = \"3\"\n"), HasSubstr("expected an integer, found string \"3\""));
  EXPECT_THAT(problem("[training]\nrate = true\n"), HasSubstr("expected a number, found true"));
  EXPECT_THAT(problem("training = 3\n"), HasSubstr("expected a table, found integer 3"));
  EXPECT_THAT(problem("[training]\nparts = 3\n"), HasSubstr("expected a list of tables"));
  EXPECT_THAT(problem("[training]\nrate = nan\n"), HasSubstr("training.rate"));
}

TEST(Config, RefusesADuplicateKey) {
  EXPECT_THAT(problem("[training]\nsteps = 3\nsteps = 4\n"), HasSubstr("run.toml:3:"));
}

TEST(Config, ReportsRulesBetweenFieldsAtTheirLine) {
  EXPECT_THAT(
      problem("[training]\nsteps = 3\nlimit = 4\n"), HasSubstr("run.toml:3:1: training.limit: must not be larger"));
}

TEST(Config, ReportsNoRuleBetweenFieldsOfAKeyThatCouldNotBeRead) {
  EXPECT_EQ(problem("[other]\nenable = true\n"), "run.toml:1:2: other.parts: at least one is needed");
  EXPECT_EQ(
      problem("[other]\nenable = true\nparts = 3\n"),
      "run.toml:3:1: other.parts: expected a list of tables, [[other.parts]], found integer 3");
}

TEST(Config, CommandLineWinsOverFileWinsOverDefault) {
  const auto file = std::filesystem::temp_directory_path() / "lehr_config_test.toml";
  write_file_atomically(file, "[training]\nsteps = 3\nrate = 0.25\n[[training.parts]]\npath = \"p\"\n");
  const auto s = load_config<Sample>(
      {.file = file,
       .overrides = {
           {"training.steps", "7"},
           {"training.parts.0.path", "bare/word"},
           {"name", "\"quoted\""},
           {"other.sizes", "[9]"}}});
  EXPECT_EQ(s.training.steps, 7);
  EXPECT_EQ(s.training.rate, 0.25);
  EXPECT_EQ(s.training.parts[0].path, "bare/word");
  EXPECT_EQ(s.name, "quoted");
  EXPECT_THAT(s.other.sizes, ::testing::ElementsAre(9));
  EXPECT_EQ(s.other.rate, 0.5);
  EXPECT_THAT(
      [&] {
        load_config<Sample>({.file = file, .overrides = {{"training.stesp", "7"}}});
      },
      Throws<Error>(Property(
          &Error::what, HasSubstr("command line: --training.stesp: unknown key; did you mean 'training.steps'?"))));
  EXPECT_THAT(
      [&] {
        load_config<Sample>({.file = file, .overrides = {{"training.steps.x", "7"}}});
      },
      Throws<Error>(
          Property(&Error::what, HasSubstr("command line: --training.steps: expected an integer, found a table"))));
  EXPECT_EQ(load_config<Sample>({.file = file, .overrides = {{"name", ""}}}).name, "");
  EXPECT_THAT(
      [&] {
        load_config<Sample>({.file = file, .overrides = {{"name", R"("a\.b")"}}});
      },
      Throws<Error>(Property(&Error::what, HasSubstr(R"(in double quotes \\ for each backslash)"))));
  std::filesystem::remove(file);
}

TEST(Config, WritesATextThatReadsBackTheSame) {
  Sample s = load("[training]\nrate = 0.1\nlimit = 5\n[[training.parts]]\npath = \"a \\\"b\\\"\"\nweight = 1e-30\n");
  const std::string text = to_toml(s);
  EXPECT_EQ(to_toml(load(text)), text);
  EXPECT_THAT(text, HasSubstr("# How fast.\nrate = 0.1\n"));
  EXPECT_EQ(to_json(to_node(from_node<Sample>(to_node(s), "node"))), to_json(to_node(s)));
}

TEST(Config, ATableMayTakeOtherKeysAsTheyAre) {
  const auto load_open = [](const std::string& text) {
    return from_node<WithOpen>(parse_toml(text, "run.toml"), "run.toml");
  };
  const std::string text = "[open]\nsize = 2\nlist = [1, 2]\ndeep = {a = {b = \"c\"}}\nsteps = 0.5\n";
  WithOpen read = load_open(text);
  EXPECT_EQ(read.open.size, 2);
  EXPECT_EQ(to_json(read.open.rest), R"({"list":[1,2],"deep":{"a":{"b":"c"}},"steps":0.5})");
  EXPECT_EQ(read.open.rest.at("steps").origin(), "run.toml:5:1");
  EXPECT_EQ(to_toml(load_open(to_toml(read))), to_toml(read));
  EXPECT_THAT(to_toml(read), HasSubstr("# Whatever else.\nlist = [1, 2]\n"));
  EXPECT_EQ(to_json(to_node(from_node<WithOpen>(to_node(read), "node"))), to_json(to_node(read)));
  EXPECT_THAT(help_text<WithOpen>(), HasSubstr("any other key\n"));
  EXPECT_EQ(to_json(load_open("").open.rest), "{}");
}

TEST(Config, HelpNamesEveryField) {
  const std::string help = help_text<Sample>();
  for (const char* word :
       {"[training]", "steps", "How many steps.", "default 10", "plain|fancy", "[[training.parts]]", "required"}) {
    EXPECT_THAT(help, HasSubstr(word));
  }
}

struct Flags {
  std::string model;
  bool quiet = false;
  bool tensors = true;
  int64_t count = 1;
  std::vector<std::string> files;
  int64_t max_rows = 1;
  void fields(FieldVisitor& v) {
    v.required("model", model, "A folder.");
    v.optional("max_rows", max_rows, "At most so many.", positive());
    v.optional("quiet", quiet, "Say less.");
    v.optional("tensors", tensors, "List them.");
    v.optional("count", count, "How many.", positive());
    v.optional("files", files, "Some files.");
  }
};

TEST(CommandLine, ReadsOptionsFlagsPositionalsAndOverrides) {
  Flags flags;
  const Arguments rest = parse_arguments(
      {"a.toml",
       "--model",
       "m",
       "--quiet",
       "--no-tensors",
       "--count=3",
       "--files",
       "x",
       "--files",
       "y",
       "--training.steps=5"},
      ConfigObject::of(flags));
  EXPECT_EQ(flags.model, "m");
  EXPECT_TRUE(flags.quiet);
  EXPECT_FALSE(flags.tensors);
  EXPECT_EQ(flags.count, 3);
  EXPECT_THAT(flags.files, ::testing::ElementsAre("x", "y"));
  EXPECT_THAT(rest.positionals, ::testing::ElementsAre("a.toml"));
  EXPECT_EQ(rest.overrides.at(0), std::pair(std::string("training.steps"), std::string("5")));
  EXPECT_THAT(
      rest.options, ::testing::ElementsAre("--model", "--quiet", "--no-tensors", "--count", "--files", "--files"));
}

TEST(CommandLine, HelpNamesDefaults) {
  Flags flags;
  const std::string help = arguments_help(ConfigObject::of(flags));
  EXPECT_THAT(help, HasSubstr("--model VALUE  (required)\n"));
  EXPECT_THAT(help, HasSubstr("--quiet\n"));
  EXPECT_THAT(help, HasSubstr("--count VALUE  (default 1)\n"));
  EXPECT_THAT(help, HasSubstr("--files VALUE\n"));
}

TEST(CommandLine, ReportsWrongArguments) {
  auto parse = [](std::vector<std::string> args) {
    return [args] {
      Flags flags;
      parse_arguments(args, ConfigObject::of(flags));
    };
  };
  EXPECT_THAT(parse({"--modle", "m"}), Throws<Error>(Property(&Error::what, HasSubstr("did you mean --model?"))));
  EXPECT_THAT(parse({"--model"}), Throws<Error>(Property(&Error::what, HasSubstr("expected a value"))));
  EXPECT_THAT(parse({}), Throws<Error>(Property(&Error::what, HasSubstr("model: is missing"))));
  EXPECT_THAT(parse({"--model", "m", "--count", "0"}), Throws<Error>(Property(&Error::what, HasSubstr("more than 0"))));
  EXPECT_THAT(
      parse({"--model", "m", "-count", "3"}),
      Throws<Error>(Property(
          &Error::what, EndsWith("command line: -count: options begin with two dashes; did you mean --count?"))));
  EXPECT_THAT(
      parse({"--model", "m", "--job.dump_folder=caf\xE9"}),
      Throws<Error>(Property(&Error::what, HasSubstr("--job.dump_folder: the value is not valid UTF-8"))));
  // An option is spelled as in the help, a key as in a config.
  EXPECT_THAT(
      parse({"--model", "m", "--max_rows", "0"}),
      Throws<Error>(Property(&Error::what, HasSubstr("command line: --max-rows: expected"))));
  EXPECT_EQ(option_name("training.seq_len"), "--training.seq_len");
}

TEST(CommandLine, NamesTheKeysOfTheConfigThatEndWithAnUnknownOption) {
  const auto parse = [](std::vector<std::string> args) {
    return [args] {
      Flags flags;
      parse_arguments(args, ConfigObject::of(flags), keys_of<Sample>());
    };
  };
  EXPECT_THAT(
      parse({"--steps=5"}),
      Throws<Error>(Property(&Error::what, EndsWith("option; did you mean --training.steps or --other.steps?"))));
  EXPECT_THAT(
      parse({"-steps", "5"}),
      Throws<Error>(Property(&Error::what, EndsWith("dashes; did you mean --training.steps or --other.steps?"))));
  EXPECT_THAT(
      parse({"--path=p"}), Throws<Error>(Property(&Error::what, HasSubstr("did you mean --training.parts.0.path or"))));
  EXPECT_THAT(parse({"--cuont=5"}), Throws<Error>(Property(&Error::what, EndsWith("did you mean --count?"))));
}

TEST(Json, NamesLineAndColumnOfASyntaxError) {
  EXPECT_THAT(
      [] { parse_json("{\n \"a\": }\n", "c.json"); }, Throws<Error>(Property(&Error::what, HasSubstr("c.json:2:"))));
}

TEST(Json, RefusesADuplicateKeyInOneObject) {
  EXPECT_THAT(
      [] { parse_json(R"({"x": [1, {"b": 1}, {"b": {"c": 1, "d": [], "c": 2}}]})", "t"); },
      Throws<Error>(Property(&Error::what, ::testing::StrEq("t: x[2].b.c: duplicate key"))));
  EXPECT_THAT(
      [] { parse_json(R"([[], {}, {"a": 1, "a": 1}])", "t"); },
      Throws<Error>(Property(&Error::what, ::testing::StrEq("t: [2].a: duplicate key"))));
  EXPECT_EQ(
      to_json(parse_json(R"([{"a": {"a": [{"a": 1}, {"a": 1}]}}, {"a": 1}])", "t")),
      R"([{"a":{"a":[{"a":1},{"a":1}]}},{"a":1}])");
}

TEST(Json, NamesANumberThatDoesNotFit) {
  const auto place_of = [](const char* text) { return [text] { parse_json(text, "t"); }; };
  EXPECT_THAT(
      place_of(R"({"x": [1, {"b": 1e999}]})"),
      Throws<Error>(Property(&Error::what, ::testing::StartsWith("t: x[1].b: invalid JSON: number overflow"))));
  EXPECT_THAT(
      place_of(R"({"x": [1, -1e999]})"),
      Throws<Error>(Property(&Error::what, ::testing::StartsWith("t: x[1]: invalid JSON: number overflow"))));
}

TEST(Json, ReadsInfinityAsALargeNumber) {
  const Node node = parse_json(R"({"a": [0.0, Infinity, -Infinity], "b": "\"Infinity", "Infinity": 1})", "t");
  EXPECT_EQ(to_json(node), R"({"a":[0.0,3.4e+38,-3.4e+38],"b":"\"Infinity","Infinity":1})");
  EXPECT_THAT(
      [] { parse_json("{\"a\": Infinity, \"b\": }", "t"); },
      Throws<Error>(Property(&Error::what, ::testing::StartsWith("t:1:22: invalid JSON"))));
}

// Functions that call themselves per level would exhaust the stack.
TEST(Json, RefusesDeepNesting) {
  constexpr size_t kDeep = 100'000;
  EXPECT_THAT(
      [] { parse_json("{\"a\":" + std::string(kDeep, '['), "t"); },
      Throws<Error>(Property(&Error::what, HasSubstr("nested more than 256 levels deep"))));
  EXPECT_NO_THROW(parse_json(std::string(256, '[') + std::string(256, ']'), "t"));
}

TEST(Json, KeepsOrderAndEveryBitOfNumbers) {
  const std::string text = R"({"z":1,"a":[0.1,1e-310,-9223372036854775808,true,null,"\u00e9"]})";
  const Node node = parse_json(text, "t");
  EXPECT_EQ(to_json(parse_json(to_json(node), "t")), to_json(node));
  EXPECT_EQ(node.entries().front().first, "z");
  EXPECT_EQ(node.at("a").at(1).as_double(), 1e-310);
  EXPECT_THAT([&] { node.at("b"); }, Throws<Error>(Property(&Error::what, HasSubstr("'b' is missing"))));
  EXPECT_THAT(
      [&] { node.at("z").as_string(); },
      Throws<Error>(Property(&Error::what, HasSubstr("z: expected a string, found integer 1"))));
}

}  // namespace
}  // namespace lehr
