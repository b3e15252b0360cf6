#include "hub/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/rng.h"
#include "hub/convert.h"
#include "tests/hub/hub_testing.h"
#include "tests/support/shared.h"

namespace miles {
namespace {

using test::data_error;
using test::expect_parts;
using test::ScratchDir;

const std::filesystem::path kFixtures =
    std::filesystem::path(MILES_SOURCE_DIR) / "tests/fixtures/hub";

/// Opens a file with this header and `data_bytes` of data; returns the error's message.
std::string error_of_header(const std::string& header, size_t data_bytes) {
  const ScratchDir dir;
  test::write_raw_safetensors(dir / "bad.safetensors", header, data_bytes);
  const std::string message = data_error([&] { SafetensorsFile file(dir / "bad.safetensors"); });
  expect_parts(message, {(dir / "bad.safetensors").string()});
  return message;
}

TEST(Safetensors, ReadsWhatTheReferenceLibraryWrote) {
  const SafetensorsFile file(kFixtures / "types.safetensors");
  EXPECT_EQ(file.tensors().size(), 6U);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const std::vector<float> expected = {0.0F, -0.0F, 1.0F, -2.5F, 0.15625F, 384.0F};
  for (const char* name : {"float32", "bfloat16", "float16"}) {
    const Tensor view = file.view(name);
    EXPECT_EQ(view.shape(), (Shape{2, 3})) << name;
    EXPECT_EQ(name_of(view.dtype()), name);
    std::vector<float> values(6);
    convert(view, Tensor::view(std::span(values), {2, 3}));
    EXPECT_EQ(values, expected) << name;
    EXPECT_TRUE(std::signbit(values[1])) << name;
  }
  EXPECT_EQ(file.view("int64").dtype(), DType::i64);
  EXPECT_EQ(file.view("empty").elements(), 0);
  EXPECT_EQ(file.find("absent"), nullptr);
}

TEST(Safetensors, ATypeWithoutUseIsRefusedOnlyWhenAskedFor) {
  const SafetensorsFile file(kFixtures / "types.safetensors");
  EXPECT_EQ(file.find("float64")->str(), "F64 []");
  expect_parts(data_error([&] { file.view("float64"); }), {"types.safetensors", "float64", "F64"});
  expect_parts(data_error([&] { file.view("absent"); }), {"types.safetensors", "absent"});
}

TEST(Safetensors, MoreExtentsThanAShapeHoldsAreRefusedOnlyWhenAskedFor) {
  const ScratchDir dir;
  test::write_raw_safetensors(
      dir / "a", R"({"t":{"dtype":"U8","shape":[1,1,1,1,2],"data_offsets":[0,2]}})", 2);
  const SafetensorsFile file(dir / "a");
  expect_parts(data_error([&] { file.view("t"); }), {"t: U8 [1, 1, 1, 1, 2]", "5 extents"});
}

TEST(Safetensors, ATruncatedFileIsRefusedAtEveryLength) {
  const ScratchDir dir;
  const std::string whole = read_file(kFixtures / "types.safetensors");
  std::ofstream(dir / "cut", std::ios::binary) << whole;
  for (size_t length = whole.size(); length-- > 0;) {
    std::filesystem::resize_file(dir / "cut", length);
    expect_parts(data_error([&] { SafetensorsFile file(dir / "cut"); }), {(dir / "cut").string()});
  }
}

TEST(Safetensors, ATruncatedFileIsRefusedNamingThePlace) {
  const ScratchDir dir;
  write_file_atomically(dir / "cut", "1234");
  expect_parts(data_error([&] { SafetensorsFile file(dir / "cut"); }),
               {"4 bytes long", "cut short"});
  write_file_atomically(dir / "cut", std::string("\x10\0\0\0\0\0\0\0{}", 10));
  expect_parts(data_error([&] { SafetensorsFile file(dir / "cut"); }),
               {"a header of 16 bytes", "only 2 follow", "cut short"});
  write_file_atomically(dir / "cut", std::string(8, '\x7F'));
  expect_parts(data_error([&] { SafetensorsFile file(dir / "cut"); }), {"at most 100000000"});
  expect_parts(error_of_header(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7),
               {"tensor t", "[0, 8]", "7 bytes of data", "cut short"});
}

TEST(Safetensors, AnAbsentFileOrADirectoryIsRefused) {
  const ScratchDir dir;
  expect_parts(data_error([&] { SafetensorsFile file(dir / "none"); }), {"none", "No such file"});
  expect_parts(data_error([&] { SafetensorsFile file(dir.path()); }), {"directory"});
}

TEST(Safetensors, BytesThatBelongToNobodyOrToTwoAreRefused) {
  const auto two = [](const char* first, const char* second) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}},)"
                       R"("b":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
                       first, second);
  };
  expect_parts(error_of_header(two("[0,4]", "[2,6]"), 6), {"a and b overlap"});
  expect_parts(error_of_header(two("[0,4]", "[0,4]"), 4), {"overlap"});
  expect_parts(error_of_header(two("[0,4]", "[6,10]"), 10), {"before tensor b", "no tensor"});
  expect_parts(error_of_header(two("[1,5]", "[5,9]"), 9), {"before tensor a", "no tensor"});
  expect_parts(error_of_header(two("[0,4]", "[4,8]"), 11), {"last 3 bytes"});
}

TEST(Safetensors, OffsetsThatDoNotMatchShapeAndTypeAreRefused) {
  const auto one = [](const char* dtype, const char* shape, const char* offsets) {
    return error_of_header(fmt::format(R"({{"t":{{"dtype":{},"shape":{},"data_offsets":{}}}}})",
                                       dtype, shape, offsets),
                           8);
  };
  expect_parts(one("\"F32\"", "[3]", "[0,8]"), {"tensor t", "hold 8 bytes", "F32 [3] takes 12"});
  expect_parts(one("\"F32\"", "[2]", "[8,0]"), {"[8, 0]"});
  expect_parts(one("\"F32\"", "[-2]", "[0,8]"), {"tensor t", "shape"});
  expect_parts(one("\"F32\"", "[2.0]", "[0,8]"), {"shape"});
  expect_parts(one("\"F32\"", "2", "[0,8]"), {"shape"});
  expect_parts(one("\"F32\"", "[2]", "[0]"), {"data_offsets"});
  expect_parts(one("\"F32\"", "[2]", "[0,18446744073709551615]"), {"data_offsets"});
  expect_parts(one("\"F32\"", "[2]", "[0,4,8]"), {"data_offsets"});
  // The product wraps around to 8 bytes.
  expect_parts(one("\"F32\"", "[4611686018427387904,4611686018427387904,2]", "[0,8]"),
               {"more than 2^63"});
  expect_parts(one("\"F31\"", "[2]", "[0,8]"), {"tensor t", "unknown dtype F31"});
  expect_parts(one("7", "[2]", "[0,8]"), {"tensor t", "dtype is 7"});
}

TEST(Safetensors, AHeaderThatIsNoObjectOfTensorsIsRefused) {
  const char* tensor = R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  expect_parts(error_of_header(fmt::format("{{{},{}}}", tensor, tensor), 1), {"'t'", "twice"});
  expect_parts(error_of_header("{\n\"t\": {,}}", 0), {"line 2, column 7"});
  expect_parts(error_of_header("[]", 0), {"object"});
  expect_parts(error_of_header(R"({"t":[]})", 0), {"tensor t"});
  expect_parts(error_of_header(R"({"t":{"shape":[1],"data_offsets":[0,1]}})", 1),
               {"dtype is missing"});
  expect_parts(error_of_header(R"({"__metadata__":{"format":1}})", 0), {"__metadata__", "format"});
  expect_parts(error_of_header("{\"\xFF\":1}", 0), {"not valid JSON"});
  expect_parts(error_of_header(std::string(100000, '['), 0), {"not valid JSON"});
}

TEST(Safetensors, AMisalignedTensorIsReadAllTheSame) {
  const ScratchDir dir;
  const std::string data("abc\0\0\x80\x3F", 7);  // three bytes, then 1.0 as f32
  const std::string header = R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                             R"("b":{"dtype":"F32","shape":[1],"data_offsets":[3,7]}})";
  std::string content(8, '\0');
  content[0] = static_cast<char>(header.size());
  write_file_atomically(dir / "odd", content + header + data);
  float value = 0;
  convert(SafetensorsFile(dir / "odd").view("b"), {&value, DType::f32, {1}});
  EXPECT_EQ(value, 1.0F);
}

TEST(Safetensors, ADroppedTensorReadsTheSameAgain) {
  const ScratchDir dir;
  std::vector<float> values(100000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = uniform(1, RngUse::test, 0, i);
  test::write_vectors(dir / "a", {{"before", {1, 2}}, {"t", values}, {"after", {3}}});
  const SafetensorsFile file(dir / "a");
  std::vector<float> read(values.size());
  for (int time = 0; time < 2; ++time) {
    std::fill(read.begin(), read.end(), 0.0F);
    convert(file.view("t"), Tensor::view(std::span(read), {100000}));
    EXPECT_EQ(read, values);
    file.drop_pages("t");
  }
}

}  // namespace
}  // namespace miles
