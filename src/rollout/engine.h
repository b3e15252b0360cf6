// The rollout engine: responses to prompts from the weights it was last given. Its memory comes and
// goes (weights; key/value cache with workspace) while addresses stay.
//
// A response is a pure function of weights, prompt, sampling parameters, seed and the request's id:
// bit for bit the same tokens and log-probs whatever else is in the batch, in whatever order, with
// whatever page size, chunk size, sharing of prompts, preemption and overlap.
//
// With overlap the device computes a step while the host takes in what the step before has drawn
// and prepares the next. It costs a token that is computed in vain for each response that ends
// otherwise than by its length.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memory/region.h"
#include "model/config.h"
#include "model/layout.h"
#include "rollout/kv_cache.h"
#include "rollout/request.h"
#include "rollout/runner.h"
#include "rollout/scheduler.h"
#include "rollout/weights.h"
#include "text/tokenizer.h"

namespace miles {

struct EngineOptions {
  int64_t max_total_tokens = 0;        // capacity of the key/value cache; rounded up to whole pages
  int64_t page_size = 16;              // tokens
  int64_t max_running_requests = 64;   // sequences in a batch
  int64_t chunked_prefill_size = 512;  // tokens of prefill a step; decode tokens come on top
  int64_t max_context_len = 0;         // prompt and response together, tokens
  uint64_t seed = 0;                   // of the draws
  bool true_on_policy = true;          // log-probs are those of training, bit for bit
  bool overlap_schedule = true;        // a step is begun before the host knows the last one's draws
};

class Engine {
 public:
  /// Takes no memory yet: sizes are arithmetic, so that an engine on the dry device books the very
  /// same bytes. `config`, `layout` and `tokenizer` must outlive it; without tokenizer (null) there
  /// is no text and there are no stop strings. Throws Error{flags} naming option, value and what is
  /// allowed.
  Engine(const EngineOptions& options, const ModelConfig& config, const ParamLayout& layout,
         Memory memory, const Tokenizer* tokenizer);

  // Memory. Each is idempotent. Throws Error{budget} when it does not fit, and Error{internal} when
  // responses are unfinished.

  /// After it the weights are undefined, unless they were there already.
  void onload_weights();
  void offload_weights();
  /// The key/value cache and the workspace.
  void onload_kv();
  /// Drops what the cache holds.
  void offload_kv();
  bool weights_resident() const { return weights_.resident(); }
  bool kv_resident() const { return cache_.resident(); }

  /// Copies the weights at rest, flat [layout.elements()] T on the device or the host. The
  /// key/value cache holds nothing of older weights afterwards. Done when it returns.
  void update_weights(const Tensor& flat, int64_t version);
  std::optional<int64_t> weight_version() const { return weights_.version(); }
  /// Makes every weight a NaN, so that one that the next update misses cannot go unseen.
  void poison_weights();
  /// Names of the parameters that are not bit for bit those of `flat`.
  std::vector<std::string> compare_weights(const Tensor& flat);

  /// Responses in the order of the requests. All are checked before any is begun: Error{data} for a
  /// prompt that is empty, too long for the context or the cache, or holds ids that the model has
  /// not; Error{flags} for sampling parameters. Error{internal} when weights or cache are not
  /// resident or the weights are not of control.weight_version. After any exception nothing is left
  /// unfinished.
  std::vector<GenerateResult> generate(std::span<const GenerateRequest> requests,
                                       const GenerateControl& control);

  // The same step by step.

  /// Queues a request; returns its ticket. Errors as generate().
  int64_t add_request(const GenerateRequest& request);
  bool has_unfinished() const { return !scheduler_.empty(); }
  /// The next forward; returns what has ended with it. With overlap the one after it has been begun
  /// then. After an exception only abort_all() makes sense.
  std::vector<GenerateResult> step();
  /// Ends everything; returns it with what the steps so far have drawn, in order of arrival.
  std::vector<GenerateResult> abort_all();
  /// After the latest step.
  const StepStats& stats() const { return stats_; }

 private:
  /// A step under way.
  struct Flight {
    EnqueuedStep step;
    std::vector<Sequence*> draws;  // [R] whose token each is; null: it has ended meanwhile
    int64_t prefill_tokens = 0, decode_tokens = 0, preempted = 0;  // as in StepPlan
  };
  std::optional<Flight> launch();
  static void await_tokens(const Flight& flight);
  std::vector<GenerateResult> land(const Flight& flight);
  void drop_flight();
  std::vector<std::unique_ptr<Sequence>> drop_all();
  void require_idle(const char* what) const;
  void require_ready(std::optional<int64_t> version) const;
  void check_lengths(const GenerateRequest& request) const;
  void check_ids(const GenerateRequest& request) const;
  int64_t max_length(const GenerateRequest& request) const;
  std::optional<Finish> take_in(Sequence& sequence, int32_t token, float log_prob) const;
  GenerateResult result_of(const Sequence& sequence, Finish finish) const;
  void count(const Flight& flight);

  EngineOptions options_;
  const ModelConfig& config_;
  const Tokenizer* tokenizer_;  // not owned; may be null
  RolloutWeights weights_;
  KvCache cache_;
  Runner runner_;
  Scheduler scheduler_;
  std::optional<Flight> flight_;  // begun by the latest step(); its tokens are taken in by the next
  int64_t next_ticket_ = 0;
  StepStats stats_;
};

}  // namespace miles
