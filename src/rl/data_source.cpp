#include "rl/data_source.h"

#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "rl/prompt_file.h"
#include "rl/synthetic.h"

namespace miles {
namespace {

/// A count of the state; refuses what no state holds.
int64_t count_of(const nlohmann::json& state, const char* key) {
  const auto found = state.find(key);
  if (found == state.end() || !found->is_number_integer() || found->get<int64_t>() < 0)
    fail(ErrorCode::data,
         "data source state: \"{}\" is {}; it must be a whole number from 0. The checkpoint is "
         "damaged "
         "or not one of ours: resume from another",
         key, found == state.end() ? "missing" : found->dump());
  return found->get<int64_t>();
}

}  // namespace

DataSource DataSource::load(const DataOptions& options) {
  DataSource source;
  source.path_ = options.path;
  source.prompts_ = is_synthetic(options.path) ? synthetic_prompts(options.path, options.seed)
                                               : read_prompt_file(options);
  source.shuffle_ = options.shuffle;
  source.seed_ = options.seed;
  source.begin_epoch(0);
  return source;
}

int64_t DataSource::keep_if(const std::function<bool(const Prompt&)>& keep) {
  MILES_CHECK(sample_group_index_ == 0, "prompts have been given already");
  const auto dropped = static_cast<int64_t>(
      std::erase_if(prompts_, [&](const Prompt& prompt) { return !keep(prompt); }));
  begin_epoch(0);
  return dropped;
}

void DataSource::begin_epoch(int64_t epoch) {
  epoch_id_ = epoch;
  sample_offset_ = 0;
  if (shuffle_) {
    order_ = permutation(size(), seed_ + static_cast<uint64_t>(epoch), 0);
  } else {
    order_.resize(prompts_.size());
    std::iota(order_.begin(), order_.end(), 0);
  }
}

const Prompt& DataSource::next() {
  if (sample_offset_ == size()) begin_epoch(epoch_id_ + 1);
  ++sample_group_index_;
  return prompts_[static_cast<size_t>(order_[static_cast<size_t>(sample_offset_++)])];
}

std::vector<Sample> DataSource::next_group(int64_t n_samples) {
  Sample sample;
  sample.group_index = sample_group_index_;
  const Prompt& prompt = next();
  sample.prompt = prompt.text;
  sample.label = prompt.label;
  sample.metadata = prompt.metadata;
  std::vector<Sample> group(static_cast<size_t>(n_samples), sample);
  for (Sample& member : group) member.index = sample_index_++;
  return group;
}

std::vector<Sample> DataSource::next_groups(int64_t n_prompts, int64_t n_samples) {
  std::vector<Sample> samples;
  for (int64_t p = 0; p < n_prompts; ++p) {
    auto group = next_group(n_samples);
    std::move(group.begin(), group.end(), std::back_inserter(samples));
  }
  return samples;
}

nlohmann::json DataSource::state() const {
  return {{"sample_offset", sample_offset_},
          {"epoch_id", epoch_id_},
          {"sample_group_index", sample_group_index_},
          {"sample_index", sample_index_},
          {"num_prompts", size()},
          {"shuffle", shuffle_},
          {"seed", seed_}};
}

void DataSource::restore(const nlohmann::json& state) {
  const nlohmann::json now = this->state();
  for (const char* key : {"num_prompts", "shuffle", "seed"}) {
    const nlohmann::json saved =
        state.is_object() ? state.value(key, nlohmann::json()) : nlohmann::json();
    if (saved != now[key])
      fail(ErrorCode::data,
           "{}: the checkpoint was made with {} = {}, this run has {}; resuming would skip or "
           "repeat "
           "prompts. Give the same --prompt-data, --rollout-shuffle and --rollout-seed as then",
           path_, key, saved.dump(), now[key].dump());
  }
  const int64_t offset = count_of(state, "sample_offset");
  const int64_t epoch = count_of(state, "epoch_id");
  const int64_t group_index = count_of(state, "sample_group_index");
  const int64_t sample_index = count_of(state, "sample_index");
  if (offset > size())
    fail(ErrorCode::data, "{}: the checkpoint stands at prompt {} of {}; it is damaged", path_,
         offset, size());
  begin_epoch(epoch);
  sample_offset_ = offset;
  sample_group_index_ = group_index;
  sample_index_ = sample_index;
}

}  // namespace miles
