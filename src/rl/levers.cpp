#include "rl/levers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "base/units.h"

namespace miles {
namespace {

using Cost = Lever::Cost;
using Costs = std::set<Cost>;

/// Where everything stands.
struct Position {
  size_t mode = 0;              // 0: the run's own; else that of modes, from 1
  std::vector<size_t> at = {};  // [levers] indices of their values
};

/// Changes that are enough: each one, or all together.
struct Changes {
  std::vector<std::string> flags;  // a change each; empty: nothing is enough
  bool together = false;
  bool any() const { return !flags.empty(); }
};

class Search {
 public:
  Search(const TrainConfig& config, const Remedies& remedies, const LackOf& lack_of)
      : config_(config), levers_(remedies.levers), modes_(remedies.modes), lack_of_(lack_of) {}

  /// Levers of these costs that are enough by themselves, and modes where time may be lost.
  Changes each(const Costs& costs) const {
    Changes changes;
    for (size_t i = 0; i < levers_.size(); ++i) {
      Position position = at_first();
      if (costs.contains(levers_[i].cost)) position.at[i] = levers_[i].values.size() - 1;
      if (position.at[i] == 0 || !fits(position)) continue;
      relax(position, i);
      changes.flags.push_back(describe(position).front());
    }
    for (size_t mode = 1; mode <= modes_of(costs); ++mode)
      if (fits(at_first(mode))) changes.flags.push_back(modes_[mode - 1].flags);
    return changes;
  }

  /// Some that are enough together and none of them idle, in the first mode in which all are enough.
  Changes together(const Costs& costs) const {
    for (size_t mode = 0; mode <= modes_of(costs); ++mode)
      if (Position position = at_last(costs, mode); fits(position)) {
        for (const Cost cost : {Cost::task, Cost::memory, Cost::time}) relax_all(position, cost);
        return {describe(position), true};
      }
    return {};
  }

  Changes each_or_together(const Costs& costs) const {
    const Changes changes = each(costs);
    return changes.any() ? changes : together(costs);
  }

  /// With all of them: the flags and what is lacking still, in the mode in which that is least.
  std::pair<std::string, Shortage> least() const {
    std::pair<std::string, Shortage> best;
    for (size_t mode = 0; mode <= modes_.size(); ++mode) {
      const Position all = at_last({Cost::time, Cost::memory, Cost::task}, mode);
      const Shortage lack = *lack_at(all);
      if (mode == 0 || lack.bytes < best.second.bytes)
        best = {fmt::format("{}", fmt::join(describe(all, /*compared=*/false), " ")), lack};
    }
    return best;
  }

 private:
  size_t modes_of(const Costs& costs) const {
    return costs.contains(Cost::time) ? modes_.size() : 0;
  }
  Position at_first(size_t mode = 0) const { return {mode, std::vector<size_t>(levers_.size())}; }
  Position at_last(const Costs& costs, size_t mode) const {
    Position position = at_first(mode);
    for (size_t i = 0; i < levers_.size(); ++i)
      if (costs.contains(levers_[i].cost)) position.at[i] = levers_[i].values.size() - 1;
    return position;
  }

  /// The configuration there; `set` is told each lever that moved and its value.
  TrainConfig config_at(const Position& position,
                        const std::function<void(size_t, int64_t)>& set = {}) const {
    TrainConfig moved = config_;
    if (position.mode > 0) modes_[position.mode - 1].set(moved);
    for (size_t i = 0; i < levers_.size(); ++i)
      if (position.at[i] > 0) {
        const int64_t value = levers_[i].set(moved, levers_[i].values[position.at[i]]);
        if (set && value != levers_[i].values.front()) set(i, value);
      }
    return moved;
  }
  std::optional<Shortage> lack_at(const Position& position) const {
    return lack_of_(config_at(position));
  }
  bool fits(const Position& position) const { return !lack_at(position); }

  /// Moves lever `i` of what fits back, as far as it still does.
  void relax(Position& position, size_t i) const {
    size_t low = 0, high = position.at[i];  // that fits
    while (low < high) {
      position.at[i] = low + (high - low) / 2;
      if (fits(position))
        high = position.at[i];
      else
        low = position.at[i] + 1;
    }
    position.at[i] = high;
  }

  /// All levers of a cost, the last first: those that need not move at all go back before others.
  void relax_all(Position& position, Cost cost) const {
    std::vector<size_t> some;
    for (size_t i = levers_.size(); i-- > 0;)
      if (levers_[i].cost == cost) some.push_back(i);
    for (const size_t i : some) {
      const size_t moved = std::exchange(position.at[i], 0);
      if (!fits(position)) position.at[i] = moved;
    }
    for (const size_t i : some) relax(position, i);
  }

  /// "--max-tokens-per-gpu 512 (instead of 8192)", for each that differs from what it is now.
  std::vector<std::string> describe(const Position& position, bool compared = true) const {
    std::vector<std::string> all;
    if (position.mode > 0) all.push_back(modes_[position.mode - 1].flags);
    config_at(position, [&](size_t i, int64_t value) {
      const Lever& lever = levers_[i];
      const int64_t now = lever.values.front();
      std::string text = lever.says ? lever.says(value) : fmt::format("{} {}", lever.flag, value);
      if (compared && lever.unit == Lever::Unit::bytes)
        text +=
            fmt::format(" ({}, {} more than now)", format_bytes(value), format_bytes(value - now));
      else if (compared)
        text += fmt::format(" (instead of {})", now);
      all.push_back(text);
    });
    return all;
  }

  const TrainConfig& config_;
  std::span<const Lever> levers_;
  std::span<const Mode> modes_;
  const LackOf& lack_of_;
};

/// A line each.
std::string listed(const Changes& changes) {
  const char* const heading = changes.flags.size() == 1 ? ""
                              : changes.together        ? " all of"
                                                        : " any one of";
  return fmt::format("{}\n  {}", heading, fmt::join(changes.flags, "\n  "));
}

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
  constexpr int64_t kStep = int64_t{1} << 27;
  if (now >= most) return {now};
  std::set<int64_t> values = {now, most};
  if (needed > now && needed < most) values.insert(needed);
  for (int64_t value = (now / kStep + 1) * kStep; value < most; value += kStep)
    values.insert(value);
  return {values.begin(), values.end()};
}

std::string what_fits(const TrainConfig& config, const Remedies& remedies, const LackOf& lack_of) {
  const Search search(config, remedies, lack_of);
  std::vector<Changes> ways;
  const auto add = [&](const Changes& way) {
    if (way.any() && (ways.empty() || way.flags != ways.back().flags)) ways.push_back(way);
  };
  add(search.each_or_together({Cost::time}));
  if (ways.empty()) {
    add(search.each_or_together({Cost::time, Cost::task}));
    add(search.together({Cost::time, Cost::memory}));
  }
  add(search.each_or_together({Cost::memory}));
  if (ways.empty()) add(search.together({Cost::time, Cost::memory, Cost::task}));
  if (ways.empty()) {
    const auto [flags, still] = search.least();
    return fmt::format("Take a smaller model, or a machine with more memory: {}",
                       flags.empty() ? "no flag lowers the need"
                                     : fmt::format("even with {}, {}", flags, still.text));
  }
  std::string text = "It fits with";
  for (size_t i = 0; i < ways.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : "\nor with", listed(ways[i]));
  return text;
}

}  // namespace miles
