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

/// A search over positions of some levers.
class Search {
 public:
  Search(const TrainConfig& config, std::vector<Lever> levers, const Shortage& shortage)
      : config_(config), levers_(std::move(levers)), shortage_(shortage) {}

  /// Each change that is enough by itself, else as few as are together; a line each below a
  /// heading. Empty: all of them are not enough.
  std::string changes() const {
    if (const auto one = single_changes(); !one.empty())
      return listed(one.size() == 1 ? "" : " any one of", one);
    if (lack(at_last())) return "";
    return listed(" all of", joint_changes());
  }

  /// What is lacking with all at their last values; none: nothing.
  std::optional<std::string> lack_at_last() const { return lack(at_last()); }
  /// Those values, as flags; empty: nothing can be moved.
  std::string flags_at_last() const {
    std::vector<std::string> flags;
    const Positions last = at_last();
    for (size_t i = 0; i < last.size(); ++i)
      if (last[i] > 0) flags.push_back(flag(i, last[i]));
    return fmt::format("{}", fmt::join(flags, " "));
  }

 private:
  Positions at_first() const { return Positions(levers_.size(), 0); }
  Positions at_last() const {
    Positions at;
    for (const Lever& lever : levers_) at.push_back(lever.values.size() - 1);
    return at;
  }

  std::optional<std::string> lack(const Positions& at) const {
    TrainConfig moved = config_;
    for (size_t i = 0; i < at.size(); ++i)
      if (at[i] > 0) levers_[i].set(moved, levers_[i].values[at[i]]);
    return shortage_(moved);
  }
  bool fits(const Positions& at) const { return !lack(at); }

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

  std::vector<std::string> single_changes() const {
    std::vector<std::string> changes;
    for (const bool of_task : {false, true}) {
      for (size_t i = 0; i < levers_.size(); ++i) {
        if ((levers_[i].cost == Lever::Cost::task) != of_task) continue;
        Positions at = at_first();
        at[i] = levers_[i].values.size() - 1;
        if (at[i] == 0 || !fits(at)) continue;
        relax(at, i);
        changes.push_back(change(i, at[i]));
      }
      if (!changes.empty()) break;
    }
    return changes;
  }

  std::vector<std::string> joint_changes() const {
    Positions at = at_last();
    Positions order(levers_.size());  // what costs most goes back first
    for (size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
    std::ranges::stable_sort(order, std::greater{}, [&](size_t i) { return levers_[i].cost; });
    for (const size_t i : order) {
      const size_t moved = std::exchange(at[i], 0);
      if (!fits(at)) at[i] = moved;
    }
    for (const size_t i : order) relax(at, i);
    std::vector<std::string> changes;
    for (size_t i = 0; i < at.size(); ++i)
      if (at[i] > 0) changes.push_back(change(i, at[i]));
    return changes;
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

  static std::string listed(const char* heading, const std::vector<std::string>& changes) {
    return fmt::format("{}\n  {}", heading, fmt::join(changes, "\n  "));
  }

  const TrainConfig& config_;
  std::vector<Lever> levers_;
  const Shortage& shortage_;
};

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
  std::vector<Lever> budgets, flags;
  for (const Lever& lever : levers)
    (lever.cost == Lever::Cost::memory ? budgets : flags).push_back(lever);
  const Search within(config, flags, shortage), above(config, budgets, shortage);
  const std::string fitting = within.changes(), raised = above.changes();
  if (!fitting.empty())
    return fmt::format("It fits with{}{}", fitting, raised.empty() ? "" : "\nor with" + raised);
  const std::string least = within.flags_at_last();
  if (!raised.empty())
    return fmt::format("It fits with{}{}", raised,
                       least.empty() ? ""
                                     : fmt::format("\nNo other flag is enough: even with {}, {}",
                                                   least, *within.lack_at_last()));
  const Search all(config, {levers.begin(), levers.end()}, shortage);
  if (const std::string both = all.changes(); !both.empty()) return "It fits with" + both;
  const std::string all_flags = all.flags_at_last();
  return fmt::format("Take a smaller model, or a machine with more memory: {}",
                     all_flags.empty()
                         ? "no flag lowers the need"
                         : fmt::format("even with {}, {}", all_flags, *all.lack_at_last()));
}

}  // namespace miles
