#include "tests/support/shared.h"

#include <cstdlib>
#include <string>

namespace miles::test {

std::filesystem::path shared_dir() {
  if (const char* given = std::getenv("MILES_SHARED")) return given;
  return std::filesystem::path(MILES_SOURCE_DIR).parent_path() / "shared";
}

ScratchDir::ScratchDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "miles-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) ADD_FAILURE() << "cannot make " << pattern;
  path_ = pattern;
}

ScratchDir::~ScratchDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace miles::test
