// The program where no GPU can be used: it starts, the CPU works, and --device cuda is one clear
// error.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/program/program.h"

namespace miles {
namespace {

using namespace test;

class WithoutGpu : public testing::Test {
 protected:
  // Where there is a driver, it shows no device.
  void SetUp() override { ::setenv("CUDA_VISIBLE_DEVICES", "-1", 1); }
  void TearDown() override { ::unsetenv("CUDA_VISIBLE_DEVICES"); }
  static Outcome generate(const std::string& device) {
    return run_miles(
        {"generate", "--model", std::string(MILES_SOURCE_DIR) + "/tests/fixtures/program/tiny",
         "--init-random", "--prompt", "1+1=", "--max-new-tokens", "3", "--device", device});
  }
};

TEST_F(WithoutGpu, TheProgramStarts) {
  const Outcome outcome = run_miles({"--version"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_NE(outcome.out.find("miles "), std::string::npos);
}

TEST_F(WithoutGpu, TheCpuWorksAndIsWhatAutoMeans) {
  for (const char* device : {"cpu", "auto"}) {
    const Outcome outcome = generate(device);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  }
}

TEST_F(WithoutGpu, CudaIsOneClearError) {
  const Outcome outcome = generate("cuda");
  EXPECT_EQ(outcome.exit_code, 5) << outcome.log;
  EXPECT_EQ(std::count(outcome.log.begin(), outcome.log.end(), '\n'), 1) << outcome.log;
  EXPECT_NE(outcome.log.find("--device cuda"), std::string::npos) << outcome.log;
  EXPECT_NE(outcome.log.find("--device cpu"), std::string::npos) << outcome.log;
}

TEST(Program, IsLinkedWithNothingOfCuda) {
  FILE* const pipe = ::popen("ldd " MILES_BINARY " 2>/dev/null", "r");
  ASSERT_NE(pipe, nullptr);
  std::string libraries;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) libraries += static_cast<char>(c);
  if (::pclose(pipe) != 0) GTEST_SKIP() << "no ldd here";
  for (const char* name : {"libcuda", "libcudart", "libcublas", "libnvidia"})
    EXPECT_EQ(libraries.find(name), std::string::npos) << libraries;
}

}  // namespace
}  // namespace miles
