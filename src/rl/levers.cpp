#include "rl/levers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace miles {
namespace {

using Shortage = std::function<std::optional<std::string>(const TrainConfig&)>;

/// Where every lever stands: [levers] indices of its values.
using Positions = std::vector<size_t>;

class Search {
 public:
  Search(const TrainConfig& config, std::span<const Lever> levers, const Shortage& shortage)
      : config_(config), levers_(levers), shortage_(shortage) {}

  std::optional<std::string> lack(const Positions& at) const {
    TrainConfig moved = config_;
    for (size_t i = 0; i < at.size(); ++i)
      if (at[i] > 0) levers_[i].set(moved, levers_[i].values[at[i]]);
    return shortage_(moved);
  }
  bool fits(const Positions& at) const { return !lack(at); }

  Positions none() const { return Positions(levers_.size(), 0); }
  Positions all() const {
    Positions at;
    for (const Lever& lever : levers_) at.push_back(lever.values.size() - 1);
    return at;
  }

  /// Moves lever `i` of what fits back, as far as it still does.
  void relax(Positions& at, size_t i) const {
    size_t low = 0, high = at[i];  // that fits
    while (low < high) {
      at[i] = low + (high - low) / 2;
      if (fits(at))
        high = at[i];
      else
        low = at[i] + 1;
    }
    at[i] = high;
  }

  /// "--max-tokens-per-gpu 512".
  std::string flag(size_t i, size_t position) const {
    const Lever& lever = levers_[i];
    if (lever.unit == Lever::Unit::given) return lever.flag;
    if (lever.says) return lever.says(lever.values[position]);
    return fmt::format("{} {}", lever.flag, lever.values[position]);
  }
  /// The same, with what it is now.
  std::string change(size_t i, size_t position) const {
    const Lever& lever = levers_[i];
    const int64_t value = lever.values[position], now = lever.values.front();
    switch (lever.unit) {
      case Lever::Unit::given:
        return flag(i, position);
      case Lever::Unit::bytes:
        return fmt::format("{} ({}, instead of {})", flag(i, position), format_bytes(value),
                           format_bytes(now));
      case Lever::Unit::count:
        return fmt::format("{} (instead of {})", flag(i, position), now);
    }
    return "";
  }

 private:
  const TrainConfig& config_;
  std::span<const Lever> levers_;
  const Shortage& shortage_;
};

/// Each change that is enough by itself.
std::vector<std::string> single_changes(const Search& search, std::span<const Lever> levers) {
  std::vector<std::string> changes;
  for (const bool of_task : {false, true}) {
    for (size_t i = 0; i < levers.size(); ++i) {
      if ((levers[i].cost == Lever::Cost::task) != of_task) continue;
      Positions at = search.none();
      at[i] = levers[i].values.size() - 1;
      if (at[i] == 0 || !search.fits(at)) continue;
      search.relax(at, i);
      changes.push_back(search.change(i, at[i]));
    }
    if (!changes.empty()) break;
  }
  return changes;
}

/// As few as are enough together, when all are.
std::vector<std::string> joint_changes(const Search& search, std::span<const Lever> levers) {
  Positions at = search.all();
  // What costs most goes back first.
  Positions order = search.none();
  for (size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
  std::ranges::stable_sort(order, std::greater{}, [&](size_t i) { return levers[i].cost; });
  for (const size_t i : order) {
    const size_t moved = std::exchange(at[i], 0);
    if (!search.fits(at)) at[i] = moved;
  }
  for (const size_t i : order) search.relax(at, i);
  std::vector<std::string> changes;
  for (size_t i = 0; i < at.size(); ++i)
    if (at[i] > 0) changes.push_back(search.change(i, at[i]));
  return changes;
}

/// " any one of" changes of these levers, a line each, or " all of" them; empty: they are not enough.
std::string changes_that_fit(const TrainConfig& config, std::span<const Lever> levers,
                             const Shortage& shortage) {
  const Search search(config, levers, shortage);
  const char* how = " any one of";
  std::vector<std::string> changes = single_changes(search, levers);
  if (changes.empty() && search.fits(search.all())) {
    how = " all of";
    changes = joint_changes(search, levers);
  }
  if (changes.empty()) return "";
  return fmt::format("{}\n  {}", changes.size() == 1 ? "" : how, fmt::join(changes, "\n  "));
}

constexpr const char* kHopeless = "Take a smaller model, or a machine with more memory";

}  // namespace

std::vector<int64_t> values_down_to(int64_t least, int64_t now) {
  std::vector<int64_t> values;
  for (int64_t power = 1; power < now; power *= 2)
    for (const int64_t value : {power, power + power / 2})
      if (value > least && value < now && (values.empty() || value > values.front()))
        values.insert(values.begin(), value);
  values.insert(values.begin(), now);
  if (least < now) values.push_back(least);
  return values;
}

std::vector<int64_t> budgets_up_to(int64_t most, int64_t now, int64_t needed) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  std::vector<int64_t> values = {now};
  if (now >= most) return values;
  if (needed > now && needed < most) values.push_back(needed);
  for (int64_t value = (values.back() / kGiB + 1) * kGiB; value < most; value += kGiB)
    values.push_back(value);
  values.push_back(most);
  return values;
}

std::string what_fits(const TrainConfig& config, std::span<const Lever> levers,
                      const Shortage& shortage) {
  const auto of = [&](std::initializer_list<bool> memory) {
    std::vector<Lever> some;
    for (const Lever& lever : levers)
      if (std::ranges::find(memory, lever.cost == Lever::Cost::memory) != memory.end())
        some.push_back(lever);
    return some;
  };
  const std::vector<Lever> flags = of({false}), budgets = of({true});
  std::string text = changes_that_fit(config, flags, shortage);
  const std::string more = changes_that_fit(config, budgets, shortage);
  if (!text.empty()) text = "It fits with" + text;
  if (!more.empty())
    text += fmt::format("{} with{}", text.empty() ? "No other flag is enough: it fits" : "\nor", more);
  if (!text.empty()) return text;
  if (text = changes_that_fit(config, levers, shortage); !text.empty()) return "It fits with" + text;
  const Search search(config, levers, shortage);
  const Positions all = search.all();
  std::vector<std::string> least;
  for (size_t i = 0; i < levers.size(); ++i)
    if (all[i] > 0) least.push_back(search.flag(i, all[i]));
  if (least.empty()) return fmt::format("{}: no flag lowers the need", kHopeless);
  return fmt::format("{}: even with {}, {}", kHopeless, fmt::join(least, " "), *search.lack(all));
}

}  // namespace miles
