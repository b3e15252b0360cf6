// Forward and backward of whole models against PyTorch and transformers.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "memory/region.h"
#include "model/batch.h"
#include "model/head.h"
#include "model/layer.h"
#include "model/layer_backward.h"
#include "model/rope.h"
#include "ops/embedding.h"
#include "ops/gemm.h"
#include "ops/log_prob.h"
#include "ops/rms_norm.h"
#include "tests/support/fixtures.h"
#include "tests/support/shared.h"
#include "tests/support/test_device.h"

namespace miles {
namespace {

using test::cut;
using test::Fixture;
using test::fixture_dir;
using test::FlatModel;
using test::largest_difference;
using test::largest_magnitude;

/// What the backward has of the forward's activations.
enum class Activations { recomputed, kept };

/// A model's forward and backward over packed sequences, out of the pieces in model/ and ops/
/// alone: no stores, no micro-batches, one call after the other.
class PackedModel {
 public:
  PackedModel(const FlatModel& model, const std::vector<std::vector<int32_t>>& sequences,
              Activations activations = Activations::recomputed)
      : model_(model),
        weights_(arena_.allocate(model.flat.dtype(), model.flat.shape())),
        gradients_(arena_.allocate(DType::f32, model.flat.shape())) {
    exec_.stream.copy(weights_.data(), model.flat.data(), weights_.bytes());
    exec_.stream.fill_zero(gradients_.data(), gradients_.bytes());
    for (const std::vector<int32_t>& sequence : sequences) host_.append_packed(sequence);
    const ModelConfig& config = model.config;
    const int64_t n = host_.tokens();
    batch_ = upload(exec_, arena_, host_);
    const std::vector<float> rope_table = make_rope_table(config, n);
    rope_ = upload(exec_, arena_, rope_table).reshape({n, config.head_dim});
    exec_.stream.synchronize();
    buffers_ = make_training_buffers(config, n, arena_);
    if (activations == Activations::kept)
      for (int64_t l = 0; l < model.layout.layers(); ++l)
        kept_.push_back(make_layer_activations(config, n, arena_));
    for (int64_t l = 0; l <= model.layout.layers(); ++l)
      residuals_.push_back(arena_.allocate(config.dtype, {n, config.hidden_size}));
    head_.normed = arena_.allocate(config.dtype, {n, config.hidden_size});
    head_.rstd = arena_.allocate(DType::f32, {n});
    head_.logits = arena_.allocate(DType::f32, {n, config.vocab_size});
    forward();
  }

  const Tensor& residual(int64_t l) const { return residuals_[static_cast<size_t>(l)]; }
  const Tensor& normed() const { return head_.normed; }
  const Tensor& logits() const { return head_.logits; }  // [N, V] f32

  /// The logits once more, from one residual stream that passes through all blocks as the engine's
  /// does: what a block adds last is added by the norm that comes next.
  Tensor logits_of_one_stream() {
    Residual stream{.x = arena_.allocate(model_.config.dtype, residuals_[0].shape())};
    exec_.stream.copy(stream.x.data(), residuals_[0].data(), stream.x.bytes());
    for (int64_t l = 0; l < model_.layout.layers(); ++l)
      stream = forward_layer(exec_, context(l), stream);
    HeadArgs head = head_;
    head.x = stream.x;
    head.delta = stream.delta;
    head.logits = arena_.allocate(DType::f32, head_.logits.shape());
    head_logits(exec_, head);
    return head.logits;
  }

  struct Scores {
    std::vector<float> log_prob, entropy;  // [R]
  };
  /// Of the ids at `positions`, from the logits one before, at that temperature.
  Scores score(const std::vector<int32_t>& positions, float temperature) {
    place_rows(positions, temperature);
    log_prob(exec_, {.logits = rows_.logits,
                     .targets = rows_.targets,
                     .inverse_temperature = rows_.inverse_temperature,
                     .log_prob = rows_.log_prob,
                     .lse = rows_.lse,
                     .entropy = rows_.entropy});
    return {to_vector(rows_.log_prob), to_vector(rows_.entropy)};
  }

  /// Gives the backward so much scratch, which holds NaN.
  void make_scratch(int64_t bytes) {
    attention_scratch_ = arena_.allocate(DType::u8, {bytes});
    const std::vector<uint8_t> nans(static_cast<size_t>(bytes), 0xFF);
    exec_.stream.copy(attention_scratch_.data(), nans.data(), bytes);
    exec_.stream.synchronize();
  }
  /// The same, with what its own buffers have idle by then.
  void make_idle_scratch() { attention_scratch_ = buffers_.idle; }
  int64_t scratch_bytes() const { return attention_scratch_.bytes(); }
  bool used_scratch() const {
    const auto bytes = on_host<uint8_t>(attention_scratch_);
    return std::ranges::any_of(bytes, [](uint8_t byte) { return byte != 0xFF; });
  }

  /// Gradients of Σ c·log_prob + e·entropy over the rows of the latest score(): [elements] f32,
  /// flat. Once: inputs of blocks are replaced by their gradients.
  std::vector<float> backward(const std::vector<float>& c, const std::vector<float>& e) {
    Tensor dy = backward_head(c, e);
    forget_shared();
    for (int64_t l = model_.layout.layers() - 1; l >= 0; --l) {
      backward_layer(exec_, {.context = context(l),
                             .buffers = buffers_.gradients,
                             .gradients = layer(l, gradient_base(), DType::f32),
                             .x_in = residual(l),
                             .dy = dy,
                             .dx = residual(l),  // in its input's place, as the trainer does
                             .scratch = attention_scratch_});
      dy = residual(l);
    }
    embedding_backward(exec_, {.ids = batch_.ids, .dy = dy, .dtable = embed_gradients()});
    return to_vector(gradients_);
  }

  /// Loses one tensor of what was kept of a block.
  void lose(int64_t l, Tensor LayerActivations::*which) {
    const Tensor& tensor = kept_[static_cast<size_t>(l)].*which;
    exec_.stream.fill_zero(tensor.data(), tensor.bytes());
  }

  /// On the host, as f32.
  std::vector<float> to_vector(const Tensor& tensor) const {
    if (tensor.dtype() == DType::f32) return on_host<float>(tensor);
    std::vector<float> values;
    values.reserve(static_cast<size_t>(tensor.elements()));
    for (const BFloat16 value : on_host<BFloat16>(tensor)) values.push_back(to_float(value));
    return values;
  }

 private:
  static constexpr int64_t kArenaBytes = int64_t{64} << 20;

  struct Rows {
    Tensor x, normed, rstd, logits, indices, targets, inverse_temperature, log_prob, lse, entropy;
  };

  template <class T>
  std::vector<T> on_host(const Tensor& tensor) const {
    std::vector<T> values(static_cast<size_t>(tensor.elements()));
    stream_->copy(values.data(), tensor.data(), tensor.bytes());
    stream_->synchronize();
    return values;
  }

  std::byte* base() const { return static_cast<std::byte*>(weights_.data()); }
  std::byte* gradient_base() const { return static_cast<std::byte*>(gradients_.data()); }
  LayerWeights layer(int64_t l, std::byte* flat, DType dtype) const {
    return view_layer(model_.config, model_.layout.layer_offsets(),
                      flat + model_.layout.layer(l).offset * size_of(dtype), dtype);
  }
  HeadWeights head(std::byte* flat, DType dtype) const {
    return view_head(model_.config, model_.layout, flat,
                     flat + model_.layout.head().offset * size_of(dtype), dtype);
  }
  Tensor embed_gradients() {
    return {gradient_base(), DType::f32, {model_.config.vocab_size, model_.config.hidden_size}};
  }
  /// Valid until the next call.
  LayerContext context(int64_t l) {
    layer_ = layer(l, base(), model_.config.dtype);
    layer_buffers_ =
        kept_.empty() ? buffers_.forward : keeping(buffers_.forward, kept_[static_cast<size_t>(l)]);
    return {.config = model_.config,
            .weights = layer_,
            .batch = batch_,
            .buffers = layer_buffers_,
            .rope = rope_,
            .k_pool = buffers_.keys.k,
            .v_pool = buffers_.keys.v};
  }
  float eps() const { return static_cast<float>(model_.config.rms_norm_eps); }

  void forward() {
    const ModelConfig& config = model_.config;
    const Tensor table(base(), config.dtype, {config.vocab_size, config.hidden_size});
    embedding(exec_, {.ids = batch_.ids, .table = table, .y = residuals_[0]});
    for (int64_t l = 0; l < model_.layout.layers(); ++l) {
      const Tensor& x = residual(l + 1);
      const LayerContext context_of_l = context(l);
      if (!layer_buffers_.middle) layer_buffers_.middle = x;  // as the trainer does
      settle(exec_, forward_layer(exec_, context_of_l, {.x = residual(l)}), x);
    }
    head_.weights = head(base(), config.dtype);
    head_.x = residuals_.back();
    head_.eps = eps();
    head_logits(exec_, head_);
  }

  /// Nothing is left of the forward in what the blocks share.
  void forget_shared() {
    const LayerBuffers& b = buffers_.forward;
    for (const Tensor& tensor :
         {b.normed, b.rstd, b.qkv, b.q, b.attended, b.lse, b.projected, b.post_normed, b.post_rstd,
          b.gate_up, b.activated, buffers_.keys.k, buffers_.keys.v})
      exec_.stream.fill_zero(tensor.data(), tensor.bytes());
  }

  void place_rows(const std::vector<int32_t>& positions, float temperature) {
    const auto n = static_cast<int64_t>(positions.size());
    const ModelConfig& config = model_.config;
    std::vector<int32_t> indices, targets;
    for (const int32_t position : positions) {
      indices.push_back(position - 1);
      targets.push_back(host_.ids[static_cast<size_t>(position)]);
    }
    rows_.indices = upload(exec_, arena_, indices);
    rows_.targets = upload(exec_, arena_, targets);
    const std::vector<float> inverses(positions.size(), 1.0F / temperature);
    rows_.inverse_temperature = upload(exec_, arena_, inverses);
    exec_.stream.synchronize();
    rows_.x = arena_.allocate(config.dtype, {n, config.hidden_size});
    rows_.normed = arena_.allocate(config.dtype, {n, config.hidden_size});
    rows_.logits = arena_.allocate(DType::f32, {n, config.vocab_size});
    for (Tensor* column : {&rows_.rstd, &rows_.log_prob, &rows_.lse, &rows_.entropy})
      *column = arena_.allocate(DType::f32, {n});
    embedding(exec_, {.ids = rows_.indices, .table = residuals_.back(), .y = rows_.x});
    head_logits(exec_, {.weights = head_.weights,
                        .x = rows_.x,
                        .delta = {},
                        .normed = rows_.normed,
                        .rstd = rows_.rstd,
                        .logits = rows_.logits,
                        .eps = eps()});
  }

  /// The gradient of the last block's output.
  Tensor backward_head(const std::vector<float>& c, const std::vector<float>& e) {
    const ModelConfig& config = model_.config;
    const HeadWeights sums = head(gradient_base(), DType::f32);
    const Tensor dlogits = arena_.allocate(config.dtype, rows_.logits.shape());
    const Tensor d_normed = arena_.allocate(config.dtype, rows_.x.shape());
    const Tensor d_rows = arena_.allocate(config.dtype, rows_.x.shape());
    const Tensor dx = arena_.allocate(config.dtype, residuals_.back().shape());
    log_prob_backward(exec_, {.logits = rows_.logits,
                              .targets = rows_.targets,
                              .inverse_temperature = rows_.inverse_temperature,
                              .lse = rows_.lse,
                              .entropy = rows_.entropy,
                              .d_log_prob = upload(exec_, arena_, c),
                              .d_entropy = upload(exec_, arena_, e),
                              .dlogits = dlogits});
    linear_backward_weight(exec_, {.dy = dlogits, .x = rows_.normed, .dw = sums.lm_head});
    linear_backward_input(exec_, {.dy = dlogits, .w = head_.weights.lm_head, .dx = d_normed});
    exec_.stream.fill_zero(d_rows.data(), d_rows.bytes());
    exec_.stream.fill_zero(dx.data(), dx.bytes());
    rms_norm_backward(exec_, {.dy = d_normed,
                              .x = rows_.x,
                              .w = head_.weights.norm,
                              .rstd = rows_.rstd,
                              .dx = d_rows,
                              .dw = sums.norm});
    scatter_rows(exec_, {.ids = rows_.indices, .y = d_rows, .table = dx});
    return dx;
  }

  static Region committed(Memory memory, int64_t bytes) {
    Region region(memory, Place::device, "test", bytes);
    region.commit();
    return region;
  }

  const FlatModel& model_;
  std::unique_ptr<Device> device_ = test::make_test_device();
  Ledger ledger_;
  std::unique_ptr<Stream> stream_ = device_->make_stream(StreamUse::compute);
  Region scratch_ = committed({*device_, ledger_}, workspace_bytes(device_->kind()));
  Region memory_ = committed({*device_, ledger_}, kArenaBytes);
  Exec exec_{*device_, *stream_, {scratch_.data(), static_cast<size_t>(scratch_.bytes())}};
  Arena arena_{memory_.data(), memory_.bytes()};
  Tensor weights_;    // [elements] T, flat
  Tensor gradients_;  // [elements] f32, flat
  HostBatch host_;
  DeviceBatch batch_;
  Tensor rope_;
  TrainingBuffers buffers_;
  std::vector<LayerActivations> kept_;  // [L], or none
  LayerWeights layer_;                  // of the latest context()
  LayerBuffers layer_buffers_;          // the same
  std::vector<Tensor> residuals_;       // [L + 1] what enters each block; the last one's output
  HeadArgs head_;
  Rows rows_;
  Tensor attention_scratch_;  // or empty
};

/// On a GPU the next test would show it; here the addresses do.
TEST(TrainingBuffers, IdleHoldsNothingThatAttentionsBackwardAndWhatFollowsNeed) {
  const ModelConfig config = read_hf_config(fixture_dir() / "model" / "qwen3_tiny_bf16");
  Arena size;
  make_training_buffers(config, 7, size);
  std::vector<std::byte> memory(static_cast<size_t>(size.used()));
  Arena arena(memory.data(), size.used());
  const TrainingBuffers b = make_training_buffers(config, 7, arena);
  const auto begin = [](const Tensor& tensor) { return static_cast<std::byte*>(tensor.data()); };
  const auto is_idle = [&](const Tensor& tensor) {
    EXPECT_TRUE(tensor);
    return begin(tensor) < begin(b.idle) + b.idle.bytes() &&
           begin(b.idle) < begin(tensor) + tensor.bytes();
  };
  for (const Tensor& needed : {b.keys.k, b.keys.v, b.forward.normed, b.forward.rstd, b.forward.qkv,
                               b.forward.q, b.forward.attended, b.forward.lse, b.gradients.middle,
                               b.gradients.attended, b.gradients.q, b.gradients.k, b.gradients.v})
    EXPECT_FALSE(is_idle(needed));
  for (const Tensor& free :
       {b.forward.projected, b.forward.post_normed, b.forward.post_rstd, b.forward.gate_up,
        b.forward.activated, b.gradients.normed, b.gradients.qkv})
    EXPECT_TRUE(is_idle(free));
  EXPECT_EQ(begin(b.idle) + b.idle.bytes(), memory.data() + size.used());
}

/// Heads of 128 elements are those for which a GPU may use scratch.
TEST(PackedModel, ScratchChangesNoGradient) {
  ModelConfig config = read_hf_config(fixture_dir() / "model" / "qwen3_tiny_bf16");
  config.head_dim = 128;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.intermediate_size = 4096;  // or what lies idle would be too little
  const FlatModel model(config, 5);
  std::vector<std::vector<int32_t>> sequences;
  std::vector<int32_t> positions;
  for (const int length : {70, 130, 5}) {
    std::vector<int32_t>& sequence = sequences.emplace_back();
    for (int i = 0; i < length; ++i)
      sequence.push_back(static_cast<int32_t>((7 * i + length) % config.vocab_size));
  }
  for (int32_t position = 71; position < 200; ++position) positions.push_back(position);
  const std::vector<float> c(positions.size(), 1.0F), e(positions.size(), 0.25F);
  const auto gradients = [&](PackedModel& packed) {
    packed.score(positions, 1.0F);
    return packed.backward(c, e);
  };
  PackedModel without(model, sequences);
  const auto expected = gradients(without);
  EXPECT_TRUE(std::ranges::any_of(expected, [](float g) { return g != 0; }));
  for (const Activations activations : {Activations::recomputed, Activations::kept}) {
    PackedModel with(model, sequences, activations), with_idle(model, sequences, activations);
    with.make_scratch(int64_t{4} << 20);
    with_idle.make_idle_scratch();
    EXPECT_GE(with_idle.scratch_bytes(), int64_t{4} << 20);
    EXPECT_EQ(gradients(with), expected);
    EXPECT_EQ(gradients(with_idle), expected);
    EXPECT_EQ(with.used_scratch(), test::on_hopper());
  }
}

struct Case {
  std::string name;         // directory under tests/fixtures/model
  double gradients = 1e-3;  // largest error of a gradient, of its largest element
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}

bool is_shared(const Case& one) {
  return one.name == "stories260K";
}

std::filesystem::path model_dir(const Case& one) {
  return is_shared(one) ? test::shared_dir() / "models" / one.name
                        : fixture_dir() / "model" / one.name;
}

class ReferenceModel : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (is_shared(GetParam())) MILES_NEED_SHARED("models/stories260K");
    fixture_ = std::make_unique<Fixture>(fixture_dir() / "model" / GetParam().name /
                                         "reference.safetensors");
    model_ = std::make_unique<FlatModel>(model_dir(GetParam()));
    packed_ = std::make_unique<PackedModel>(
        *model_, cut(fixture_->ints("tokens"), fixture_->ints("lengths")));
    // In bfloat16: twice what transformers' own bfloat16 arithmetic is off by.
    if (fixture_->has("logits_bf16"))
      tolerance_ =
          2 * largest_difference(fixture_->floats("logits_bf16"), fixture_->floats("logits"));
  }

  /// Rows of `values` [N, width] at the fixture's logit positions.
  std::vector<float> at_logit_positions(const Tensor& values) const {
    const std::vector<float> all = packed_->to_vector(values);
    const auto width = static_cast<size_t>(values.dim(1));
    std::vector<float> rows;
    for (const int32_t position : fixture_->ints("logit_positions")) {
      const auto row = all.begin() + static_cast<std::ptrdiff_t>(width) * position;
      rows.insert(rows.end(), row, row + static_cast<std::ptrdiff_t>(width));
    }
    return rows;
  }

  std::unique_ptr<Fixture> fixture_;
  std::unique_ptr<FlatModel> model_;
  std::unique_ptr<PackedModel> packed_;
  double tolerance_ = 1e-4;  // largest absolute error of logits, log-probs and entropies
};

TEST_P(ReferenceModel, ResidualStreamOfEveryBlock) {
  const int64_t layers = model_->layout.layers();
  for (int64_t l = 0; l <= layers; ++l) {
    const std::string name = "hidden." + std::to_string(l);
    const auto expected = fixture_->floats(name);
    const auto got = at_logit_positions(l == layers ? packed_->normed() : packed_->residual(l));
    EXPECT_LE(largest_difference(got, expected),
              tolerance_ * std::max(1.0, largest_magnitude(expected)))
        << name;
  }
}

TEST_P(ReferenceModel, Logits) {
  EXPECT_LE(largest_difference(at_logit_positions(packed_->logits()), fixture_->floats("logits")),
            tolerance_);
}

TEST_P(ReferenceModel, SumsThatTheNextNormMakesHaveTheBitsOfAdditions) {
  const Tensor& expected = packed_->logits();
  const Tensor got = packed_->logits_of_one_stream();
  EXPECT_EQ(packed_->to_vector(got), packed_->to_vector(expected));
}

TEST_P(ReferenceModel, LogProbsAndEntropiesAtTwoTemperatures) {
  const auto positions = fixture_->ints("response_positions");
  for (const auto& [suffix, temperature] : {std::pair{"_t10", 1.0F}, std::pair{"_t07", 0.7F}}) {
    const PackedModel::Scores scores = packed_->score(positions, temperature);
    const double tolerance = tolerance_ / temperature;
    EXPECT_LE(
        largest_difference(scores.log_prob, fixture_->floats(std::string("log_probs") + suffix)),
        tolerance);
    EXPECT_LE(
        largest_difference(scores.entropy, fixture_->floats(std::string("entropies") + suffix)),
        tolerance);
  }
}

TEST_P(ReferenceModel, LossAndGradientOfEveryParameter) {
  const auto c = fixture_->floats("coef_log_prob"), e = fixture_->floats("coef_entropy");
  const auto scores = packed_->score(fixture_->ints("response_positions"), 0.7F);
  double loss = 0, magnitude = 0;
  for (size_t r = 0; r < c.size(); ++r) {
    loss += static_cast<double>(c[r]) * scores.log_prob[r] +
            static_cast<double>(e[r]) * scores.entropy[r];
    magnitude += std::fabs(c[r]) + std::fabs(e[r]);
  }
  EXPECT_NEAR(loss, fixture_->scalar("loss"), tolerance_ * magnitude);

  const std::vector<float> gradients = packed_->backward(c, e);
  for (const ParamSpec& param : model_->layout.params()) {
    SCOPED_TRACE(param.name);
    const auto* mine = gradients.data() + param.offset;
    double squares = 0;
    for (int64_t i = 0; i < param.elements(); ++i)
      squares += static_cast<double>(mine[i]) * mine[i];
    const double norm = fixture_->scalar("grad_norm." + param.name);
    EXPECT_NEAR(std::sqrt(squares), norm, GetParam().gradients * norm);
    const auto expected = fixture_->floats("grad_value." + param.name);
    std::vector<float> got;
    for (const int32_t index : fixture_->ints("grad_index." + param.name))
      got.push_back(mine[index]);
    EXPECT_LE(largest_difference(got, expected),
              GetParam().gradients * largest_magnitude(expected));
  }
}

TEST_P(ReferenceModel, KeptActivationsGiveTheGradientsOfRecomputedOnes) {
  const auto c = fixture_->floats("coef_log_prob"), e = fixture_->floats("coef_entropy");
  const auto gradients = [&](PackedModel& packed) {
    packed.score(fixture_->ints("response_positions"), 0.7F);
    return packed.backward(c, e);
  };
  const auto with_kept = [&](Tensor LayerActivations::*lost) {
    PackedModel packed(*model_, cut(fixture_->ints("tokens"), fixture_->ints("lengths")),
                       Activations::kept);
    if (lost != nullptr) packed.lose(0, lost);
    return gradients(packed);
  };
  const std::vector<float> expected = gradients(*packed_);
  EXPECT_EQ(with_kept(nullptr), expected);
  // Each of them is what is used: without one the gradients are others.
  for (Tensor LayerActivations::*lost :
       {&LayerActivations::qkv, &LayerActivations::attended, &LayerActivations::lse,
        &LayerActivations::middle, &LayerActivations::gate_up})
    EXPECT_NE(with_kept(lost), expected);
}

/// A forward over the whole greedy continuation: each token must be the largest logit before it, by
/// the margin that the reference saw, less what rounding may move.
TEST_P(ReferenceModel, GreedyContinuation) {
  std::vector<int32_t> tokens = fixture_->ints("greedy_prompt");
  const auto prompt = static_cast<int64_t>(tokens.size());
  const auto continuation = fixture_->ints("greedy_tokens");
  const auto margins = fixture_->floats("greedy_margins");
  tokens.insert(tokens.end(), continuation.begin(), continuation.end());
  const PackedModel whole(*model_, {tokens});
  for (size_t i = 0; i < continuation.size(); ++i) {
    const std::vector<float> row =
        whole.to_vector(whole.logits().rows(prompt - 1 + static_cast<int64_t>(i), 1));
    const float chosen = row[static_cast<size_t>(continuation[i])];
    float runner_up = -INFINITY;
    for (size_t v = 0; v < row.size(); ++v)
      if (static_cast<int32_t>(v) != continuation[i]) runner_up = std::max(runner_up, row[v]);
    EXPECT_NEAR(chosen - runner_up, margins[i], 2 * tolerance_) << "token " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Float32, ReferenceModel,
                         testing::Values(Case{.name = "qwen3_tiny"}, Case{.name = "llama3_tiny"},
                                         Case{.name = "stories260K"}),
                         [](const auto& info) { return info.param.name; });

// A gradient passes through a dozen products whose results are rounded to 8 bits each.
INSTANTIATE_TEST_SUITE_P(BFloat16, ReferenceModel,
                         testing::Values(Case{.name = "qwen3_tiny_bf16", .gradients = 0.05}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace miles
