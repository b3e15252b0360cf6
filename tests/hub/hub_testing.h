// What the tests of files share: making damaged files, and looking at the error that they cause.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "hub/safetensors_writer.h"

namespace miles::test {

/// The message of the Error{data} that `body` throws; a test failure and "" where it throws none.
inline std::string data_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

/// Expects every one of `parts` in `text`.
inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

/// A safetensors file with this header, however wrong, and this many bytes of data.
inline void write_raw_safetensors(const std::filesystem::path& path, const std::string& header,
                                  size_t data_bytes) {
  std::string content(8, '\0');
  for (size_t i = 0; i < 8; ++i) content[i] = static_cast<char>(header.size() >> (8 * i));
  write_file_atomically(path, content + header + std::string(data_bytes, '\1'));
}

/// A one-dimensional f32 tensor.
struct NamedValues {
  std::string name;
  std::vector<float> values;
};

/// A sound file of such tensors.
inline void write_vectors(const std::filesystem::path& path,
                          const std::vector<NamedValues>& tensors) {
  std::vector<TensorDeclaration> declared;
  for (const NamedValues& tensor : tensors)
    declared.push_back({.name = tensor.name,
                        .dtype = DType::f32,
                        .shape = {static_cast<int64_t>(tensor.values.size())}});
  SafetensorsWriter writer(path, declared);
  for (const NamedValues& tensor : tensors)
    writer.write(tensor.name, Tensor::view(std::span(tensor.values),
                                           {static_cast<int64_t>(tensor.values.size())}));
  writer.finish();
}

}  // namespace miles::test
