// Where a response ends: at a stop id, at a stop string, or not yet. Keeps the response's text too.
//
// A stop string counts once its text is decided. With byte fallback a run of byte tokens is decided
// by the next token of another kind, which then is the last of the output.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rollout/sampling_params.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"

namespace miles {

enum class FinishReason {
  stop_id,      // drew an id that ends a response; it is the last of the output
  stop_string,  // the text holds a stop string; the last token is the one that completed it
  length,       // the limit of new tokens or of the context
  abort,        // ended from outside; what has been drawn so far is kept
};

/// "stop", "length" or "abort": SGLang's names.
std::string_view name_of(FinishReason reason);

/// How a response ended.
struct Finish {
  FinishReason reason = FinishReason::length;
  int32_t matched_id = -1;          // the stop id, with FinishReason::stop_id
  std::string matched_string = {};  // the stop string, with FinishReason::stop_string
};

class StopChecker {
 public:
  /// `stop_ids` end a response. Without a tokenizer there is no text, and stop strings are refused
  /// with Error{flags}. The tokenizer must outlive the checker.
  StopChecker(const SamplingParams& params, std::vector<int32_t> stop_ids,
              const Tokenizer* tokenizer);

  /// Takes the next drawn id; says whether the response ends with it.
  std::optional<Finish> push(int32_t id);
  /// The response ends here for another reason. Says whether the text that was held back (half a
  /// character that will not be completed) makes a stop string after all.
  std::optional<Finish> flush();

  /// The response so far, without stop id and cut before a stop string. Valid UTF-8.
  std::string_view text() const;
  std::span<const int32_t> ids() const { return stop_ids_; }

 private:
  std::optional<Finish> scan();

  std::vector<int32_t> stop_ids_;
  std::vector<std::string> stop_;  // stop strings
  int64_t min_new_tokens_;
  int64_t drawn_ = 0;                       // ids pushed
  std::optional<Detokenizer> detokenizer_;  // none without a tokenizer
  StopStrings strings_;                     // looks at the text from search_begin_ on
  size_t search_begin_ = 0;                 // byte; moves past stop strings that came too early
  size_t text_end_ = std::string::npos;     // byte where the text is cut
};

}  // namespace miles
