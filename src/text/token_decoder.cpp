#include "text/token_decoder.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "hub/json_file.h"
#include "text/byte_level.h"
#include "text/text_pattern.h"
#include "text/utf8.h"

namespace miles {
namespace {

using Pieces = std::vector<std::string>;

void emit(std::string piece, Pieces& out) {
  if (!piece.empty()) out.push_back(std::move(piece));
}

/// Characters of the byte-level alphabet back to bytes; the bytes back to text.
class ByteLevelStage final : public DecodeStage {
 public:
  void push(std::string_view piece, Pieces& out) override {
    std::string text;
    repair_.push(bytes_of(piece), text);
    emit(std::move(text), out);
  }
  void finish(Pieces& out) override {
    std::string text;
    repair_.finish(text);
    emit(std::move(text), out);
  }
  std::unique_ptr<DecodeStage> fresh() const override { return std::make_unique<ByteLevelStage>(); }

 private:
  /// A token with a character outside the alphabet (an added one) is its own text.
  static std::string bytes_of(std::string_view token) {
    std::string bytes;
    for (size_t at = 0; at < token.size();) {
      const Utf8Step step = utf8_step(token, at);
      const int byte = byte_of_character(step.code_point);
      if (byte < 0) return std::string(token);
      bytes += static_cast<char>(byte);
      at += step.length;
    }
    return bytes;
  }

  Utf8Repair repair_;
};

/// Runs of tokens <0x00> … <0xFF> to the text of those bytes. A run that is not UTF-8 becomes one
/// U+FFFD for each byte, so nothing of a run is decided before it ends.
class ByteFallbackStage final : public DecodeStage {
 public:
  void push(std::string_view piece, Pieces& out) override {
    if (const int byte = byte_of_token(piece); byte >= 0) {
      run_ += static_cast<char>(byte);
      return;
    }
    finish(out);
    out.emplace_back(piece);
  }
  void finish(Pieces& out) override {
    if (is_valid_utf8(run_)) {
      emit(run_, out);
    } else {
      out.insert(out.end(), run_.size(), "\xEF\xBF\xBD");
    }
    run_.clear();
  }
  std::unique_ptr<DecodeStage> fresh() const override {
    return std::make_unique<ByteFallbackStage>();
  }

 private:
  static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  }
  static int byte_of_token(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    const int high = hex_digit(token[3]);
    const int low = hex_digit(token[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
  }

  std::string run_;  // bytes
};

class ReplaceStage final : public DecodeStage {
 public:
  ReplaceStage(TextPattern pattern, std::string replacement)
      : pattern_(std::move(pattern)), replacement_(std::move(replacement)) {}
  void push(std::string_view piece, Pieces& out) override {
    out.push_back(pattern_.replace_all(piece, replacement_));
  }
  std::unique_ptr<DecodeStage> fresh() const override {
    return std::make_unique<ReplaceStage>(pattern_, replacement_);
  }

 private:
  TextPattern pattern_;
  std::string replacement_;
};

struct StripOptions {
  std::string content;  // the character to strip
  int64_t start = 0;    // at most so many at the start
  int64_t stop = 0;     // at most so many at the end
  bool whole = false;   // of the whole text, not of each token
};

class StripStage final : public DecodeStage {
 public:
  explicit StripStage(StripOptions options) : options_(std::move(options)), left_(options_.start) {}
  void push(std::string_view piece, Pieces& out) override {
    std::string text = std::move(held_).append(piece);
    held_.clear();
    for (; left_ > 0 && !text.empty(); --left_) {
      if (!text.starts_with(options_.content))
        left_ = 1;
      else
        text.erase(0, options_.content.size());
    }
    for (int64_t i = 0; i < options_.stop && text.ends_with(options_.content); ++i) {
      held_ += options_.content;
      text.resize(text.size() - options_.content.size());
    }
    emit(std::move(text), out);
    if (options_.whole) return;
    held_.clear();
    left_ = options_.start;
  }
  std::unique_ptr<DecodeStage> fresh() const override {
    return std::make_unique<StripStage>(options_);
  }

 private:
  StripOptions options_;
  int64_t left_;      // characters that may still be stripped at the start
  std::string held_;  // what would be stripped if the text ended here
};

/// "▁" back to a space; where one was put before the text, the first token has none.
class MetaspaceStage final : public DecodeStage {
 public:
  MetaspaceStage(std::string replacement, bool prepended)
      : replacement_(std::move(replacement)), prepended_(prepended) {}
  void push(std::string_view piece, Pieces& out) override {
    const bool drop = first_ && prepended_;
    first_ = false;
    out.push_back(TextPattern::literal(replacement_).replace_all(piece, drop ? "" : " "));
  }
  std::unique_ptr<DecodeStage> fresh() const override {
    return std::make_unique<MetaspaceStage>(replacement_, prepended_);
  }

 private:
  std::string replacement_;
  bool prepended_;
  bool first_ = true;
};

/// No decoder: a space between two tokens.
class JoinStage final : public DecodeStage {
 public:
  void push(std::string_view piece, Pieces& out) override {
    if (!first_) out.emplace_back(" ");
    first_ = false;
    out.emplace_back(piece);
  }
  std::unique_ptr<DecodeStage> fresh() const override { return std::make_unique<JoinStage>(); }

 private:
  bool first_ = true;
};

std::unique_ptr<DecodeStage> read_strip(const JsonFields& fields, bool whole) {
  StripOptions options{.content = fields.text("content"),
                       .start = fields.integer("start"),
                       .stop = fields.integer("stop"),
                       .whole = whole};
  if (options.content.empty() || options.start < 0 || options.stop < 0)
    fail(ErrorCode::data, "{}: Strip needs one character, and counts that are not negative",
         fields.where());
  return std::make_unique<StripStage>(std::move(options));
}

std::unique_ptr<DecodeStage> read_replace(const JsonFields& fields) {
  const nlohmann::json* pattern = fields.find("pattern");
  return std::make_unique<ReplaceStage>(
      TextPattern::from_json(pattern ? *pattern : nlohmann::json(), fields.where()),
      fields.text("content"));
}

std::unique_ptr<DecodeStage> read_metaspace(const JsonFields& fields) {
  const bool prepended = fields.find_flag("add_prefix_space").value_or(true) &&
                         fields.find_text("prepend_scheme").value_or("always") != "never";
  return std::make_unique<MetaspaceStage>(fields.text("replacement"), prepended);
}

}  // namespace

DecodeStream::DecodeStream(std::vector<std::unique_ptr<DecodeStage>> stages)
    : stages_(std::move(stages)) {}

void DecodeStream::run(size_t stage, std::vector<std::string> pieces, std::string& text) {
  for (; stage < stages_.size(); ++stage) {
    Pieces next;
    for (const std::string& piece : pieces) stages_[stage]->push(piece, next);
    pieces = std::move(next);
  }
  for (const std::string& piece : pieces) text += piece;
}

void DecodeStream::push(std::string_view token, std::string& text) {
  run(0, {std::string(token)}, text);
}

void DecodeStream::finish(std::string& text) {
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    Pieces rest;
    stages_[stage]->finish(rest);
    run(stage + 1, std::move(rest), text);
  }
}

TokenDecoder TokenDecoder::from_json(const nlohmann::json& decoder, const std::string& where) {
  TokenDecoder made;
  if (decoder.is_null()) {
    made.stages_.push_back(std::make_unique<JoinStage>());
  } else {
    made.add(decoder, where);
  }
  return made;
}

DecodeStream TokenDecoder::stream() const {
  std::vector<std::unique_ptr<DecodeStage>> stages;
  for (const auto& stage : stages_) stages.push_back(stage->fresh());
  return DecodeStream(std::move(stages));
}

void TokenDecoder::add(const nlohmann::json& decoder, const std::string& where) {
  if (!decoder.is_object())
    fail(ErrorCode::data, "{}: expected an object, found {}", where, decoder.dump());
  const JsonFields fields(decoder, where);
  const std::string type = fields.text("type");
  if (type == "Sequence") {
    const nlohmann::json* parts = fields.find("decoders");
    if (parts == nullptr || !parts->is_array())
      fail(ErrorCode::data, "{}: a Sequence needs an array 'decoders'", where);
    for (size_t i = 0; i < parts->size(); ++i)
      add((*parts)[i], fmt::format("{}: decoders[{}]", where, i));
  } else if (type == "Strip") {
    stages_.push_back(read_strip(fields, joined_));
  } else if (type == "Fuse") {
    joined_ = true;
  } else if (joined_) {
    fail(ErrorCode::data,
         "{}: the decoder {} follows one that joins all tokens; only Strip may follow there", where,
         type);
  } else if (type == "ByteLevel") {
    stages_.push_back(std::make_unique<ByteLevelStage>());
    joined_ = true;
  } else if (type == "ByteFallback") {
    stages_.push_back(std::make_unique<ByteFallbackStage>());
  } else if (type == "Replace") {
    stages_.push_back(read_replace(fields));
  } else if (type == "Metaspace") {
    stages_.push_back(read_metaspace(fields));
  } else {
    fail(ErrorCode::data,
         "{}: the decoder type '{}' is not supported; supported are ByteLevel, ByteFallback, Fuse, "
         "Replace, Strip, Metaspace and Sequence",
         where, type);
  }
}

}  // namespace miles
