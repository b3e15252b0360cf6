#include "hub/weight_files.h"

#include <gtest/gtest.h>

#include "hub/json_file.h"
#include "hub/weight_files_writer.h"
#include "tests/hub/hub_testing.h"
#include "tests/support/shared.h"

namespace miles {
namespace {

using test::data_error;
using test::expect_parts;
using test::ScratchDir;

constexpr const char* kIndex = "model.safetensors.index.json";

std::vector<float> read_vector(const WeightFiles& files, const std::string& name, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  files.read(name, Tensor::view(std::span(values), {count}));
  return values;
}

/// Two shards: a in the first, b and c in the second; the index is the test's own.
void write_shards(const ScratchDir& dir, const std::string& index) {
  test::write_vectors(dir / "one.safetensors", {{"a", {1, 2}}});
  test::write_vectors(dir / "two.safetensors", {{"b", {3}}, {"c", {4}}});
  write_file_atomically(dir / kIndex, index);
}

std::string error_of_index(const std::string& index) {
  const ScratchDir dir;
  write_shards(dir, index);
  const std::string message = data_error([&] { WeightFiles files(dir.path()); });
  expect_parts(message, {(dir / kIndex).string()});
  return message;
}

TEST(WeightFiles, ReadsShardsThroughTheirIndex) {
  const ScratchDir dir;
  write_shards(dir, R"({"metadata":{"total_size":16},
                        "weight_map":{"b":"two.safetensors","a":"one.safetensors"}})");
  const WeightFiles files(dir.path());
  EXPECT_EQ(files.names(), (std::vector<std::string>{"a", "b"}));  // the map counts, not the shard
  EXPECT_EQ(read_vector(files, "a", 2), (std::vector<float>{1, 2}));
  EXPECT_EQ(read_vector(files, "b", 1), (std::vector<float>{3}));
  EXPECT_FALSE(files.contains("c"));
}

TEST(WeightFiles, TheSingleFileCountsWhereBothAreThere) {
  const ScratchDir dir;
  write_shards(dir, R"({"weight_map":{"a":"one.safetensors"}})");
  test::write_vectors(dir / "model.safetensors", {{"a", {9}}});
  EXPECT_EQ(read_vector(WeightFiles(dir.path()), "a", 1), (std::vector<float>{9}));
}

TEST(WeightFiles, ReadingConvertsToTheDestinationsType) {
  const ScratchDir dir;
  test::write_vectors(dir / "model.safetensors", {{"a", {1.0F, 0x1.018p0F}}});
  std::vector<BFloat16> values(2);
  WeightFiles(dir.path()).read("a", Tensor::view(std::span(values), {2}));
  EXPECT_EQ(values[0].bits, 0x3F80);
  EXPECT_EQ(values[1].bits, 0x3F81);
}

TEST(WeightFiles, ADirectoryWithoutWeightsIsRefused) {
  const ScratchDir dir;
  expect_parts(data_error([&] { WeightFiles files(dir.path()); }),
               {dir.path().string(), "model.safetensors", kIndex});
  expect_parts(data_error([&] { WeightFiles files(dir / "none"); }),
               {(dir / "none").string(), "no such directory"});
}

TEST(WeightFiles, AnIndexThatNamesAbsentThingsIsRefused) {
  expect_parts(error_of_index(R"({"weight_map":{"a":"three.safetensors"}})"),
               {"three.safetensors", "(for a)", "not there"});
  expect_parts(error_of_index(R"({"weight_map":{"a":"one.safetensors","z":"one.safetensors"}})"),
               {"one.safetensors holds z", "does not"});
}

TEST(WeightFiles, AnIndexThatIsNoIndexIsRefused) {
  expect_parts(error_of_index("{\n\"weight_map\": {"), {"line 2", "not valid JSON"});
  expect_parts(error_of_index("{}"), {"weight_map is missing"});
  expect_parts(error_of_index(R"({"weight_map":{}})"), {"weight_map", "empty"});
  expect_parts(error_of_index(R"({"weight_map":{"a":1}})"), {"the shard of a"});
}

TEST(WeightFiles, AnIndexCannotReachBeyondItsDirectory) {
  for (const char* shard : {"../one.safetensors", "/etc/passwd", "..", ""})
    expect_parts(error_of_index(fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", shard)),
                 {"the shard of a", shard, "beside the index"});
}

TEST(WeightFiles, ADamagedShardIsFoundAtOnce) {
  const ScratchDir dir;
  write_shards(dir, R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const std::string whole = read_file(dir / "two.safetensors");
  write_file_atomically(dir / "two.safetensors", whole.substr(0, whole.size() - 1));
  expect_parts(data_error([&] { WeightFiles files(dir.path()); }),
               {"two.safetensors", "cut short"});
}

TEST(WeightFiles, AnotherShapeOrTypeIsRefused) {
  const ScratchDir dir;
  test::write_raw_safetensors(dir / "model.safetensors",
                              R"({"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                              R"("i":{"dtype":"I64","shape":[1],"data_offsets":[8,16]},)"
                              R"("d":{"dtype":"F64","shape":[1],"data_offsets":[16,24]}})",
                              24);
  const WeightFiles files(dir.path());
  expect_parts(data_error([&] { read_vector(files, "a", 2); }),
               {"model.safetensors", "tensor a", "found shape [1, 2]", "expected [2]"});
  expect_parts(data_error([&] { read_vector(files, "i", 1); }),
               {"model.safetensors", "tensor i", "I64"});
  expect_parts(data_error([&] { read_vector(files, "d", 1); }),
               {"model.safetensors", "tensor d", "F64"});
  expect_parts(data_error([&] { read_vector(files, "z", 1); }), {"has no tensor z"});
}

TEST(WeightFilesWriter, SplitsAtTheLimitAndNeverATensor) {
  const ScratchDir dir;
  const std::vector<float> five = {1, 2, 3, 4, 5}, two = {6, 7};
  WeightFilesWriter writer(
      dir / "model",
      {{"five", DType::f32, {5}}, {"two", DType::f32, {2}}, {"too", DType::f32, {2}}}, 16);
  writer.write("five", Tensor::view(std::span(five), {5}));  // beyond the limit: a shard of its own
  writer.write("two", Tensor::view(std::span(two), {2}));
  writer.write("too", Tensor::view(std::span(two), {2}));
  EXPECT_FALSE(std::filesystem::exists(dir / "model" / kIndex));
  writer.finish();

  const nlohmann::json index = read_json_object(dir / "model" / kIndex);
  EXPECT_EQ(index["metadata"]["total_size"], 36);
  EXPECT_EQ(index["weight_map"]["five"], "model-00001-of-00002.safetensors");
  EXPECT_EQ(index["weight_map"]["too"], "model-00002-of-00002.safetensors");
  const WeightFiles files(dir / "model");
  EXPECT_EQ(read_vector(files, "five", 5), five);
  EXPECT_EQ(read_vector(files, "too", 2), two);
}

TEST(WeightFilesWriter, WhatIsWrittenReplacesTheOtherSpelling) {
  const ScratchDir dir;
  const auto write = [&](std::vector<float> values, int64_t shard_bytes) {
    WeightFilesWriter writer(dir.path(), {{"a", DType::f32, {1}}, {"b", DType::f32, {1}}},
                             shard_bytes);
    writer.write("a", Tensor::view(std::span(values).first(1), {1}));
    writer.write("b", Tensor::view(std::span(values).last(1), {1}));
    writer.finish();
  };
  write({1, 2}, 8);
  EXPECT_EQ(read_vector(WeightFiles(dir.path()), "b", 1), (std::vector<float>{2}));
  write({3, 4}, 4);
  EXPECT_EQ(read_vector(WeightFiles(dir.path()), "b", 1), (std::vector<float>{4}));
  write({5, 6}, 8);
  EXPECT_EQ(read_vector(WeightFiles(dir.path()), "b", 1), (std::vector<float>{6}));
  EXPECT_FALSE(std::filesystem::exists(dir / kIndex));
}

}  // namespace
}  // namespace miles
