// What tests share: where the shared models and data are, and a scratch directory that cleans up.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

namespace miles::test {

/// The folder with real models, tokenizers and data: $MILES_SHARED, else ../shared beside the
/// checkout.
std::filesystem::path shared_dir();

/// A fresh directory, removed with its content at the end of the scope.
class ScratchDir {
 public:
  ScratchDir();
  ~ScratchDir();
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace miles::test

/// Skips the test, saying what is missing, when the shared folder lacks `name`; fails where CI is
/// set.
#define MILES_NEED_SHARED(name)                                                             \
  if (!std::filesystem::exists(::miles::test::shared_dir() / (name))) {                     \
    if (std::getenv("CI") != nullptr)                                                       \
      FAIL() << (name) << " is not under MILES_SHARED=" << ::miles::test::shared_dir();     \
    GTEST_SKIP() << (name) << " is not under MILES_SHARED=" << ::miles::test::shared_dir(); \
  }
