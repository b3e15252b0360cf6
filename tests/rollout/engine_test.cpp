#include "rollout/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "base/error.h"
#include "model/hf_config.h"
#include "tests/rollout/engine_rig.h"
#include "tests/support/shared.h"
#include "tests/support/test_device.h"

namespace miles {
namespace {

using test::EngineRig;
using test::roomy;
using test::small_config;
using test::SmallModel;
using test::some_prompt;

/// Fails unless `action` throws an Error of that code whose message holds `part`.
void expect_error(ErrorCode code, const std::string& part, const std::function<void()>& action) {
  try {
    action();
    ADD_FAILURE() << "no error; expected: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

GenerateRequest greedy(int64_t new_tokens, int32_t salt = 0) {
  return {.id = salt,
          .prompt = some_prompt(6, salt),
          .params = {.temperature = 0, .max_new_tokens = new_tokens, .ignore_eos = true}};
}

class EngineTest : public testing::Test {
 protected:
  const SmallModel model_{DType::f32};
  EngineRig rig_{model_};
  Engine& engine_ = rig_.engine;
};

// Ends
// ---------------------------------------------------------------------------------------------

TEST_F(EngineTest, AResponseEndsAtItsLimit) {
  const GenerateResult result = rig_.generate(greedy(9));
  EXPECT_EQ(result.output_ids.size(), 9U);
  EXPECT_EQ(result.log_probs.size(), 9U);
  EXPECT_EQ(result.finish.reason, FinishReason::length);
  EXPECT_EQ(result.text, rig_.tokenizer.decode(result.output_ids, {.skip_special = true}));
}

TEST_F(EngineTest, AResponseEndsWhereTheContextEnds) {
  GenerateRequest request = greedy(1000);
  const GenerateResult result = rig_.generate(request);
  EXPECT_EQ(result.output_ids.size(), 96U - 6U);
  request.prompt = some_prompt(95, 1);
  EXPECT_EQ(rig_.generate(request).output_ids.size(), 1U);
}

TEST_F(EngineTest, AStopIdEndsAResponseAndIsPartOfIt) {
  GenerateRequest request = greedy(30);
  const std::vector<int32_t> full = rig_.generate(request).output_ids;
  const int32_t stop = full[7];
  const auto first = std::ranges::find(full, stop);
  request.params.stop_token_ids = {stop};
  const GenerateResult result = rig_.generate(request);
  EXPECT_EQ(result.output_ids, std::vector<int32_t>(full.begin(), first + 1));
  EXPECT_EQ(result.finish.reason, FinishReason::stop_id);
  EXPECT_EQ(result.finish.matched_id, stop);
}

TEST_F(EngineTest, TheModelsEndEndsAResponseUnlessItIsIgnored) {
  const std::vector<int32_t> full = rig_.generate(greedy(30)).output_ids;
  ModelConfig config = small_config(DType::f32);
  config.eos_token_ids = {full[4], 257};
  const SmallModel model(config);
  EngineRig rig(model);
  GenerateRequest request = greedy(30);
  EXPECT_EQ(rig.generate(request).output_ids, full);
  request.params.ignore_eos = false;
  const GenerateResult result = rig.generate(request);
  EXPECT_LE(result.output_ids.size(), 5U);
  EXPECT_EQ(result.finish.matched_id, full[4]);
}

TEST_F(EngineTest, StopIdsAreNotDrawnBeforeTheFewestTokensAndLogProbsStayTheModels) {
  GenerateRequest request = greedy(30);
  const GenerateResult full = rig_.generate(request);
  const int32_t stop = full.output_ids[3];
  request.params.stop_token_ids = {stop, stop};  // twice: the ban must be lifted all the same
  request.params.min_new_tokens = 12;
  const GenerateResult result = rig_.generate(request);
  ASSERT_GE(result.output_ids.size(), 12U);
  EXPECT_EQ(std::count(result.output_ids.begin(), result.output_ids.begin() + 12, stop), 0);
  // Up to where the stop id would have been drawn nothing changes, log-probs included; then the
  // second choice has a smaller one than the first.
  const auto at = std::ranges::find(full.output_ids, stop) - full.output_ids.begin();
  for (std::ptrdiff_t i = 0; i < at; ++i)
    EXPECT_EQ(result.log_probs[static_cast<size_t>(i)], full.log_probs[static_cast<size_t>(i)]);
  EXPECT_LT(result.log_probs[static_cast<size_t>(at)], full.log_probs[static_cast<size_t>(at)]);
}

TEST_F(EngineTest, AStopStringTrimsTheTextAndEndsTheIdsWithTheTokenThatCompletedIt) {
  GenerateRequest request = greedy(40);
  request.params.temperature = 1;
  const GenerateResult full = rig_.generate(request);
  const auto ascii = std::ranges::find_if(full.text, [](char c) { return c > 0; });
  ASSERT_NE(ascii, full.text.end());
  request.params.stop = {std::string(1, *ascii)};
  const GenerateResult result = rig_.generate(request);
  EXPECT_EQ(result.finish.reason, FinishReason::stop_string);
  EXPECT_EQ(result.finish.matched_string, request.params.stop[0]);
  EXPECT_EQ(result.text, full.text.substr(0, static_cast<size_t>(ascii - full.text.begin())));
  ASSERT_LE(result.output_ids.size(), full.output_ids.size());
  EXPECT_TRUE(
      std::equal(result.output_ids.begin(), result.output_ids.end(), full.output_ids.begin()));
  EXPECT_EQ(result.output_ids.back(), *ascii);
  EXPECT_EQ(result.output_ids.size(), result.log_probs.size());
}

TEST_F(EngineTest, AbortGivesWhatHasBeenDrawnSoFar) {
  const std::vector<GenerateRequest> requests = {greedy(40, 0), greedy(3, 1), greedy(40, 2)};
  const std::vector<GenerateResult> full = rig_.generate(requests);
  int polls = 0;
  size_t finished = 0;
  const auto partial =
      engine_.generate(requests, {.weight_version = 1,
                                  .on_finish = [&](const GenerateResult&) { ++finished; },
                                  .should_abort = [&] { return ++polls > 10; }});
  EXPECT_EQ(finished, 3U);
  EXPECT_FALSE(engine_.has_unfinished());
  for (size_t i = 0; i < 3; ++i) {
    const size_t expected = i == 1 ? 3 : 10;
    ASSERT_EQ(partial[i].output_ids.size(), expected);
    EXPECT_EQ(partial[i].log_probs.size(), expected);
    EXPECT_EQ(partial[i].finish.reason, i == 1 ? FinishReason::length : FinishReason::abort);
    EXPECT_TRUE(std::equal(partial[i].output_ids.begin(), partial[i].output_ids.end(),
                           full[i].output_ids.begin()));
  }
}

TEST_F(EngineTest, AnAbortBeforeTheFirstStepGivesEmptyResponses) {
  const auto results = engine_.generate(std::vector{greedy(5)},
                                        {.weight_version = 1, .should_abort = [] { return true; }});
  ASSERT_EQ(results.size(), 1U);
  EXPECT_TRUE(results[0].output_ids.empty());
  EXPECT_EQ(results[0].finish.reason, FinishReason::abort);
}

// Control
// ------------------------------------------------------------------------------------------

TEST_F(EngineTest, NothingAskedNothingAnswered) {
  EXPECT_TRUE(rig_.generate(std::vector<GenerateRequest>{}).empty());
}

TEST_F(EngineTest, EachStepIsReportedAndEachResponseWhenItEnds) {
  std::vector<GenerateRequest> requests;
  for (int32_t i = 0; i < 4; ++i) requests.push_back(greedy(3 + i, 1));
  std::vector<int64_t> order;
  int64_t steps = 0, prefill = 0, decode = 0;
  engine_.generate(requests,
                   {.weight_version = 1,
                    .on_finish = [&](const GenerateResult& r) { order.push_back(r.ticket); },
                    .on_step =
                        [&](const StepStats& stats) {
                          ++steps;
                          prefill += stats.prefill_tokens;
                          decode += stats.decode_tokens;
                          EXPECT_EQ(stats.running + stats.waiting,
                                    4 - static_cast<int64_t>(order.size()));
                        }});
  EXPECT_EQ(order.size(), 4U);
  EXPECT_TRUE(std::ranges::is_sorted(order));
  EXPECT_EQ(steps, 6);
  EXPECT_EQ(prefill, 4 * 6);
  EXPECT_EQ(decode, 2 + 3 + 4 + 5);
}

TEST_F(EngineTest, SteppingByHandGivesTheSame) {
  const std::vector<GenerateRequest> requests = {greedy(5, 0), greedy(8, 1)};
  const auto expected = rig_.generate(requests);
  const int64_t first = engine_.add_request(requests[0]);
  engine_.step();
  const int64_t second = engine_.add_request(requests[1]);  // joins a running batch
  std::vector<GenerateResult> got;
  while (engine_.has_unfinished())
    for (GenerateResult& result : engine_.step()) got.push_back(std::move(result));
  ASSERT_EQ(got.size(), 2U);
  EXPECT_EQ(got[0].ticket, first);
  EXPECT_EQ(got[1].ticket, second);
  EXPECT_EQ(got[0].output_ids, expected[0].output_ids);
  EXPECT_EQ(got[1].output_ids, expected[1].output_ids);
  EXPECT_EQ(got[1].log_probs, expected[1].log_probs);
  EXPECT_TRUE(engine_.step().empty());
}

TEST_F(EngineTest, AStepByHandTellsOfOneForwardWhetherTheNextIsBegunOrNot) {
  for (const bool overlap : {false, true}) {
    EngineOptions options = roomy();
    options.overlap_schedule = overlap;
    EngineRig rig(model_, options);
    rig.engine.add_request(greedy(4));
    for (int64_t step = 0; step < 4; ++step) {
      EXPECT_TRUE(rig.engine.has_unfinished());
      EXPECT_EQ(rig.engine.step().size(), step < 3 ? 0U : 1U);
      EXPECT_EQ(rig.engine.stats().prefill_tokens, step == 0 ? 6 : 0);
      EXPECT_EQ(rig.engine.stats().decode_tokens, step == 0 ? 0 : 1);
    }
    EXPECT_FALSE(rig.engine.has_unfinished());
    EXPECT_EQ(rig.engine.stats().free_pages, rig.engine.stats().pages);
  }
}

TEST_F(EngineTest, AnAbortByHandLeavesOutWhatTheBegunStepDraws) {
  const std::vector<int32_t> full = rig_.generate(greedy(9)).output_ids;
  engine_.add_request(greedy(9));
  for (size_t steps = 0; steps < 4; ++steps) EXPECT_TRUE(engine_.step().empty());
  const auto aborted = engine_.abort_all();
  ASSERT_EQ(aborted.size(), 1U);
  EXPECT_EQ(aborted[0].output_ids, std::vector<int32_t>(full.begin(), full.begin() + 4));
  EXPECT_EQ(aborted[0].log_probs.size(), 4U);
  EXPECT_EQ(rig_.generate(greedy(9)).output_ids, full);
}

TEST_F(EngineTest, AThrowingCallbackLeavesNothingUnfinished) {
  const std::vector<GenerateRequest> requests = {greedy(5, 0), greedy(8, 1)};
  EXPECT_THROW(engine_.generate(requests, {.weight_version = 1,
                                           .on_finish = [](const GenerateResult&) { throw 1; }}),
               int);
  EXPECT_FALSE(engine_.has_unfinished());
  EXPECT_EQ(rig_.generate(requests).size(), 2U);
}

// Refusals
// -----------------------------------------------------------------------------------------

TEST_F(EngineTest, PromptsThatCannotBeServedAreRefusedWithTheirLengths) {
  const auto refuse = [&](ErrorCode code, const std::string& part, const GenerateRequest& request) {
    const std::vector<GenerateRequest> requests = {greedy(3), request};
    expect_error(code, part, [&] { engine_.generate(requests, {.weight_version = 1}); });
    EXPECT_FALSE(engine_.has_unfinished());
  };
  GenerateRequest request = greedy(3, 41);
  request.prompt.clear();
  refuse(ErrorCode::data, "sample 41: the prompt has no tokens", request);
  request.prompt = some_prompt(96, 0);
  refuse(ErrorCode::data, "96 tokens leaves no room for a response in a context of 96", request);
  request.prompt = std::vector<int32_t>(100000, 1);
  refuse(ErrorCode::data, "100000 tokens", request);
  request.prompt = {3, 258};
  refuse(ErrorCode::data, "token id 258, where the model has 0 … 257", request);
  request.prompt = {-1};
  refuse(ErrorCode::data, "token id -1", request);
  request.prompt = {1};
  request.params.stop_token_ids = {258};
  refuse(ErrorCode::flags, "stop token id 258", request);
  request.params.stop_token_ids = {};
  request.params.top_p = 0;
  refuse(ErrorCode::flags, "--top-p is 0", request);
}

TEST_F(EngineTest, AResponseThatCouldNeverFitTheCacheIsRefusedBeforeItBegins) {
  EngineOptions options = roomy();
  options.max_total_tokens = 33;  // three pages of 16
  EngineRig rig(model_, options);
  GenerateRequest request = greedy(43);
  EXPECT_EQ(rig.generate(request).output_ids.size(), 43U);  // 6 + 43 − 1 = 48 keys
  request.params.max_new_tokens = 44;
  expect_error(ErrorCode::data, "need 49 tokens of key/value cache, which has 48",
               [&] { rig.generate(request); });
}

TEST_F(EngineTest, StopStringsNeedATokenizer) {
  Ledger ledger;
  Engine engine(roomy(), model_.config, model_.layout, {*rig_.device, ledger}, nullptr);
  engine.onload_weights();
  engine.onload_kv();
  engine.update_weights(model_.flat, 1);
  GenerateRequest request = greedy(4);
  const auto results = engine.generate(std::vector{request}, {.weight_version = 1});
  EXPECT_EQ(results[0].output_ids.size(), 4U);
  EXPECT_EQ(results[0].text, "");
  request.params.stop = {"x"};
  expect_error(ErrorCode::flags, "needs a tokenizer",
               [&] { engine.generate(std::vector{request}, {.weight_version = 1}); });
}

TEST_F(EngineTest, OptionsOutsideTheirLimitsAreRefused) {
  const auto refuse = [&](const std::string& part,
                          const std::function<void(EngineOptions&)>& spoil) {
    EngineOptions options = roomy();
    spoil(options);
    Ledger ledger;
    expect_error(ErrorCode::flags, part, [&] {
      Engine(options, model_.config, model_.layout, {*rig_.device, ledger}, nullptr);
    });
  };
  refuse("--max-total-tokens is 0", [](auto& o) { o.max_total_tokens = 0; });
  refuse("a key/value cache of 9999999999 tokens",
         [](auto& o) { o.max_total_tokens = 9999999999; });
  refuse("--page-size is -1", [](auto& o) { o.page_size = -1; });
  refuse("--max-running-requests is 0", [](auto& o) { o.max_running_requests = 0; });
  refuse("--chunked-prefill-size is 0", [](auto& o) { o.chunked_prefill_size = 0; });
  refuse("prompt and response of 257 tokens together: it must be 1 to 256",
         [](auto& o) { o.max_context_len = 257; });
}

// Weights
// ------------------------------------------------------------------------------------------

TEST_F(EngineTest, StaleOrMissingWeightsAreRefused) {
  const auto refuse = [&](const std::string& part, int64_t version) {
    expect_error(ErrorCode::internal, part,
                 [&] { engine_.generate(std::vector{greedy(2)}, {.weight_version = version}); });
  };
  refuse("version 2, where version 1 is loaded", 2);
  engine_.offload_weights();
  EXPECT_EQ(engine_.weight_version(), std::nullopt);
  refuse("without weights", 1);
  engine_.onload_weights();
  refuse("before the weights were updated", 1);
  expect_error(ErrorCode::internal, "before the weights were updated", [&] { engine_.step(); });
  engine_.update_weights(model_.flat, 2);
  engine_.offload_kv();
  refuse("without a key/value cache", 2);
  engine_.onload_kv();
  EXPECT_EQ(engine_.generate(std::vector{greedy(2)}, {.weight_version = 2}).size(), 1U);
}

TEST_F(EngineTest, NothingOfOldWeightsIsLeftAfterAnUpdate) {
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(greedy(12));
    requests.back().group = 0;
  }
  const auto old = rig_.generate(requests);
  const SmallModel newer(DType::f32, 2);
  engine_.update_weights(newer.flat, 2);
  EXPECT_EQ(engine_.weight_version(), 2);
  const auto got = engine_.generate(requests, {.weight_version = 2});
  EngineRig fresh(newer);
  const auto expected = fresh.generate(requests);
  EXPECT_NE(got[0].output_ids, old[0].output_ids);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(got[i].output_ids, expected[i].output_ids);
    EXPECT_EQ(got[i].log_probs, expected[i].log_probs);
  }
}

TEST_F(EngineTest, NeitherWeightsNorMemoryChangeUnderUnfinishedResponses) {
  engine_.add_request(greedy(20));
  engine_.step();
  for (const std::function<void()>& change : std::vector<std::function<void()>>{
           [&] { engine_.update_weights(model_.flat, 2); }, [&] { engine_.offload_kv(); },
           [&] { engine_.offload_weights(); }, [&] { engine_.poison_weights(); },
           [&] { rig_.generate(greedy(2)); }})
    expect_error(ErrorCode::internal, "1 responses are unfinished", change);
  EXPECT_EQ(engine_.abort_all().size(), 1U);
  EXPECT_NO_THROW(engine_.update_weights(model_.flat, 2));
}

TEST_F(EngineTest, APoisonedWeightThatAnUpdateMissedIsSeenByName) {
  EXPECT_TRUE(engine_.compare_weights(model_.flat).empty());
  engine_.poison_weights();
  EXPECT_EQ(engine_.weight_version(), std::nullopt);
  // Every parameter differs, and so does the padding.
  EXPECT_GE(engine_.compare_weights(model_.flat).size(), model_.layout.params().size());
  engine_.update_weights(model_.flat, 3);
  EXPECT_TRUE(engine_.compare_weights(model_.flat).empty());
  const ParamSpec& param = model_.layout.params()[5];
  float& element = model_.flat.as<float>()[param.offset + param.elements() - 1];
  element = -element;  // −0 included: bits are compared
  EXPECT_EQ(engine_.compare_weights(model_.flat), std::vector<std::string>{param.name});
}

TEST_F(EngineTest, WeightsThatAreNoNumbersEndGenerationWithTheSamplesName) {
  model_.flat.as<float>()[model_.layout.head().offset] = std::numeric_limits<float>::quiet_NaN();
  engine_.update_weights(model_.flat, 4);
  expect_error(ErrorCode::data, "sample 9, token 0: drew id -1",
               [&] { engine_.generate(std::vector{greedy(2, 9)}, {.weight_version = 4}); });
  EXPECT_FALSE(engine_.has_unfinished());
  engine_.add_request(greedy(2, 8));
  expect_error(ErrorCode::data, "sample 8, token 0: drew id -1", [&] { engine_.step(); });
  const auto aborted = engine_.abort_all();
  ASSERT_EQ(aborted.size(), 1U);
  EXPECT_TRUE(aborted[0].output_ids.empty());
}

// Memory
// -------------------------------------------------------------------------------------------

TEST_F(EngineTest, MemoryComesAndGoesAndAskingTwiceChangesNothing) {
  const PlaceUsage& usage = rig_.ledger.usage(Place::device);
  const auto all = usage.by_tag;
  EXPECT_EQ(all.size(), 3U);
  engine_.onload_weights();
  engine_.onload_kv();
  EXPECT_EQ(usage.by_tag, all);
  EXPECT_EQ(engine_.weight_version(), 1) << "an idempotent onload keeps the weights";
  for (int i = 0; i < 2; ++i) {
    engine_.offload_kv();
    EXPECT_EQ(usage.by_tag.size(), 1U);
    EXPECT_TRUE(usage.by_tag.contains("rollout.weights"));
  }
  for (int i = 0; i < 2; ++i) {
    engine_.offload_weights();
    EXPECT_EQ(usage.total, 0);
  }
  engine_.onload_kv();
  engine_.onload_weights();
  EXPECT_EQ(usage.by_tag, all);
}

TEST_F(EngineTest, ACacheThatDoesNotFitLeavesNothingBehind) {
  const int64_t workspace = rig_.ledger.usage(Place::device).by_tag.at("rollout.workspace");
  const int64_t cache = rig_.ledger.usage(Place::device).by_tag.at("rollout.kv_cache");
  Ledger tight({.device_bytes = cache + workspace - 1, .host_bytes = INT64_MAX});
  Engine engine(roomy(), model_.config, model_.layout, {*rig_.device, tight}, nullptr);
  expect_error(ErrorCode::budget, "rollout.workspace", [&] { engine.onload_kv(); });
  EXPECT_EQ(tight.usage(Place::device).total, 0);
  EXPECT_FALSE(engine.kv_resident());
}

TEST_F(EngineTest, ADryRunBooksTheVeryBytes) {
  for (const int64_t tokens : {1, 1000, 4097}) {
    EngineOptions options = roomy();
    options.max_total_tokens = tokens;
    options.page_size = tokens == 1000 ? 7 : 16;
    const auto dry = make_dry_device(*rig_.device);
    Ledger planned, real;
    Engine plan(options, model_.config, model_.layout, {*dry, planned}, nullptr);
    Engine engine(options, model_.config, model_.layout, {*rig_.device, real}, nullptr);
    for (Engine* each : {&plan, &engine}) {
      each->onload_weights();
      each->onload_kv();
    }
    EXPECT_EQ(planned.usage(Place::device).by_tag, real.usage(Place::device).by_tag);
    plan.update_weights(model_.flat, 1);
    plan.offload_kv();
    plan.offload_weights();
    EXPECT_EQ(planned.usage(Place::device).total, 0);
  }
}

// A real model
// -------------------------------------------------------------------------------------

TEST(EngineOnAModel, TellsItsStory) {
  MILES_NEED_SHARED("models/stories260K");
  const std::filesystem::path dir = test::shared_dir() / "models/stories260K";
  const ModelConfig config = read_hf_config(dir);
  const ParamLayout layout(config);
  std::vector<float> weights(static_cast<size_t>(layout.elements()));
  const Tensor flat = Tensor::view(std::span(weights), {layout.elements()});
  load_weights(dir, config, layout, flat);
  const Tokenizer tokenizer = Tokenizer::load(dir);
  const auto device = test::make_test_device();
  Ledger ledger;
  EngineOptions options = roomy();
  options.max_context_len = 512;
  Engine engine(options, config, layout, {*device, ledger}, &tokenizer);
  engine.onload_weights();
  engine.onload_kv();
  engine.update_weights(flat, 0);
  const GenerateRequest request{.id = 0,
                                .prompt = {config.bos_token_id},
                                .params = {.temperature = 0, .max_new_tokens = 120}};
  const auto results = engine.generate(std::vector{request}, {.weight_version = 0});
  const std::string expected =
      "Once upon a time, there was a little girl named Lily. She loved to play outside in the "
      "park. "
      "One day, she saw a big, red ball.";
  EXPECT_EQ(results[0].text.substr(0, expected.size()), expected);
}

}  // namespace
}  // namespace miles
