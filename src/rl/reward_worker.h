// One process of --custom-rm-command: lines in, lines out, and never a wait that the caller did not
// ask for.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace miles {

/// A file descriptor of ours, closed with its owner.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept;
  OwnedFd& operator=(OwnedFd&& other) noexcept;
  ~OwnedFd() { close(); }
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void close();

 private:
  int fd_ = -1;
};

class RewardWorker {
 public:
  /// Starts /bin/sh -c `command` in a process group of its own, its three streams on pipes. Nothing
  /// else of ours is open in it, and whatever ends us, the group ends with us: only what has left it
  /// may go on. Throws Error{device} when the system cannot start a process.
  explicit RewardWorker(const std::string& command);

  /// Kills and reaps whatever of the group is left.
  ~RewardWorker();
  RewardWorker(const RewardWorker&) = delete;
  RewardWorker& operator=(const RewardWorker&) = delete;

  /// Queues one line (without its end) for stdin.
  void send(std::string_view line);

  /// Moves what can be moved at once: queued input into the process, its output and its stderr out
  /// of it.
  void pump();

  /// The streams worth waiting for: readable output, and room for input when some is queued.
  void add_streams(std::vector<pollfd>& streams) const;

  /// Takes the first whole line of output; false when there is none yet.
  bool take_line(std::string& line);

  /// Output that no take_line has taken, whole line or not.
  size_t pending_output() const { return output_.size(); }

  /// Takes the whole lines of stderr read so far.
  std::vector<std::string> take_error_lines();

  /// The last line of stderr, whole or not, cut to a readable length; empty when there was none.
  const std::string& last_words() const { return last_words_; }

  /// Whether it can answer no more: it closed its output or its input.
  bool has_ended() const { return !stdout_.is_open() || !input_alive_; }

  /// Tells it that no more input comes, so that it may end by itself.
  void close_input() { stdin_.close(); }

  /// Whether the process has ended; does not wait.
  bool has_exited() const;

  /// Kills the whole group, reads what it still said, reaps it. Returns how it ended: "exited with
  /// status 3".
  std::string kill();

 private:
  void write_input();
  static void read_stream(OwnedFd& stream, std::string& into);
  void note_last_words();

  pid_t pid_ = -1;    // leader of the group; -1 once reaped
  pid_t watch_ = -1;  // kills the group when life_ is closed; -1 once reaped
  OwnedFd stdin_;     // its streams: our ends, not blocking
  OwnedFd stdout_;
  OwnedFd stderr_;
  OwnedFd life_;             // held open as long as we live, never written to
  bool input_alive_ = true;  // nobody reads stdin any more: false
  std::string input_;        // bytes not yet written
  size_t written_ = 0;       // bytes of input_ already written
  std::string output_;       // bytes of stdout not yet taken
  std::string errors_;       // bytes of stderr not yet taken
  std::string last_words_;   // see last_words()
};

}  // namespace miles
