// A process that does something each time it is asked to: it reads a line from its standard input and answers with one
// line. So that what is compared is alive at the same time and works by turns.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

extern char** environ;

namespace scaletrain {

class TurnProcess {
 public:
  // words: the program, by its path or as the shell would find it, and its arguments.
  explicit TurnProcess(std::vector<std::string> words) : name_(words.at(0)) {
    std::array<int, 2> in{}, out{};
    if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipes");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    std::vector<char*> arguments;
    arguments.reserve(words.size() + 1);
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const int error = ::posix_spawnp(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    commands_ = ::fdopen(in[1], "w");
    answers_ = ::fdopen(out[0], "r");
    if (error != 0) throw std::runtime_error(name_ + " could not be started");
  }
  TurnProcess(TurnProcess&& other) noexcept
      : name_(std::move(other.name_)),
        pid_(std::exchange(other.pid_, -1)),
        commands_(std::exchange(other.commands_, nullptr)),
        answers_(std::exchange(other.answers_, nullptr)) {}
  TurnProcess& operator=(TurnProcess&&) = delete;
  TurnProcess(const TurnProcess&) = delete;
  TurnProcess& operator=(const TurnProcess&) = delete;
  ~TurnProcess() {
    end_commands();
    if (answers_ != nullptr) std::fclose(answers_);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }

  void ask(const char* command) {
    std::fprintf(commands_, "%s\n", command);
    std::fflush(commands_);
  }
  // The process ends when it has answered what it was asked; some have a last word then.
  void end_commands() {
    if (commands_ != nullptr) std::fclose(std::exchange(commands_, nullptr));
  }
  // The next line, without its end.
  std::string answer() {
    std::string line;
    for (int c = std::fgetc(answers_); c != '\n'; c = std::fgetc(answers_)) {
      if (c == EOF) throw std::runtime_error(name_ + " ended early: its message stands above");
      line += static_cast<char>(c);
    }
    return line;
  }

 private:
  std::string name_;
  pid_t pid_ = -1;
  std::FILE* commands_ = nullptr;
  std::FILE* answers_ = nullptr;
};

}  // namespace scaletrain
