#include "hub/json_file.h"

#include <gtest/gtest.h>

#include "tests/hub/hub_testing.h"
#include "tests/support/shared.h"

namespace miles {
namespace {

using test::data_error;
using test::expect_parts;

TEST(JsonFile, DamageIsNamedByFileLineAndColumn) {
  const test::ScratchDir dir;
  write_file_atomically(dir / "a.json", "{\n  \"x\": 1,\n  \"y\": nul\n}");
  expect_parts(data_error([&] { read_json_object(dir / "a.json"); }),
               {(dir / "a.json").string(), "line 3, column 11"});
  expect_parts(data_error([&] { read_json_object(dir / "none.json"); }),
               {"none.json", "No such file"});
  expect_parts(data_error([] { parse_json_object("", "a"); }), {"a: line 1, column 1"});
  expect_parts(data_error([] { parse_json_object(R"({"x": 1e999})", "a"); }),
               {"a: ", "not valid JSON"});
}

TEST(JsonFile, ARepeatedKeyIsRefused) {
  expect_parts(data_error([] { parse_json_object(R"({"x":1,"x":2})", "a"); }),
               {"a: ", "'x'", "twice"});
  EXPECT_EQ(parse_json_object(R"({"x":{"y":1},"y":2})", "a")["y"], 2);
}

TEST(JsonFields, GiveWhatIsThereAndNothingForNull) {
  const auto json =
      parse_json_object(R"({"i":-3,"n":1e-6,"b":true,"t":"x","o":{"i":1},"z":null})", "a");
  const JsonFields fields(json, "a");
  EXPECT_EQ(fields.integer("i"), -3);
  EXPECT_EQ(fields.number("i"), -3.0);
  EXPECT_EQ(fields.number("n"), 1e-6);
  EXPECT_EQ(fields.find_flag("b"), true);
  EXPECT_EQ(fields.text("t"), "x");
  EXPECT_EQ(fields.find_object("o")->integer("i"), 1);
  EXPECT_FALSE(fields.has("z"));
  EXPECT_EQ(fields.find_integer("z"), std::nullopt);
}

TEST(JsonFields, AWrongTypeIsRefusedNamingFileKeyAndValue) {
  const auto json = parse_json_object(
      R"({"t":"x","n":1.5,"big":18446744073709551615,"o":{"t":[1]},"b":1})", "f.json");
  const JsonFields fields(json, "f.json");
  expect_parts(data_error([&] { fields.integer("t"); }),
               {"f.json: t is \"x\", expected an integer"});
  expect_parts(data_error([&] { fields.integer("n"); }), {"n is 1.5"});
  expect_parts(data_error([&] { fields.integer("big"); }), {"big is 18446744073709551615"});
  expect_parts(data_error([&] { fields.find_flag("b"); }), {"b is 1", "true or false"});
  expect_parts(data_error([&] { fields.find_object("t"); }), {"an object"});
  expect_parts(data_error([&] { fields.find_object("o")->text("t"); }), {"f.json: o: t is [1]"});
  expect_parts(data_error([&] { fields.number("absent"); }), {"f.json: absent is missing"});
}

}  // namespace
}  // namespace miles
