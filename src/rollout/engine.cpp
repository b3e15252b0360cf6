#include "rollout/engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "ops/drawn_ids.h"

namespace miles {
namespace {

int64_t pages_of(int64_t tokens, int64_t page_size) {
  return (tokens + page_size - 1) / page_size;
}

void require_positive(const char* name, int64_t value) {
  if (value < 1) fail(ErrorCode::flags, "{} is {}: it must be at least 1", name, value);
}

const EngineOptions& checked(const EngineOptions& options, const ModelConfig& config) {
  require_positive("--max-total-tokens", options.max_total_tokens);
  require_positive("--page-size", options.page_size);
  require_positive("--max-running-requests", options.max_running_requests);
  require_positive("--chunked-prefill-size", options.chunked_prefill_size);
  if (options.max_context_len < 1 || options.max_context_len > config.max_position_embeddings)
    fail(ErrorCode::flags,
         "prompt and response of {} tokens together: it must be 1 to {}, the model's context",
         options.max_context_len, config.max_position_embeddings);
  // Left open, the capacity follows from the other two.
  if (options.max_total_tokens > INT32_MAX - options.page_size)
    fail(ErrorCode::flags,
         "a key/value cache of {} tokens: it must have fewer than 2^31; lower --max-total-tokens, "
         "--max-running-requests or --page-size",
         options.max_total_tokens);
  return options;
}

SchedulerOptions scheduler_options(const EngineOptions& options) {
  return {.pages = pages_of(options.max_total_tokens, options.page_size),
          .page_size = options.page_size,
          .max_running = options.max_running_requests,
          .chunked_prefill = options.chunked_prefill_size};
}

RunnerLimits runner_limits(const EngineOptions& options) {
  return {.tokens = options.chunked_prefill_size + options.max_running_requests,
          .sequences = options.max_running_requests,
          .pages_per_sequence = pages_of(options.max_context_len, options.page_size),
          .positions = options.max_context_len,
          .row_bits = options.true_on_policy ? RowBits::invariant : RowBits::of_extents};
}

}  // namespace

Engine::Engine(const EngineOptions& options, const ModelConfig& config, const ParamLayout& layout,
               Memory memory, const Tokenizer* tokenizer)
    : options_(checked(options, config)),
      config_(config),
      tokenizer_(tokenizer),
      weights_(config, layout, memory),
      cache_(config, pages_of(options.max_total_tokens, options.page_size), options.page_size,
             memory),
      runner_(config, layout, runner_limits(options), memory),
      scheduler_(scheduler_options(options)) {}

void Engine::onload_weights() {
  weights_.onload();
}

void Engine::offload_weights() {
  require_idle("the weights cannot leave");
  weights_.offload();
}

void Engine::onload_kv() {
  cache_.onload();
  try {
    runner_.onload();
  } catch (...) {
    cache_.offload();
    throw;
  }
}

void Engine::offload_kv() {
  require_idle("the key/value cache cannot leave");
  cache_.offload();
  runner_.offload();
}

void Engine::update_weights(const Tensor& flat, int64_t version) {
  // When nothing is unfinished no page is held, neither by a sequence nor for a prompt: no key or
  // value that the old weights made can be found again.
  require_idle("the weights cannot change");
  MILES_CHECK(scheduler_.blocks().free_pages() == scheduler_.blocks().pages(),
              "{} pages are held by nobody",
              scheduler_.blocks().pages() - scheduler_.blocks().free_pages());
  weights_.update(runner_.stream(), flat, version);
}

void Engine::poison_weights() {
  require_idle("the weights cannot change");
  weights_.poison(runner_.stream());
}

std::vector<std::string> Engine::compare_weights(const Tensor& flat) {
  return weights_.differences(runner_.stream(), flat);
}

void Engine::require_idle(const char* what) const {
  if (has_unfinished())
    fail(ErrorCode::internal, "{} while {} responses are unfinished: finish or abort them first",
         what, scheduler_.running() + scheduler_.waiting());
}

/// Any version will do where none is given.
void Engine::require_ready(std::optional<int64_t> version) const {
  if (!weights_.resident() || !cache_.resident())
    fail(ErrorCode::internal, "generation without {} on the device: onload it first",
         weights_.resident() ? "a key/value cache" : "weights");
  const std::optional<int64_t> held = weights_.version();
  if (!held)
    fail(ErrorCode::internal, "generation before the weights were updated: their memory is new");
  if (version && *held != *version)
    fail(ErrorCode::internal,
         "generation asked of weights of version {}, where version {} is loaded", *version, *held);
}

int64_t Engine::max_length(const GenerateRequest& request) const {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  return prompt + std::min(request.params.max_new_tokens, options_.max_context_len - prompt);
}

void Engine::check_lengths(const GenerateRequest& request) const {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) fail(ErrorCode::data, "sample {}: the prompt has no tokens", request.id);
  if (prompt >= options_.max_context_len)
    fail(ErrorCode::data,
         "sample {}: a prompt of {} tokens leaves no room for a response in a context of {}: leave "
         "it out or shorten it",
         request.id, prompt, options_.max_context_len);
  // The last token's key is never needed.
  const int64_t keys = max_length(request) - 1;
  if (!scheduler_.fits(keys))
    fail(ErrorCode::data,
         "sample {}: a prompt of {} tokens and a response of up to {} need {} tokens of key/value "
         "cache, which has {}: raise --max-total-tokens, or shorten prompts or responses",
         request.id, prompt, max_length(request) - prompt, keys,
         scheduler_.blocks().pages() * options_.page_size);
}

void Engine::check_ids(const GenerateRequest& request) const {
  for (const int32_t id : request.prompt)
    if (id < 0 || id >= config_.vocab_size)
      fail(ErrorCode::data, "sample {}: its prompt holds token id {}, where the model has 0 … {}",
           request.id, id, config_.vocab_size - 1);
  for (const int32_t id : request.params.stop_token_ids)
    if (id >= config_.vocab_size)
      fail(ErrorCode::flags, "stop token id {} can never be drawn: the model has ids 0 … {}", id,
           config_.vocab_size - 1);
}

int64_t Engine::add_request(const GenerateRequest& request) {
  check_sampling_params(request.params);
  check_lengths(request);
  check_ids(request);
  std::vector<int32_t> stop_ids = request.params.stop_token_ids;
  if (!request.params.ignore_eos)
    stop_ids.insert(stop_ids.end(), config_.eos_token_ids.begin(), config_.eos_token_ids.end());
  auto sequence = std::make_unique<Sequence>();
  sequence->ticket = next_ticket_++;
  sequence->id = request.id;
  sequence->group = request.group;
  sequence->params = request.params;
  sequence->tokens = request.prompt;
  sequence->prompt_length = static_cast<int64_t>(request.prompt.size());
  sequence->max_length = max_length(request);
  sequence->stop = std::make_unique<StopChecker>(request.params, std::move(stop_ids), tokenizer_);
  scheduler_.add(std::move(sequence));
  return next_ticket_ - 1;
}

std::vector<GenerateResult> Engine::step() {
  require_ready(std::nullopt);
  if (!flight_) flight_ = launch();
  const std::optional<Flight> flight = std::exchange(flight_, std::nullopt);
  if (!flight) return {};
  await_tokens(*flight);
  if (options_.overlap_schedule) flight_ = launch();
  std::vector<GenerateResult> ended = land(*flight);
  if (scheduler_.empty()) drop_flight();  // begun for nothing
  count(*flight);
  return ended;
}

/// Enqueues the next step. None when there is nothing left to do.
std::optional<Engine::Flight> Engine::launch() {
  const StepPlan plan = scheduler_.schedule();
  if (plan.pieces.empty()) return std::nullopt;
  cache_.copy(runner_.stream(), plan.copies);
  Flight flight{.step = runner_.enqueue(make_step_batch(plan, options_.page_size, options_.seed),
                                        weights_, cache_),
                .draws = {},
                .prefill_tokens = plan.prefill_tokens,
                .decode_tokens = plan.decode_tokens,
                .preempted = plan.preempted};
  for (const Piece& piece : plan.pieces)
    if (piece.draws()) flight.draws.push_back(piece.sequence);
  scheduler_.commit(plan);
  return flight;
}

/// The next plan may count on the tokens that the step draws, whatever they are.
void Engine::await_tokens(const Flight& flight) {
  for (size_t draw = 0; draw < flight.draws.size(); ++draw)
    if (Sequence* const sequence = flight.draws[draw])
      sequence->tokens.push_back(id_of_draw(static_cast<int64_t>(draw)));
}

/// Takes in what the step has drawn; returns what has ended with it.
std::vector<GenerateResult> Engine::land(const Flight& flight) {
  std::vector<GenerateResult> ended;
  const StepOutput output = runner_.output(flight.step);
  for (size_t draw = 0; draw < flight.draws.size(); ++draw) {
    Sequence* const sequence = flight.draws[draw];
    if (sequence == nullptr) continue;
    const std::optional<Finish> finish =
        take_in(*sequence, output.tokens[draw], output.log_probs[draw]);
    if (!finish) continue;
    if (flight_) std::ranges::replace(flight_->draws, sequence, nullptr);
    ended.push_back(result_of(*scheduler_.remove(*sequence), *finish));
  }
  return ended;
}

/// Forgets the step that the latest one began. The device is idle afterwards.
void Engine::drop_flight() {
  flight_.reset();
  runner_.stream().synchronize();
}

/// A token in place of the one that was awaited; says whether the response ends with it.
std::optional<Finish> Engine::take_in(Sequence& sequence, int32_t token, float log_prob) const {
  if (token < 0 || !std::isfinite(log_prob))
    fail(ErrorCode::data,
         "sample {}, token {}: drew id {} with log-prob {}: weights of version {} give logits that "
         "are no numbers: they are damaged, or training has diverged",
         sequence.id, sequence.log_probs.size(), token, log_prob, weights_.version().value_or(-1));
  MILES_CHECK(token < config_.vocab_size, "drew token {} of {}", token, config_.vocab_size);
  sequence.tokens.back() = token;
  sequence.log_probs.push_back(log_prob);
  if (auto finish = sequence.stop->push(token)) return finish;
  if (sequence.length() < sequence.max_length) return std::nullopt;
  if (auto finish = sequence.stop->flush()) return finish;
  return Finish{.reason = FinishReason::length};
}

GenerateResult Engine::result_of(const Sequence& sequence, Finish finish) const {
  MILES_CHECK(sequence.drawn() == std::ssize(sequence.log_probs), "{} tokens, {} log-probs",
              sequence.drawn(), sequence.log_probs.size());
  return {.ticket = sequence.ticket,
          .id = sequence.id,
          .output_ids = {sequence.tokens.begin() + sequence.prompt_length, sequence.tokens.end()},
          .log_probs = sequence.log_probs,
          .text = std::string(sequence.stop->text()),
          .finish = std::move(finish),
          .preemptions = sequence.preemptions,
          .cached_tokens = sequence.cached_tokens};
}

void Engine::count(const Flight& flight) {
  stats_ = {.running = scheduler_.running(),
            .waiting = scheduler_.waiting(),
            .prefill_tokens = flight.prefill_tokens,
            .decode_tokens = flight.decode_tokens,
            .preempted = flight.preempted,
            .free_pages = scheduler_.blocks().free_pages(),
            .pages = scheduler_.blocks().pages()};
}

/// Nobody's token is awaited any longer.
std::vector<std::unique_ptr<Sequence>> Engine::drop_all() {
  std::vector<std::unique_ptr<Sequence>> all = scheduler_.remove_all();
  for (const std::unique_ptr<Sequence>& sequence : all)
    if (sequence->tokens.back() < 0) sequence->tokens.pop_back();
  drop_flight();
  return all;
}

std::vector<GenerateResult> Engine::abort_all() {
  std::vector<GenerateResult> ended;
  for (const std::unique_ptr<Sequence>& sequence : drop_all()) {
    sequence->stop->flush();  // for the text; the response was ended from outside all the same
    ended.push_back(result_of(*sequence, {.reason = FinishReason::abort}));
  }
  return ended;
}

std::vector<GenerateResult> Engine::generate(std::span<const GenerateRequest> requests,
                                             const GenerateControl& control) {
  require_idle("generation cannot begin");
  require_ready(control.weight_version);
  const int64_t first = next_ticket_;
  std::vector<GenerateResult> results(requests.size());
  try {
    for (const GenerateRequest& request : requests) add_request(request);
    while (has_unfinished()) {
      const bool abort = control.should_abort && control.should_abort();
      for (GenerateResult& result : abort ? abort_all() : step()) {
        if (control.on_finish) control.on_finish(result);
        results[static_cast<size_t>(result.ticket - first)] = std::move(result);
      }
      if (control.on_step) control.on_step(stats_);
    }
  } catch (...) {
    drop_all();
    throw;
  }
  return results;
}

}  // namespace miles
