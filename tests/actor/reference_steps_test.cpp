// Three optimizer steps against PyTorch: losses, log-probs, norms, weights and moments, in every
// placement.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hub/json_file.h"
#include "tests/actor/actor_rig.h"
#include "tests/support/fixtures.h"
#include "tests/support/test_device.h"

namespace miles {
namespace {

using test::cut;
using test::Fixture;
using test::fixture_dir;
using test::FlatModel;
using test::largest_difference;
using test::largest_magnitude;

constexpr size_t kSteps = 3;

std::vector<TrainSample> read_samples(const Fixture& fixture) {
  const auto lengths = fixture.ints("response_lengths");
  const auto tokens = cut(fixture.ints("tokens"), fixture.ints("lengths"));
  const auto masks = cut(fixture.ints("loss_mask"), lengths);
  const auto log_probs = cut(fixture.floats("rollout_log_probs"), lengths);
  const auto advantages = fixture.floats("advantages");
  std::vector<TrainSample> samples;
  for (size_t s = 0; s < tokens.size(); ++s)
    samples.push_back({.tokens = tokens[s],
                       .response_length = lengths[s],
                       .loss_mask = masks[s],
                       .old_log_probs = log_probs[s],
                       .ref_log_probs = {},
                       .advantages = std::vector<float>(log_probs[s].size(), advantages[s])});
  return samples;
}

std::vector<float> joined(const std::vector<std::vector<float>>& parts) {
  std::vector<float> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

struct Case {
  std::string name;  // of the fixture
  ActorPlacement placement;
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name << ' ' << test::name_of(one.placement);
}

class ReferenceSteps : public testing::TestWithParam<Case> {
 protected:
  bool grpo() const { return GetParam().name == "grpo"; }
  double number(const char* key) const { return settings_.at(key).get<double>(); }

  ActorOptions options() const {
    return {.placement = GetParam().placement,
            .max_tokens_per_gpu = 96,
            .max_tokens_per_step = 1024,
            .max_sequences_per_step = 8,
            .max_sequence_length = 96,
            .with_reference = grpo(),
            .optimizer = {.schedule = {.lr = number("lr"), .style = LrDecayStyle::constant},
                          .beta1 = static_cast<float>(number("adam_beta1")),
                          .beta2 = static_cast<float>(number("adam_beta2")),
                          .eps = static_cast<float>(number("adam_eps")),
                          .weight_decay = static_cast<float>(number("weight_decay")),
                          .clip_grad = static_cast<float>(number("clip_grad"))}};
  }

  LossOptions loss() const {
    const nlohmann::json& own = settings_.at(GetParam().name);
    LossOptions loss;
    loss.temperature = own.at("rollout_temperature").get<float>();
    if (!grpo()) {
      loss.type = LossType::sft_loss;
      loss.calculate_per_token_loss = own.at("calculate_per_token_loss").get<bool>();
      return loss;
    }
    loss.policy = {.eps_clip = own.at("eps_clip").get<float>(),
                   .eps_clip_high = own.at("eps_clip_high").get<float>(),
                   .entropy_coef = own.at("entropy_coef").get<float>(),
                   .use_kl_loss = true,
                   .kl_loss_coef = own.at("kl_loss_coef").get<float>(),
                   .kl_loss_type = KlLossType::low_var_kl};
    return loss;
  }

  /// Rounding grows from step to step: README.md of the fixtures says how much a relative 1e-6 in
  /// the first weights moves each of these; the tolerances are about three times that.
  void expect_step(const StepResult& result, size_t step) const {
    SCOPED_TRACE("step " + std::to_string(step));
    const bool first = step == 0;
    const auto near = [&](double got, const char* name, double relative, double absolute) {
      const double expected = fixture_.floats(name).at(step);
      EXPECT_NEAR(got, expected, relative * std::fabs(expected) + absolute) << name;
    };
    EXPECT_FALSE(result.skipped);
    EXPECT_EQ(result.learning_rate, number("lr"));
    if (!grpo()) {
      near(result.loss.loss, "loss", first ? 2e-6 : 2e-5, 0);
      near(result.grad_norm, "grad_norm", first ? 1e-5 : 1.2e-4, 0);
      return;
    }
    // The first loss is a difference of advantages that nearly cancel.
    near(result.loss.loss, "loss", first ? 1e-5 : 2e-3, 1e-6);
    near(result.grad_norm, "grad_norm", first ? 2e-5 : 1e-3, 0);
    near(result.loss.pg_loss, "pg_loss", first ? 1e-5 : 2e-3, 1e-6);
    near(result.loss.kl_loss, "kl_loss", 2e-3, 1e-6);
    near(result.loss.entropy_loss, "entropy_loss", first ? 1e-6 : 1e-4, 0);
    near(result.loss.ppo_kl, "ppo_kl", 2e-3, 1e-6);
    near(result.loss.pg_clipfrac, "pg_clipfrac", 0, first ? 0 : 2e-3);
  }

  void expect_state(const ParamLayout& layout, const std::vector<float>& first,
                    const std::filesystem::path& directory) const {
    const SafetensorsFile file(directory / "trainer.safetensors");
    EXPECT_EQ(file.metadata().at("optimizer_steps"), "3");
    const auto flat = [&](const std::string& suffix) {
      std::vector<float> all;
      for (int c = 0; file.find(fmt::format("optimizer.{}.{}", c, suffix)) != nullptr; ++c) {
        const auto chunk = file.view(fmt::format("optimizer.{}.{}", c, suffix)).span<float>();
        all.insert(all.end(), chunk.begin(), chunk.end());
      }
      return all;
    };
    const auto weights = file.view("weights").span<float>();
    const std::vector<float> m = flat("m"), v = flat("v");
    ASSERT_EQ(m.size(), weights.size());
    ASSERT_EQ(v.size(), weights.size());
    for (const ParamSpec& param : layout.params()) {
      SCOPED_TRACE(param.name);
      double squares = 0, moved = 0;
      for (int64_t i = param.offset; i < param.offset + param.elements(); ++i) {
        const auto at = static_cast<size_t>(i);
        squares += static_cast<double>(weights[at]) * weights[at];
        moved += (static_cast<double>(weights[at]) - first[at]) *
                 (static_cast<double>(weights[at]) - first[at]);
      }
      const double norm = fixture_.scalar("weight_norm." + param.name);
      const double delta = fixture_.scalar("delta_norm." + param.name);
      EXPECT_NEAR(std::sqrt(squares), norm, 1e-5 * norm);
      EXPECT_NEAR(std::sqrt(moved), delta, 5e-4 * delta);
      std::vector<float> got_weight, got_m, got_v;
      for (const int32_t index : fixture_.ints("index." + param.name)) {
        const auto at = static_cast<size_t>(param.offset + index);
        got_weight.push_back(weights[at]);
        got_m.push_back(m[at]);
        got_v.push_back(v[at]);
      }
      const auto expected_m = fixture_.floats("exp_avg." + param.name);
      const auto expected_v = fixture_.floats("exp_avg_sq." + param.name);
      EXPECT_LE(largest_difference(got_weight, fixture_.floats("weight." + param.name)), 3e-5);
      EXPECT_LE(largest_difference(got_m, expected_m), 2e-3 * largest_magnitude(expected_m));
      EXPECT_LE(largest_difference(got_v, expected_v), 2e-3 * largest_magnitude(expected_v));
    }
  }

  const nlohmann::json settings_ = read_json_object(fixture_dir() / "actor" / "settings.json");
  const Fixture fixture_{fixture_dir() / "actor" / (GetParam().name + ".safetensors")};
};

TEST_P(ReferenceSteps, ThreeStepsAsPyTorchTakesThem) {
  const FlatModel model(fixture_dir() / "model" / "qwen3_tiny");
  const auto first_weights = model.flat.span<float>();
  const std::vector<float> first(first_weights.begin(), first_weights.end());
  const auto device = test::make_test_device();
  Ledger ledger;
  ActorModel actor(options(), model.config, model.layout, {*device, ledger});
  actor.load_weights(
      [&](const Tensor& flat) { std::copy(first.begin(), first.end(), flat.as<float>()); });
  actor.onload();

  std::vector<TrainSample> samples = read_samples(fixture_);
  const LossOptions loss = this->loss();
  const auto expected = fixture_.floats("log_probs");
  const size_t rows = expected.size() / kSteps;
  for (size_t step = 0; step < kSteps; ++step) {
    if (grpo()) {
      const auto reference = actor.log_probs(Policy::reference, samples, loss.temperature);
      for (size_t s = 0; s < samples.size(); ++s) samples[s].ref_log_probs = reference[s];
      EXPECT_LE(largest_difference(joined(reference), std::span(expected).first(rows)), 1e-5);
    }
    const auto log_probs = joined(actor.log_probs(Policy::actor, samples, loss.temperature));
    EXPECT_LE(largest_difference(log_probs, std::span(expected).subspan(step * rows, rows)),
              step == 0 ? 1e-5 : 1e-2)  // a relative 1e-6 in the first weights moves them by 4e-3
        << "log-probs before step " << step;
    expect_step(actor.train_step(samples, loss), step);
  }
  EXPECT_EQ(actor.optimizer_steps(), 3);
  EXPECT_EQ(actor.weight_version(), 4);  // one for having been loaded
  const test::ScratchDir directory;
  actor.save_state(directory.path());
  expect_state(model.layout, first, directory.path());
}

INSTANTIATE_TEST_SUITE_P(
    All, ReferenceSteps,
    testing::Values(Case{"grpo", ActorPlacement::resident}, Case{"grpo", ActorPlacement::streamed},
                    Case{"sft", ActorPlacement::resident}, Case{"sft", ActorPlacement::loaded}),
    [](const auto& info) { return info.param.name + "_" + test::name_of(info.param.placement); });

}  // namespace
}  // namespace miles
