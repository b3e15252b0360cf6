// A response depends on weights, prompt, parameters, seed and id, and on nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <span>

#include "base/rng.h"
#include "model/batch.h"
#include "model/head.h"
#include "model/layer.h"
#include "model/rope.h"
#include "ops/embedding.h"
#include "ops/log_prob.h"
#include "tests/rollout/engine_rig.h"
#include "tests/support/test_device.h"

namespace miles {
namespace {

using test::EngineRig;
using test::roomy;
using test::small_config;
using test::SmallModel;
using test::some_prompt;

/// Two groups of four, and four on their own; every way of drawing.
std::vector<GenerateRequest> mixed_requests() {
  const SamplingParams ways[] = {
      {.temperature = 1, .max_new_tokens = 24},
      {.temperature = 0, .max_new_tokens = 20},
      {.temperature = 0.7F, .top_k = 5, .max_new_tokens = 24},
      {.temperature = 1.3F,
       .top_p = 0.8F,
       .min_p = 0.02F,
       .max_new_tokens = 17,
       .ignore_eos = true},
  };
  std::vector<GenerateRequest> requests;
  for (int64_t i = 0; i < 12; ++i) {
    GenerateRequest request{.id = 100 + i, .prompt = {}, .params = ways[i % 4]};
    if (i < 8) {
      request.group = i / 4;
      request.prompt = some_prompt(request.group == 0 ? 19 : 33, static_cast<int32_t>(i / 4));
    } else {
      request.prompt = some_prompt(1 + (i - 8) * 14, static_cast<int32_t>(i));
    }
    requests.push_back(request);
  }
  return requests;
}

void expect_same(const GenerateResult& got, const GenerateResult& expected) {
  EXPECT_EQ(got.id, expected.id);
  EXPECT_EQ(got.output_ids, expected.output_ids) << "sample " << expected.id;
  EXPECT_EQ(got.log_probs, expected.log_probs) << "sample " << expected.id;  // to the bit
  EXPECT_EQ(got.text, expected.text);
  EXPECT_EQ(got.finish.reason, expected.finish.reason);
}

/// Each step waits for the host to know the last one's draws.
EngineOptions one_step_at_a_time() {
  EngineOptions options = roomy();
  options.overlap_schedule = false;
  return options;
}

enum class Model { f32, bf16, wide };  // wide: bf16, for a GPU's tensor cores

ModelConfig config_of(Model model) {
  ModelConfig config = small_config(model == Model::f32 ? DType::f32 : DType::bf16);
  if (model != Model::wide) return config;
  config = test::widened(config);
  config.vocab_size = 264;  // most ids are bytes, so that stop strings are found
  return config;
}

/// The requests, and what each one gives when it is drawn alone.
struct Reference {
  explicit Reference(Model which) : model(config_of(which)), requests(mixed_requests()) {
    EngineRig rig(model, one_step_at_a_time());
    for (const GenerateRequest& request : requests) alone.push_back(rig.generate(request));
  }

  SmallModel model;
  std::vector<GenerateRequest> requests;
  std::vector<GenerateResult> alone;
};

const Reference& reference(Model model) {
  static const Reference f32(Model::f32), bf16(Model::bf16), wide(Model::wide);
  return model == Model::f32 ? f32 : model == Model::bf16 ? bf16 : wide;
}

class Invariance : public testing::TestWithParam<Model> {
 protected:
  /// Runs all requests together under other options; returns the results.
  std::vector<GenerateResult> expect_same_with(const EngineOptions& options) {
    EngineRig rig(model_, options);
    std::vector<GenerateResult> results = rig.generate(requests_);
    for (size_t i = 0; i < results.size(); ++i) expect_same(results[i], alone_[i]);
    return results;
  }

  const SmallModel& model_ = reference(GetParam()).model;
  const std::vector<GenerateResult>& alone_ = reference(GetParam()).alone;
  std::vector<GenerateRequest> requests_ = reference(GetParam()).requests;
};

TEST_P(Invariance, TheReferenceIsWorthComparingWith) {
  for (const GenerateResult& result : alone_) EXPECT_GE(result.output_ids.size(), 1U);
  EXPECT_NE(alone_[0].output_ids, alone_[4].output_ids);
  size_t tokens = 0;
  for (const GenerateResult& result : alone_) tokens += result.output_ids.size();
  EXPECT_GT(tokens, 120U);
}

TEST_P(Invariance, BatchedOrAlone) {
  const auto results = expect_same_with(roomy());
  for (const GenerateResult& result : results) EXPECT_EQ(result.preemptions, 0);
}

TEST_P(Invariance, OrderOfRequests) {
  EngineRig rig(model_);
  std::vector<GenerateRequest> reversed(requests_.rbegin(), requests_.rend());
  std::vector<GenerateResult> results = rig.generate(reversed);
  std::ranges::reverse(results);
  for (size_t i = 0; i < results.size(); ++i) expect_same(results[i], alone_[i]);
}

TEST_P(Invariance, PageSize) {
  for (const int64_t page_size : {1, 3, 64}) {
    EngineOptions options = roomy();
    options.page_size = page_size;
    expect_same_with(options);
  }
}

TEST_P(Invariance, ChunkSizeAndBatchLimit) {
  for (const int64_t chunk : {1, 5, 40}) {
    EngineOptions options = roomy();
    options.chunked_prefill_size = chunk;
    options.max_running_requests = chunk == 5 ? 2 : 7;
    expect_same_with(options);
  }
}

TEST_P(Invariance, Preemption) {
  EngineOptions options = roomy();
  options.max_total_tokens = 72;  // the longest request alone needs 68
  options.page_size = 3;
  const auto results = expect_same_with(options);
  int64_t preemptions = 0;
  for (const GenerateResult& result : results) preemptions += result.preemptions;
  EXPECT_GT(preemptions, 0);
}

TEST_P(Invariance, SharingOfPrompts) {
  const auto shared = expect_same_with(roomy());
  int64_t cached = 0;
  for (const GenerateResult& result : shared) cached += result.cached_tokens;
  EXPECT_EQ(cached, 3 * 18 + 3 * 32);
  for (GenerateRequest& request : requests_) request.group = kNoGroup;
  for (const GenerateResult& result : expect_same_with(roomy())) EXPECT_EQ(result.cached_tokens, 0);
}

TEST_P(Invariance, OverlapOrOneStepAtATime) {
  expect_same_with(one_step_at_a_time());
}

/// Most responses end where only the draws say it, at a stop id or stop string, when a step that
/// counts on them has been begun; pages are few, so that what they give back is taken at once.
TEST_P(Invariance, OverlapWhenEndsComeAsASurprise) {
  for (size_t i = 0; i < requests_.size(); ++i) {
    SamplingParams& params = requests_[i].params;
    const std::vector<int32_t>& full = alone_[i].output_ids;
    if (i % 3 == 0) params.stop_token_ids = {full[full.size() / 2], full[full.size() / 3]};
    if (i % 3 == 1) {
      const std::string_view text = alone_[i].text;
      const auto ascii =
          std::ranges::find_if(text.substr(text.size() / 2), [](char c) { return c > 0; });
      if (ascii != text.end()) params.stop = {std::string(1, *ascii)};
    }
    if (i % 3 == 2) params.min_new_tokens = 5;
    if (i % 3 == 2) params.stop_token_ids = {full[0], full[full.size() / 2]};
  }
  EngineRig rig(model_, one_step_at_a_time());
  std::vector<GenerateResult> expected;
  size_t surprises = 0;
  for (const GenerateRequest& request : requests_) {
    expected.push_back(rig.generate(request));
    surprises += expected.back().finish.reason != FinishReason::length;
  }
  EXPECT_GT(surprises, 6U);
  int64_t preemptions = 0;
  for (const int64_t page_size : {1, 3, 16}) {
    for (const int64_t running : {1, 3, 12}) {
      EngineOptions options = roomy();
      options.page_size = page_size;
      options.max_total_tokens = 80;  // the longest request alone needs 68
      options.max_running_requests = running;
      options.chunked_prefill_size = 7 * page_size;
      EngineRig tight(model_, options);
      const std::vector<GenerateResult> results = tight.generate(requests_);
      for (size_t i = 0; i < results.size(); ++i) {
        expect_same(results[i], expected[i]);
        EXPECT_EQ(results[i].finish.matched_id, expected[i].finish.matched_id);
        EXPECT_EQ(results[i].finish.matched_string, expected[i].finish.matched_string);
        preemptions += results[i].preemptions;
      }
      EXPECT_EQ(tight.engine.stats().free_pages, tight.engine.stats().pages);
    }
  }
  EXPECT_GT(preemptions, 0);
}

/// Requests come while others run, and everything is ended from outside now and then: what is cut
/// off is the beginning of what would have come.
TEST_P(Invariance, RequestsThatComeAndAreAbortedBetweenSteps) {
  int64_t aborted = 0, preemptions = 0;
  for (uint64_t trial = 0; trial < 12; ++trial) {
    uint64_t counter = 0;
    const auto draw = [&](uint64_t bound) {
      return uniform_below(bound, 5, RngUse::test, trial, counter++);
    };
    EngineOptions options = roomy();
    options.page_size = static_cast<int64_t>(1 + draw(5));
    options.max_total_tokens = static_cast<int64_t>(75 + draw(80));
    options.max_running_requests = static_cast<int64_t>(1 + draw(8));
    options.chunked_prefill_size = static_cast<int64_t>(1 + draw(30));
    EngineRig rig(model_, options);
    for (int turn = 0; turn < 40 || rig.engine.has_unfinished(); ++turn) {
      for (uint64_t more = turn < 40 ? draw(3) : 0; more > 0; --more)
        rig.engine.add_request(requests_[draw(requests_.size())]);
      const bool abort = draw(25) == 0;
      for (const GenerateResult& got : abort ? rig.engine.abort_all() : rig.engine.step()) {
        const GenerateResult& whole = alone_[static_cast<size_t>(got.id - 100)];
        preemptions += got.preemptions;
        if (got.finish.reason != FinishReason::abort) {
          expect_same(got, whole);
          continue;
        }
        ++aborted;
        ASSERT_LE(got.output_ids.size(), whole.output_ids.size());
        EXPECT_TRUE(std::ranges::equal(got.output_ids,
                                       std::span(whole.output_ids).first(got.output_ids.size())));
        EXPECT_TRUE(std::ranges::equal(got.log_probs,
                                       std::span(whole.log_probs).first(got.log_probs.size())));
      }
    }
  }
  EXPECT_GT(aborted, 20);
  EXPECT_GT(preemptions, 20);
}

TEST_P(Invariance, ASecondRunAndAnEngineThatWasAway) {
  EngineRig rig(model_);
  rig.generate(requests_);
  rig.engine.offload_kv();
  rig.engine.offload_weights();
  rig.engine.onload_weights();
  rig.engine.update_weights(model_.flat, 1);
  rig.engine.onload_kv();
  const auto results = rig.generate(requests_);
  for (size_t i = 0; i < results.size(); ++i) expect_same(results[i], alone_[i]);
}

/// Log-probs of tokens[1 …] from one packed forward, as the trainer runs it.
std::vector<float> packed_log_probs(const SmallModel& model, const std::vector<int32_t>& tokens,
                                    float inverse_temperature) {
  const ModelConfig& config = model.config;
  const auto n = static_cast<int64_t>(tokens.size());
  const auto device = test::make_test_device();
  const auto stream = device->make_stream(StreamUse::compute);
  Ledger ledger;
  const int64_t workspace = workspace_bytes(device->kind());
  Region region({*device, ledger}, Place::device, "test", workspace + (int64_t{64} << 20));
  region.commit();
  Arena arena(region.data(), region.bytes());
  const Tensor scratch = arena.allocate(DType::u8, {workspace});
  Exec exec{*device,
            *stream,
            {static_cast<std::byte*>(scratch.data()), static_cast<size_t>(scratch.bytes())}};
  HostBatch host;
  host.append_packed(tokens);
  const DeviceBatch batch = upload(exec, arena, host);
  const Tensor x = arena.allocate(config.dtype, {n, config.hidden_size});
  const LayerBuffers buffers = make_layer_buffers(config, n, LayerUse::training, arena);
  const Shape pool{n, config.num_key_value_heads, config.head_dim};
  const Tensor k = arena.allocate(config.dtype, pool), v = arena.allocate(config.dtype, pool);
  const std::vector<float> rope_table = make_rope_table(config, n);
  const Tensor rope = upload(exec, arena, rope_table);
  const Tensor flat = arena.allocate(config.dtype, model.flat.shape());
  stream->copy(flat.data(), model.flat.data(), flat.bytes());
  auto* weights = static_cast<std::byte*>(flat.data());
  const auto at = [&](const Group& group) {
    return weights + group.offset * size_of(config.dtype);
  };
  embedding(
      exec,
      {.ids = batch.ids,
       .table = {at(model.layout.embed()), config.dtype, {config.vocab_size, config.hidden_size}},
       .y = x});
  for (int64_t i = 0; i < model.layout.layers(); ++i) {
    const LayerWeights layer =
        view_layer(config, model.layout.layer_offsets(), at(model.layout.layer(i)), config.dtype);
    settle(exec,
           forward_layer(exec,
                         {.config = config,
                          .weights = layer,
                          .batch = batch,
                          .buffers = buffers,
                          .rope = rope.reshape({n, config.head_dim}),
                          .k_pool = k,
                          .v_pool = v},
                         {.x = x}),
           x);
  }
  const Tensor logits = arena.allocate(DType::f32, {n, config.vocab_size});
  head_logits(exec, {.weights = view_head(config, model.layout, at(model.layout.embed()),
                                          at(model.layout.head()), config.dtype),
                     .x = x,
                     .delta = {},
                     .normed = arena.allocate(config.dtype, {n, config.hidden_size}),
                     .rstd = {},
                     .logits = logits,
                     .eps = static_cast<float>(config.rms_norm_eps)});
  std::vector<int32_t> targets(tokens.begin() + 1, tokens.end());
  targets.push_back(0);
  const std::vector<float> scales(tokens.size(), inverse_temperature);
  const Tensor result = arena.allocate(DType::f32, {n});
  log_prob(exec, {.logits = logits,
                  .targets = upload(exec, arena, targets),
                  .inverse_temperature = upload(exec, arena, scales),
                  .log_prob = result,
                  .lse = {},
                  .entropy = {}});
  std::vector<float> values(tokens.size());
  stream->copy(values.data(), result.data(), result.bytes());
  stream->synchronize();
  values.pop_back();
  return values;
}

TEST_P(Invariance, LogProbsAreThoseOfATrainersForwardToTheBit) {
  for (size_t i = 0; i < requests_.size(); ++i) {
    const GenerateRequest& request = requests_[i];
    std::vector<int32_t> tokens = request.prompt;
    tokens.insert(tokens.end(), alone_[i].output_ids.begin(), alone_[i].output_ids.end());
    const std::vector<float> all =
        packed_log_probs(model_, tokens, inverse_temperature(request.params));
    const std::vector<float> response(all.end() - std::ssize(alone_[i].output_ids), all.end());
    EXPECT_EQ(alone_[i].log_probs, response) << "sample " << request.id;
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, Invariance, testing::Values(Model::f32, Model::bf16, Model::wide),
                         [](const auto& info) {
                           return info.param == Model::f32    ? "float32"
                                  : info.param == Model::bf16 ? "bfloat16"
                                                              : "wide";
                         });

/// Prompts of several tiles of keys, on heads that CUDA's tensor cores take.
TEST(Engine, ReadingSharedKeysOnceChangesNoBit) {
  ModelConfig config = small_config(DType::bf16);
  config.num_attention_heads = 8;
  config.head_dim = 64;
  config.max_position_embeddings = 512;
  const SmallModel model(config);
  EngineOptions options = roomy();
  options.max_context_len = 400;
  std::vector<GenerateRequest> requests;
  for (int64_t i = 0; i < 14; ++i)
    requests.push_back({.id = i,
                        .prompt = some_prompt(i < 8 ? 300 : 150, i < 8 ? 1 : 2),
                        .params = {.max_new_tokens = 10 + 11 * (i % 3), .ignore_eos = true},
                        .group = i < 8    ? 3
                                 : i < 13 ? 2
                                          : kNoGroup});
  std::vector<GenerateResult> alone;
  {
    EngineRig rig(model, options);
    for (const GenerateRequest& request : requests) alone.push_back(rig.generate(request));
  }
  ::setenv("MILES_CUDA_BLOCKS_AT_ONCE", "0", 1);  // however small the batch
  EngineRig rig(model, options);
  const std::vector<GenerateResult> shared = rig.generate(requests);
  ::unsetenv("MILES_CUDA_BLOCKS_AT_ONCE");
  for (size_t i = 0; i < requests.size(); ++i) expect_same(shared[i], alone[i]);
  EXPECT_EQ(shared[1].cached_tokens, 299);
}

TEST(Engine, TheSeedAndTheIdDecideTheDraws) {
  const SmallModel model(DType::f32);
  EngineRig rig(model);
  GenerateRequest request{
      .id = 1, .prompt = some_prompt(5, 0), .params = {.max_new_tokens = 16, .ignore_eos = true}};
  const auto first = rig.generate(request).output_ids;
  request.params.seed = 7;  // the engine's own
  EXPECT_EQ(rig.generate(request).output_ids, first);
  request.params.seed = 8;
  EXPECT_NE(rig.generate(request).output_ids, first);
  request.params.seed = 7;
  request.id = 2;
  EXPECT_NE(rig.generate(request).output_ids, first);
}

}  // namespace
}  // namespace miles
