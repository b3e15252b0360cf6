#include "rl/reward_worker.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/process_groups.h"

namespace miles {
namespace {

struct Pipe {
  OwnedFd read;
  OwnedFd write;
};

[[noreturn]] void cannot_start(const std::string& command, int error) {
  fail(ErrorCode::device, "--custom-rm-command '{}': cannot start a process: {}", command,
       std::strerror(error));
}

/// Moves a descriptor above the standard three, where the child's dup2 cannot meet it.
OwnedFd above_standard(OwnedFd fd, const std::string& command) {
  if (fd.get() > STDERR_FILENO) return fd;
  const int moved = ::fcntl(fd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (moved < 0) cannot_start(command, errno);
  return OwnedFd(moved);
}

Pipe make_pipe(const std::string& command) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) cannot_start(command, errno);
  OwnedFd read(ends[0]), write(ends[1]);
  return {above_standard(std::move(read), command), above_standard(std::move(write), command)};
}

void make_nonblocking(const OwnedFd& fd) {
  ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
}

/// posix_spawn's two option objects, destroyed with their owner.
struct SpawnOptions {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;

  SpawnOptions() {
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    // An own group, so that what the command starts can be killed with it; signals as a program
    // expects them.
    posix_spawnattr_setpgroup(&attributes, 0);
    sigset_t signals;
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes, &signals);
    sigaddset(&signals, SIGPIPE);
    sigaddset(&signals, SIGXFSZ);  // both ignored by the program
    posix_spawnattr_setsigdefault(&attributes, &signals);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnOptions() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnOptions(const SpawnOptions&) = delete;
  SpawnOptions& operator=(const SpawnOptions&) = delete;
};

/// Starts /bin/sh -c `script`; its id, or -1 with `error` set.
pid_t spawn_shell(const char* script, const SpawnOptions& options, int& error) {
  const std::array<const char*, 4> arguments = {"/bin/sh", "-c", script, nullptr};
  pid_t pid = -1;
  error = ::posix_spawn(&pid, "/bin/sh", &options.files, &options.attributes,
                        const_cast<char* const*>(arguments.data()), environ);
  return error == 0 ? pid : -1;
}

/// A process in the group that kills it when nobody holds the pipe's other end any more: a command
/// that hangs would otherwise outlive a kill -9 of the program.
pid_t start_watch(pid_t group, const Pipe& life, int& error) {
  SpawnOptions options;
  posix_spawnattr_setpgroup(&options.attributes, group);
  posix_spawn_file_actions_adddup2(&options.files, life.read.get(), STDIN_FILENO);
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_addopen(&options.files, fd, "/dev/null", O_WRONLY, 0);
  return spawn_shell("read -r gone; kill -KILL 0", options, error);
}

void reap(pid_t pid, int* status) {
  while (::waitpid(pid, status, 0) < 0 && errno == EINTR) {
  }
}

std::string describe(int status) {
  if (WIFEXITED(status)) return fmt::format("exited with status {}", WEXITSTATUS(status));
  return fmt::format("ended by signal {}", WTERMSIG(status));
}

}  // namespace

OwnedFd::OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

OwnedFd& OwnedFd::operator=(OwnedFd&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void OwnedFd::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

RewardWorker::RewardWorker(const std::string& command) {
  Pipe in = make_pipe(command), out = make_pipe(command), err = make_pipe(command);
  Pipe life = make_pipe(command);
  SpawnOptions options;
  posix_spawn_file_actions_adddup2(&options.files, in.read.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&options.files, out.write.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&options.files, err.write.get(), STDERR_FILENO);
  int error = 0;
  pid_ = start_process_group([&] { return spawn_shell(command.c_str(), options, error); });
  if (error != 0) cannot_start(command, error);
  watch_ = start_watch(pid_, life, error);
  if (error != 0) {
    kill();
    cannot_start(command, error);
  }
  stdin_ = std::move(in.write);
  stdout_ = std::move(out.read);
  stderr_ = std::move(err.read);
  life_ = std::move(life.write);
  for (const OwnedFd* end : {&stdin_, &stdout_, &stderr_}) make_nonblocking(*end);
}

RewardWorker::~RewardWorker() {
  kill();
}

void RewardWorker::send(std::string_view line) {
  input_.append(line).push_back('\n');
}

void RewardWorker::pump() {
  write_input();
  read_stream(stdout_, output_);
  read_stream(stderr_, errors_);
  note_last_words();
}

void RewardWorker::write_input() {
  while (written_ < input_.size() && stdin_.is_open()) {
    const ssize_t n = ::write(stdin_.get(), input_.data() + written_, input_.size() - written_);
    if (n >= 0) {
      written_ += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      stdin_.close();  // EPIPE: nobody reads any more
      input_alive_ = false;
    }
  }
  input_.clear();
  written_ = 0;
}

void RewardWorker::read_stream(OwnedFd& stream, std::string& into) {
  // One call takes a bounded amount, so that a process that never stops talking cannot hold us
  // here.
  std::array<char, 1 << 16> chunk;
  for (int calls = 0; calls < 16 && stream.is_open(); ++calls) {
    const ssize_t n = ::read(stream.get(), chunk.data(), chunk.size());
    if (n > 0) {
      into.append(chunk.data(), static_cast<size_t>(n));
    } else if (n == 0) {
      stream.close();
    } else if (errno != EINTR) {
      if (errno != EAGAIN) stream.close();
      return;
    }
  }
}

void RewardWorker::note_last_words() {
  constexpr size_t kKept = 1 << 16, kShown = 300;
  const size_t end = errors_.find_last_not_of(" \t\r\n");
  if (end != std::string::npos) {
    const size_t newline = errors_.rfind('\n', end);
    const size_t begin = newline == std::string::npos ? 0 : newline + 1;
    last_words_ = errors_.substr(begin, std::min(end + 1 - begin, kShown));
  }
  if (errors_.size() > kKept) errors_.erase(0, errors_.size() - kKept);
}

void RewardWorker::add_streams(std::vector<pollfd>& streams) const {
  if (stdout_.is_open()) streams.push_back({stdout_.get(), POLLIN, 0});
  if (stderr_.is_open()) streams.push_back({stderr_.get(), POLLIN, 0});
  if (stdin_.is_open() && written_ < input_.size()) streams.push_back({stdin_.get(), POLLOUT, 0});
}

bool RewardWorker::take_line(std::string& line) {
  const size_t end = output_.find('\n');
  if (end == std::string::npos) return false;
  line = output_.substr(0, end);
  output_.erase(0, end + 1);
  return true;
}

std::vector<std::string> RewardWorker::take_error_lines() {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t end = errors_.find('\n'); end != std::string::npos; end = errors_.find('\n', begin)) {
    lines.push_back(errors_.substr(begin, end - begin));
    begin = end + 1;
  }
  errors_.erase(0, begin);
  return lines;
}

bool RewardWorker::has_exited() const {
  if (pid_ < 0) return true;
  siginfo_t info{};
  // Not reaped here: while the leader is a zombie, its group's number cannot be given to anybody
  // else.
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid_;
}

std::string RewardWorker::kill() {
  if (pid_ < 0) return "had ended";
  ::kill(-pid_, SIGKILL);
  forget_process_group(pid_);
  int status = 0;
  if (watch_ > 0) reap(watch_, &status);
  reap(pid_, &status);
  pid_ = watch_ = -1;
  read_stream(stderr_, errors_);
  note_last_words();
  for (OwnedFd* end : {&stdin_, &stdout_, &stderr_, &life_}) end->close();
  return describe(status);
}

}  // namespace miles
