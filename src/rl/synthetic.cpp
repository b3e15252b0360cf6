#include "rl/synthetic.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/rng.h"

namespace miles {
namespace {

constexpr std::string_view kScheme = "synthetic:";
constexpr std::string_view kAddition = "addition";

enum class Split { train, eval };

struct AdditionOptions {
  int64_t max = 99;              // largest number to add
  std::optional<int64_t> count;  // prompts
  Split split = Split::train;
  int64_t noise = 0;  // percent of labels that are wrong
};

struct Range {
  int64_t least;
  int64_t most;
};

struct Option {
  std::string_view key;
  std::string_view value;
};

int64_t parse_number(const Option& option, Range range, const std::string& path) {
  int64_t number = 0;
  const char* end = option.value.data() + option.value.size();
  const auto [rest, error] = std::from_chars(option.value.data(), end, number);
  if (error != std::errc() || rest != end || number < range.least || number > range.most)
    fail(ErrorCode::flags, "{}: {} is \"{}\"; it must be a number from {} to {}", path, option.key,
         option.value, range.least, range.most);
  return number;
}

void apply(const Option& option, AdditionOptions& options, const std::string& path) {
  if (option.key == "max") {
    options.max = parse_number(option, {9, 1'000'000'000}, path);
  } else if (option.key == "count") {
    options.count = parse_number(option, {1, 10'000'000}, path);
  } else if (option.key == "noise") {
    options.noise = parse_number(option, {0, 100}, path);
  } else if (option.key == "split" && option.value == "train") {
    options.split = Split::train;
  } else if (option.key == "split" && option.value == "eval") {
    options.split = Split::eval;
  } else {
    fail(ErrorCode::flags,
         "{}: unknown option \"{}={}\"; there are max=NUMBER, count=NUMBER, "
         "noise=PERCENT, split=train and split=eval",
         path, option.key, option.value);
  }
}

AdditionOptions parse_options(const std::string& path) {
  std::string_view rest = std::string_view(path).substr(kScheme.size());
  const std::string_view name = rest.substr(0, rest.find('?'));
  if (name != kAddition)
    fail(ErrorCode::flags, "{}: unknown built-in data \"{}\"; there is {}{}", path, name, kScheme,
         kAddition);
  AdditionOptions options;
  rest.remove_prefix(std::min(name.size() + 1, rest.size()));
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find('&'));
    const size_t equals = std::min(item.find('='), item.size());
    apply({item.substr(0, equals), item.substr(std::min(equals + 1, item.size()))}, options, path);
    rest.remove_prefix(std::min(item.size() + 1, rest.size()));
  }
  return options;
}

/// Takes no seed: which split a sum belongs to must not change from run to run.
Split split_of(uint64_t a, uint64_t b) {
  constexpr uint64_t kSplitSeed = 0x5EED;
  return uniform_below(10, kSplitSeed, RngUse::synthetic, a, b) == 0 ? Split::eval : Split::train;
}

/// The label with one digit replaced by another, when the row draws so.
std::string noisy_label(std::string label, const AdditionOptions& options, uint64_t seed,
                        uint64_t row) {
  const auto draw = [&](uint64_t bound, uint64_t counter) {
    // Counters from the far end: the numbers themselves are drawn from 0 upwards.
    return uniform_below(bound, seed, RngUse::synthetic, row, ~counter);
  };
  if (static_cast<int64_t>(draw(100, 0)) >= options.noise) return label;
  char& digit = label[draw(label.size(), 1)];
  digit = static_cast<char>('0' + (digit - '0' + 1 + static_cast<int>(draw(9, 2))) % 10);
  return label;
}

Prompt addition_prompt(const AdditionOptions& options, uint64_t seed, int64_t row) {
  const uint64_t bound = static_cast<uint64_t>(options.max) + 1;
  // Every range has sums of both splits (0+0 … 9+9 hold some of each), so this ends.
  for (uint64_t draw = 0;; ++draw) {
    const auto stream = static_cast<uint64_t>(row);
    const uint64_t a = uniform_below(bound, seed, RngUse::synthetic, stream, 2 * draw);
    const uint64_t b = uniform_below(bound, seed, RngUse::synthetic, stream, 2 * draw + 1);
    if (split_of(a, b) != options.split) continue;
    return {.text = fmt::format("{}+{}=", a, b),
            .label = noisy_label(fmt::format("{}", a + b), options, seed, stream),
            .metadata = nlohmann::json::object(),
            .row = row};
  }
}

}  // namespace

bool is_synthetic(const std::string& path) {
  return path.starts_with(kScheme);
}

std::vector<Prompt> synthetic_prompts(const std::string& path, uint64_t seed) {
  const AdditionOptions options = parse_options(path);
  const int64_t count = options.count.value_or(options.split == Split::eval ? 500 : 10000);
  std::vector<Prompt> prompts;
  prompts.reserve(static_cast<size_t>(count));
  for (int64_t row = 0; row < count; ++row) prompts.push_back(addition_prompt(options, seed, row));
  return prompts;
}

}  // namespace miles
