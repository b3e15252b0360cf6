#include "hub/safetensors_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "hub/safetensors.h"
#include "tests/hub/hub_testing.h"
#include "tests/support/shared.h"

namespace miles {
namespace {

using test::data_error;
using test::expect_parts;
using test::ScratchDir;

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  const ScratchDir dir;
  const std::vector<int64_t> wide = {1, -2};
  const std::vector<float> single = {0.5F, -1, 3, 4, 5, 6};
  const std::vector<BFloat16> half = {{0x3F80}, {0x7FC1}};  // a NaN keeps its payload
  {
    SafetensorsWriter writer(dir / "a",
                             {{"wide", DType::i64, {2}},
                              {"nothing", DType::f32, {0}},
                              {"single", DType::f32, {3, 2}},
                              {"half", DType::bf16, {2}}},
                             {{"step", "7"}});
    writer.write("wide", Tensor::view(std::span(wide), {2}));
    const Tensor whole = Tensor::view(std::span(single), {3, 2});
    writer.write("single", whole.rows(0, 1));  // in pieces
    writer.write("single", whole.rows(1, 2));
    writer.write("half", Tensor::view(std::span(half), {2}));
    writer.finish();
  }
  const SafetensorsFile file(dir / "a");
  EXPECT_EQ(file.metadata().at("step"), "7");
  EXPECT_EQ(file.view("single").shape(), (Shape{3, 2}));
  EXPECT_EQ(file.view("nothing").shape(), (Shape{0}));
  const auto equal = [&](const char* name, const void* data, size_t bytes) {
    return std::memcmp(file.view(name).data(), data, bytes) == 0;
  };
  EXPECT_TRUE(equal("wide", wide.data(), 16));
  EXPECT_TRUE(equal("single", single.data(), 24));
  EXPECT_TRUE(equal("half", half.data(), 4));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.view("wide").data()) % 8, 0U);
  EXPECT_FALSE(std::filesystem::exists(dir / "a.tmp"));
}

TEST(SafetensorsWriter, EveryDamagedByteIsFoundInItsTensor) {
  const ScratchDir dir;
  const std::vector<float> a = {1, 2, 3}, b = {4, 5};
  {
    SafetensorsWriter writer(dir / "f",
                             {{"a", DType::f32, {3}}, {"b \"quoted\"", DType::f32, {2}}});
    for (int64_t i = 0; i < 3; ++i) writer.write("a", Tensor::view(std::span(a), {3}).rows(i, 1));
    writer.write("b \"quoted\"", Tensor::view(std::span(b), {2}));
    writer.finish();
  }
  const std::string whole = read_file(dir / "f");
  EXPECT_EQ(SafetensorsFile(dir / "f").metadata().size(), 1U);  // "format"
  for (size_t back = 1; back <= 20; ++back) {
    std::string damaged = whole;
    damaged[whole.size() - back] = static_cast<char>(damaged[whole.size() - back] ^ 1);
    write_file_atomically(dir / "f", damaged);
    const SafetensorsFile file(dir / "f", "ask its author");
    const char* const hit = back <= 8 ? "b \"quoted\"" : "a";
    const char* const other = back <= 8 ? "a" : "b \"quoted\"";
    EXPECT_NO_THROW(file.check(other));
    expect_parts(data_error([&] { file.check(hit); }),
                 {"f: tensor ", hit, "is damaged", "ask its author"});
  }
}

TEST(Checksum, IsXxh3HoweverTheBytesCome) {
  EXPECT_EQ(Checksum().hex(), "2d06800538d394c2");  // of nothing, as the specification has it
  const std::string text(100000, 'x');
  Checksum whole, pieces;
  whole.add(std::as_bytes(std::span(text)));
  for (size_t at = 0; at < text.size(); at += 1000)
    pieces.add(std::as_bytes(std::span(text).subspan(at, 1000)));
  EXPECT_EQ(whole.hex(), pieces.hex());
}

TEST(SafetensorsWriter, AnUnfinishedFileNeverAppears) {
  const ScratchDir dir;
  write_file_atomically(dir / "a", "old");
  const std::vector<float> values = {1, 2};
  {
    SafetensorsWriter writer(dir / "a", {{"t", DType::f32, {4}}});
    writer.write("t", Tensor::view(std::span(values), {2}));
  }
  EXPECT_EQ(read_file(dir / "a"), "old");
  EXPECT_FALSE(std::filesystem::exists(dir / "a.tmp"));
}

TEST(SafetensorsWriter, AFullDiskIsAnErrorAndLeavesTheOldFile) {
  const ScratchDir dir;
  write_file_atomically(dir / "a", "old");
  std::filesystem::create_symlink("/dev/full",
                                  dir / "a.tmp");  // every write to it finds the disk full
  expect_parts(data_error([&] {
                 SafetensorsWriter writer(dir / "a", {{"t", DType::f32, {4}}});
               }),
               {(dir / "a").string(), "No space left"});
  EXPECT_EQ(read_file(dir / "a"), "old");
  EXPECT_FALSE(std::filesystem::is_symlink(dir / "a.tmp"));
}

TEST(SafetensorsWriter, AFileThatCannotFitIsRefusedBeforeItsDataIsWritten) {
  const ScratchDir dir;
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  auto* const old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {.rlim_cur = 4096, .rlim_max = old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = data_error([&] {
    SafetensorsWriter writer(dir / "a", {{"t", DType::f32, {1 << 20}}});
  });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_handler);
  expect_parts(message, {(dir / "a").string(), "4.0 MiB", "File too large"});
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(SafetensorsWriter, ADirectoryThatIsNotThereIsAnError) {
  const ScratchDir dir;
  expect_parts(data_error([&] { SafetensorsWriter writer(dir / "no" / "a", {}); }),
               {(dir / "no" / "a").string(), "No such file"});
}

TEST(SafetensorsWriterDeathTest, TensorsOutOfTurnAreOurOwnFault) {
  const ScratchDir dir;
  const std::vector<float> values = {1, 2};
  const Tensor tensor = Tensor::view(std::span(values), {2});
  SafetensorsWriter writer(dir / "a", {{"x", DType::f32, {2}}, {"y", DType::bf16, {2}}});
  EXPECT_DEATH(writer.write("y", tensor), "instead of float32 x");
  EXPECT_DEATH(writer.finish(), "finished before x");
  writer.write("x", tensor);
  EXPECT_DEATH(writer.write("y", tensor), "instead of bfloat16 y");
  EXPECT_DEATH(SafetensorsWriter(dir / "b", {{"x", DType::u8, {1}}, {"y", DType::f32, {1}}}),
               "y would be misaligned");
  EXPECT_DEATH(SafetensorsWriter(dir / "b", {{"x", DType::u8, {1}}, {"x", DType::u8, {1}}}),
               "twice");
}

}  // namespace
}  // namespace miles
