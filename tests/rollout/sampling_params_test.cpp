#include "rollout/sampling_params.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/error.h"

namespace miles {
namespace {

TEST(SamplingParams, TheDefaultsAndTheLimitsThemselvesAreAllowed) {
  EXPECT_NO_THROW(check_sampling_params({}));
  EXPECT_NO_THROW(check_sampling_params({.temperature = 0, .top_k = 1, .top_p = 1, .min_p = 1}));
  EXPECT_NO_THROW(check_sampling_params({.max_new_tokens = 4, .min_new_tokens = 4}));
}

TEST(SamplingParams, ARefusalNamesTheFlagAndTheValue) {
  struct Case {
    const char* named;
    std::function<void(SamplingParams&)> spoil;
  };
  const Case cases[] = {
      {"--temperature is -1", [](auto& p) { p.temperature = -1; }},
      {"--temperature is nan", [](auto& p) { p.temperature = NAN; }},
      {"--temperature is inf", [](auto& p) { p.temperature = INFINITY; }},
      {"--top-k is 0", [](auto& p) { p.top_k = 0; }},
      {"--top-p is 0", [](auto& p) { p.top_p = 0; }},
      {"--top-p is 1.5", [](auto& p) { p.top_p = 1.5; }},
      {"--top-p is nan", [](auto& p) { p.top_p = NAN; }},
      {"--min-p is 2", [](auto& p) { p.min_p = 2; }},
      {"a response of at most 0 tokens", [](auto& p) { p.max_new_tokens = 0; }},
      {"a response of at least 200 tokens", [](auto& p) { p.min_new_tokens = 200; }},
      {"a response of at least -3 tokens", [](auto& p) { p.min_new_tokens = -3; }},
      {"--stop: a string is empty",
       [](auto& p) {
         p.stop = {"a", ""};
       }},
      {"--stop-token-ids: -7", [](auto& p) { p.stop_token_ids = {-7}; }},
  };
  for (const Case& c : cases) {
    SamplingParams params;
    c.spoil(params);
    try {
      check_sampling_params(params);
      ADD_FAILURE() << "allowed: " << c.named;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::flags);
      EXPECT_NE(std::string(error.what()).find(c.named), std::string::npos) << error.what();
    }
  }
}

TEST(SamplingParams, GreedyLogProbsAreThoseOfTemperatureOne) {
  EXPECT_EQ(inverse_temperature({.temperature = 0}), 1.0F);
  EXPECT_EQ(inverse_temperature({.temperature = 1e-7F}), 1.0F);
  EXPECT_EQ(inverse_temperature({.temperature = 0.5F}), 2.0F);
}

}  // namespace
}  // namespace miles
