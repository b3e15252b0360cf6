// The trainer's checkpoint: a run that goes on from one is the run that never stopped.
#include <gtest/gtest.h>

#include <fstream>

#include "hub/checksum.h"
#include "hub/safetensors_checksums.h"
#include "hub/safetensors_writer.h"
#include "tests/actor/actor_rig.h"

namespace miles {
namespace {

using test::actor_options;
using test::ActorRig;
using test::deep_config;
using test::full_loss;
using test::kPlacements;
using test::ScratchDir;
using test::some_samples;

constexpr const char* kFile = "trainer.safetensors";

StepResult step(ActorRig& rig, uint64_t seed) {
  LossOptions loss = full_loss();
  loss.policy.use_kl_loss = false;
  loss.policy.kl_loss_coef = 0;
  const std::vector<TrainSample> samples = some_samples(seed);
  rig.actor.onload();
  return rig.actor.train_step(samples, loss);
}

class ActorState : public testing::TestWithParam<DType> {
 protected:
  ModelConfig config() const { return deep_config(GetParam()); }
};

TEST_P(ActorState, ContinuesBitForBitInAnyPlacement) {
  ActorRig unbroken(config(), actor_options(ActorPlacement::resident));
  step(unbroken, 1);
  step(unbroken, 2);
  const StepResult expected = step(unbroken, 3);
  for (const ActorPlacement before : kPlacements) {
    for (const ActorPlacement after : kPlacements) {
      SCOPED_TRACE(test::name_of(before) + " to " + test::name_of(after));
      const ScratchDir directory;
      ActorRig first(config(), actor_options(before));
      step(first, 1);
      step(first, 2);
      first.actor.save_state(directory.path());
      ActorRig second(config(), actor_options(after), /*seed=*/5);
      second.actor.load_state(directory.path());
      EXPECT_EQ(second.actor.optimizer_steps(), 2);
      EXPECT_EQ(second.actor.weight_version(), first.actor.weight_version());
      EXPECT_TRUE(second.weights() == first.weights());
      const StepResult result = step(second, 3);
      EXPECT_EQ(result.loss.loss, expected.loss.loss);
      EXPECT_EQ(result.grad_norm, expected.grad_norm);
      EXPECT_TRUE(second.weights() == unbroken.weights());
      EXPECT_TRUE(second.state() == unbroken.state());
    }
  }
}

TEST_P(ActorState, LoadingReplacesWhatIsAlreadyOnTheDevice) {
  for (const ActorPlacement placement : kPlacements) {
    SCOPED_TRACE(test::name_of(placement));
    const ScratchDir directory;
    ActorRig rig(config(), actor_options(placement));
    step(rig, 1);
    rig.actor.save_state(directory.path());
    const std::string saved = rig.state();
    const StepResult expected = step(rig, 2);
    rig.actor.load_state(directory.path());
    EXPECT_TRUE(rig.state() == saved);
    const StepResult again = step(rig, 2);
    EXPECT_EQ(again.loss.loss, expected.loss.loss);
    EXPECT_EQ(again.grad_norm, expected.grad_norm);

    rig.actor.load_weights(
        [&](const Tensor& flat) { init_random_weights(rig.config, rig.layout, 8, flat); });
    ActorRig fresh(config(), actor_options(placement), 8);
    EXPECT_EQ(step(rig, 3).grad_norm, step(fresh, 3).grad_norm);
    EXPECT_TRUE(rig.weights() == fresh.weights());
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ActorState, testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) {
                           return info.param == DType::f32 ? "f32" : "bf16";
                         });

class ActorStateErrors : public testing::Test {
 protected:
  ActorStateErrors() { rig_.actor.save_state(directory_.path()); }

  void expect_refused(ActorRig& rig, const std::string& reason) {
    const auto before = rig.weights();
    const int64_t version = rig.actor.weight_version();
    try {
      rig.actor.load_state(directory_.path());
      FAIL() << "loaded";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data);
      EXPECT_NE(std::string(error.what()).find(kFile), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
    EXPECT_TRUE(rig.weights() == before) << "a refused checkpoint has changed the weights";
    EXPECT_EQ(rig.actor.weight_version(), version);
  }

  ScratchDir directory_;
  ActorRig rig_{deep_config(DType::bf16), actor_options(ActorPlacement::loaded)};
};

TEST_F(ActorStateErrors, AnAbsentFile) {
  std::filesystem::remove(directory_ / kFile);
  expect_refused(rig_, kFile);
}

TEST_F(ActorStateErrors, ATruncatedFile) {
  const auto size = std::filesystem::file_size(directory_ / kFile);
  std::filesystem::resize_file(directory_ / kFile, size - 1);
  expect_refused(rig_, kFile);
}

TEST_F(ActorStateErrors, ADamagedMoment) {
  int64_t at = 0;
  {
    const SafetensorsFile file(directory_ / kFile);
    at = file.find("optimizer.3.v")->offset;
  }
  std::string content = read_file(directory_ / kFile);
  content[static_cast<size_t>(at) + 5] ^= 1;
  write_file_atomically(directory_ / kFile, content);
  try {
    rig_.actor.load_state(directory_.path());
    FAIL() << "loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data);
    EXPECT_NE(std::string(error.what()).find("optimizer.3.v is damaged"), std::string::npos)
        << error.what();
  }
}

TEST_F(ActorStateErrors, ADamagedCount) {
  std::string content = read_file(directory_ / kFile);
  const std::string key = "\"optimizer_steps\":\"0\"";
  content[content.find(key) + key.size() - 2] = '1';
  write_file_atomically(directory_ / kFile, content);
  expect_refused(rig_, "the header is damaged");
}

TEST_F(ActorStateErrors, AModelWithAnotherNumberOfLayers) {
  ModelConfig config = deep_config(DType::bf16);
  config.num_hidden_layers = 5;
  ActorRig other(config, actor_options(ActorPlacement::streamed));
  expect_refused(other, "weights");
}

TEST_F(ActorStateErrors, AnotherDType) {
  ActorRig other(deep_config(DType::f32), actor_options(ActorPlacement::resident));
  expect_refused(other, "bfloat16");
}

TEST_F(ActorStateErrors, AFileOfAnotherKind) {
  const std::vector<float> values(4);
  SafetensorsWriter writer(directory_ / kFile, {{"weights", DType::f32, {4}}});
  writer.write("weights", Tensor::view<const float>(values, {4}));
  writer.finish();
  expect_refused(rig_, "not a trainer checkpoint");
}

TEST_F(ActorStateErrors, AMissingMoment) {
  const SafetensorsFile whole(directory_ / kFile);
  std::vector<TensorDeclaration> kept;
  for (const StoredTensor& tensor : whole.tensors())
    if (tensor.name != "optimizer.3.v") {
      const Tensor view = whole.view(tensor.name);
      kept.push_back({tensor.name, view.dtype(), view.shape()});
    }
  ASSERT_EQ(kept.size() + 1, whole.tensors().size());
  const std::string beside = "other.safetensors";
  SafetensorsWriter writer(directory_ / beside, kept, whole.metadata());
  for (const TensorDeclaration& tensor : kept) writer.write(tensor.name, whole.view(tensor.name));
  writer.finish();
  std::filesystem::rename(directory_ / beside, directory_ / kFile);
  expect_refused(rig_, "optimizer.3.v");
}

TEST_F(ActorStateErrors, ACountThatIsNoNumber) {
  std::string content = read_file(directory_ / kFile);
  const std::string key = "\"optimizer_steps\":\"0\"";
  const size_t at = content.find(key);
  ASSERT_NE(at, std::string::npos);
  content[at + key.size() - 2] = 'x';
  // As if it had been written so.
  const SafetensorsFile file(directory_ / kFile);
  const std::string header = content.substr(0, static_cast<size_t>(file.tensors()[0].offset));
  content.replace(digits_at(header, kHeaderChecksumKey), Checksum::kDigits,
                  header_checksum(header));
  write_file_atomically(directory_ / kFile, content);
  expect_refused(rig_, "optimizer_steps");
}

}  // namespace
}  // namespace miles
