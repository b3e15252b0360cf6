#include "rl/reward_command.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "rl/reward_worker.h"

namespace miles {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr int kLoggedProblems = 5;
constexpr int kLoggedErrorLines = 20;
constexpr size_t kMaxReplyBytes = 1 << 20;
constexpr double kMaxTimeoutSeconds = 1e6;
constexpr int64_t kMostWait = 500;  // ms; a signal may have come to another thread
constexpr auto kStart = std::chrono::milliseconds(200);  // a shell has failed by then
constexpr auto kGrace = std::chrono::seconds(1);  // to end by itself, after its stdin was closed

/// Writing to a worker that has ended must give EPIPE, not end the program.
void ignore_sigpipe() {
  struct sigaction now {};
  sigaction(SIGPIPE, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
}

std::string line_of(const RewardRequest& request) {
  const json line = {{"id", request.id},
                     {"prompt", request.prompt},
                     {"response", request.response},
                     {"label", request.label},
                     {"metadata", request.metadata}};
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// `text` as it can be shown in a message.
std::string shown(const std::string& text) {
  constexpr size_t kShown = 200;
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

/// What a reply came to, and whether its worker can be trusted with the next sample.
struct Reply {
  RewardResult result;
  bool in_order = true;
};

Reply out_of_order(const std::string& line, std::string_view why) {
  return {.result = {.reward = {},
                     .problem = fmt::format("the reply {} (reply: {})", why, shown(line))},
          .in_order = false};
}

/// Beyond, the difference of two would be no finite float, as an advantage is.
constexpr double kMostReward = 1e37;

Reply read_reply(const std::string& line, int64_t id) {
  const json reply = json::parse(line, nullptr, false);
  if (!reply.is_object()) return out_of_order(line, "is not a JSON object");
  const json number = reply.value("id", json());
  if (!number.is_number_integer() || number != id)
    return out_of_order(line, fmt::format("has not the id {}", id));
  if (!reply.contains("reward")) return out_of_order(line, "has no \"reward\"");
  const json& reward = reply["reward"];
  if (reward.is_null()) return {.result = {.reward = {}, .problem = "the reward is null"}};
  if (!reward.is_number()) return out_of_order(line, "has a reward that is no number");
  const double value = reward.get<double>();
  if (!std::isfinite(value)) return out_of_order(line, "has a reward that is not finite");
  if (std::fabs(value) > kMostReward)
    return {.result = {.reward = {},
                       .problem = fmt::format("the reward {} is beyond ±{}", value, kMostReward)}};
  return {.result = {.reward = value, .problem = {}}};
}

}  // namespace

/// The workers, and the loop that keeps them busy.
class RewardCommand::Pool {
 public:
  explicit Pool(RewardCommandOptions options) : options_(std::move(options)) {
    if (options_.workers < 1)
      fail(ErrorCode::flags, "--rm-workers is {}; it must be at least 1", options_.workers);
    if (!(options_.timeout_seconds > 0 && options_.timeout_seconds <= kMaxTimeoutSeconds))
      fail(ErrorCode::flags, "--rm-timeout is {}; it must be above 0 and at most {} seconds",
           options_.timeout_seconds, kMaxTimeoutSeconds);
    if (options_.command.empty()) fail(ErrorCode::flags, "--custom-rm-command is empty");
    ignore_sigpipe();
    slots_.resize(static_cast<size_t>(options_.workers));
    for (Slot& slot : slots_) slot.worker = std::make_unique<RewardWorker>(options_.command);
  }

  ~Pool() {
    for (Slot& slot : slots_)
      if (slot.worker) slot.worker->close_input();
    const auto deadline = Clock::now() + kGrace;
    const auto all_exited = [this] {
      return std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
        return !slot.worker || slot.worker->has_exited();
      });
    };
    while (!all_exited() && Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

  void check_started() {
    if (has_been_asked_) return;
    bool all_exited = true;
    for (Slot& slot : slots_) {
      slot.worker->pump();
      log_errors(*slot.worker);
      if (slot.worker->has_exited()) continue;
      all_exited = false;
      if (slot.worker->pending_output() > 0) refuse_unasked(*slot.worker);
    }
    if (!all_exited) return;
    RewardWorker& first = *slots_.front().worker;
    const std::string end = first.kill();
    fail(ErrorCode::data,
         "--custom-rm-command '{}' cannot start: it {} before it was asked anything{}. Try it by "
         "hand: it must read a JSON line from stdin and write one to stdout",
         options_.command, end,
         first.last_words().empty() ? "" : "; its last words: " + first.last_words());
  }

  void await_start() {
    while (Clock::now() < started_ + kStart) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      check_started();
    }
    check_started();
  }

  std::vector<RewardResult> score(std::span<const RewardRequest> requests) {
    has_been_asked_ = true;
    requests_ = requests;
    results_.assign(requests.size(), {});
    next_ = finished_ = 0;
    for (Slot& slot : slots_)  // of a call that threw
      if (std::exchange(slot.request, std::nullopt)) slot.worker.reset();
    while (finished_ < requests.size()) {
      stop_if_interrupted();
      for (Slot& slot : slots_) give_work(slot);
      wait();
      for (Slot& slot : slots_) collect(slot);
    }
    check_not_all_failed();
    return std::move(results_);
  }

 private:
  struct Slot {
    std::unique_ptr<RewardWorker> worker;  // none: start one with the next request
    std::optional<size_t> request;         // what it works on
    Clock::time_point deadline;            // for that
  };

  /// What it printed would be taken for the reply to its first sample.
  [[noreturn]] void refuse_unasked(RewardWorker& worker) const {
    std::string line;
    worker.take_line(line);
    fail(ErrorCode::data,
         "--custom-rm-command '{}' printed{} before it was asked anything; its stdout is for "
         "replies "
         "alone, and stderr for what else it has to say",
         options_.command, line.empty() ? "" : fmt::format(" '{}'", shown(line)));
  }

  void give_work(Slot& slot) {
    if (slot.request || next_ == requests_.size()) return;
    if (slot.worker) {
      // It may have ended, or said what nobody asked for, since its last reply: no sample's fault.
      slot.worker->pump();
      log_errors(*slot.worker);
      if (slot.worker->pending_output() > 0)
        log_problem("a reward worker printed more than one line for a sample; it is started anew");
      if (slot.worker->has_ended() || slot.worker->pending_output() > 0) slot.worker.reset();
    }
    if (!slot.worker) slot.worker = std::make_unique<RewardWorker>(options_.command);
    slot.request = next_++;
    slot.deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                       std::chrono::duration<double>(options_.timeout_seconds));
    slot.worker->send(line_of(requests_[*slot.request]));  // collect writes it, after a poll
  }

  /// Waits until a busy worker has something for us, or the first deadline passes.
  void wait() {
    std::vector<pollfd> streams;
    auto deadline = Clock::time_point::max();
    for (const Slot& slot : slots_) {
      if (!slot.request) continue;
      slot.worker->add_streams(streams);
      deadline = std::min(deadline, slot.deadline);
      if (slot.worker->has_ended()) return;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    const int timeout = static_cast<int>(std::clamp<int64_t>(left, 0, kMostWait));
    if (::poll(streams.data(), streams.size(), timeout) < 0 && errno != EINTR)
      fail(ErrorCode::device, "--custom-rm-command: poll failed (errno {})", errno);
  }

  void collect(Slot& slot) {
    if (!slot.request) return;
    slot.worker->pump();
    log_errors(*slot.worker);
    std::string line;
    if (slot.worker->take_line(line)) {
      Reply reply = read_reply(line, requests_[*slot.request].id);
      if (!reply.in_order) return drop_worker(slot, std::move(reply.result.problem));
      has_ever_replied_ = true;
      return finish(slot, std::move(reply.result));
    }
    if (slot.worker->pending_output() > kMaxReplyBytes)
      return drop_worker(slot, "the reply is longer than 1 MiB");
    if (slot.worker->has_ended()) return drop_worker(slot, "the worker ended without a reply");
    if (Clock::now() >= slot.deadline)
      return drop_worker(slot, fmt::format("no reply within {} seconds", options_.timeout_seconds));
  }

  /// Fails the slot's sample and kills its worker.
  void drop_worker(Slot& slot, std::string problem) {
    const bool ended = slot.worker->has_ended();
    const std::string end = slot.worker->kill();
    log_errors(*slot.worker);
    if (ended) problem += "; it " + end;
    if (!slot.worker->last_words().empty())
      problem += "; its last words: " + slot.worker->last_words();
    slot.worker.reset();
    finish(slot, {.reward = {}, .problem = std::move(problem)});
    if (has_ever_replied_) return;
    if (++failures_before_reply_ >= std::max<int64_t>(5, 2 * options_.workers))
      fail(ErrorCode::data,
           "--custom-rm-command '{}' failed {} times and never answered: {}. Try it by hand: it "
           "must "
           "read a JSON line from stdin and write one to stdout",
           options_.command, failures_before_reply_, results_[last_finished_].problem);
  }

  void finish(Slot& slot, RewardResult result) {
    const size_t request = *slot.request;
    slot.request.reset();
    if (!result.reward)
      log_problem(
          fmt::format("no reward for sample {}: {}", requests_[request].id, result.problem));
    results_[request] = std::move(result);
    last_finished_ = request;
    ++finished_;
  }

  void log_problem(const std::string& problem) {
    if (++logged_problems_ > kLoggedProblems) return;
    log::warn("{}{}", problem,
              logged_problems_ == kLoggedProblems ? " (further problems are not logged)" : "");
  }

  void log_errors(RewardWorker& worker) {
    for (const std::string& line : worker.take_error_lines())
      if (logged_error_lines_++ < kLoggedErrorLines) log::warn("reward command: {}", shown(line));
  }

  void check_not_all_failed() const {
    const auto failed = [](const RewardResult& result) { return !result.reward; };
    if (results_.empty() || !std::all_of(results_.begin(), results_.end(), failed)) return;
    fail(ErrorCode::data,
         "--custom-rm-command '{}': not one of {} samples got a reward; the first: {}. Mend the "
         "command, or give more time with --rm-timeout",
         options_.command, results_.size(), results_.front().problem);
  }

  RewardCommandOptions options_;
  std::vector<Slot> slots_;  // [workers]
  std::span<const RewardRequest> requests_;
  std::vector<RewardResult> results_;  // [requests]
  size_t next_ = 0;                    // first request not yet given out
  size_t finished_ = 0;                // requests with a result
  size_t last_finished_ = 0;           // the latest of them
  Clock::time_point started_ = Clock::now();
  bool has_been_asked_ = false;        // a request was sent, to any worker
  bool has_ever_replied_ = false;      // a reply in order was read
  int64_t failures_before_reply_ = 0;  // samples that cost a worker before any such reply
  int logged_problems_ = 0;
  int logged_error_lines_ = 0;
};

RewardCommand::RewardCommand(RewardCommandOptions options)
    : pool_(std::make_unique<Pool>(std::move(options))) {}

RewardCommand::~RewardCommand() = default;

void RewardCommand::check_started() {
  pool_->check_started();
}

void RewardCommand::await_start() {
  pool_->await_start();
}

std::vector<RewardResult> RewardCommand::score(std::span<const RewardRequest> requests) {
  return pool_->score(requests);
}

}  // namespace miles
