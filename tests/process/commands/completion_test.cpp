// What shells complete, by the shells themselves: each is started in a terminal of its own, is given the script, and
// types a part of a command with a tabulator behind it.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "support/program.h"
#include "support/temp_folder.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> offered(std::vector<std::string> words) {
  words.insert(words.begin(), {"complete", "--"});
  const Ended end = run_program({.executable = SCALETRAIN_PROGRAM, .arguments = std::move(words)});
  CHECK(end.exit_code == 0);
  std::vector<std::string> out;
  std::size_t begin = 0;
  for (std::size_t stop = end.output.find('\n'); stop != std::string::npos; stop = end.output.find('\n', begin)) {
    const std::string line = end.output.substr(begin, stop - begin);
    out.push_back(line.substr(0, line.find('\t')));
    begin = stop + 1;
  }
  return out;
}

bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Empty where it is not installed.
std::string path_of(const std::string& shell) {
  for (const char* folder : {"/usr/bin/", "/bin/", "/usr/local/bin/"})
    if (fs::exists(folder + shell)) return folder + shell;
  return {};
}

// A shell in a terminal.
class Terminal {
 public:
  Terminal(const std::string& shell, std::vector<std::string> arguments, const fs::path& home) {
    winsize size{.ws_row = 50, .ws_col = 200, .ws_xpixel = 0, .ws_ypixel = 0};
    child_ = ::forkpty(&descriptor_, nullptr, nullptr, &size);
    REQUIRE(child_ >= 0);
    if (child_ == 0) {
      ::setenv("HOME", home.c_str(), 1);
      ::setenv("XDG_CONFIG_HOME", (home / "config").c_str(), 1);
      ::setenv("XDG_DATA_HOME", (home / "data").c_str(), 1);
      ::setenv("TERM", "dumb", 1);
      ::setenv("PATH", (fs::path(SCALETRAIN_PROGRAM).parent_path().string() + ":/usr/bin:/bin").c_str(), 1);
      if (::chdir(home.c_str()) != 0) ::_exit(126);
      std::vector<char*> argv;
      std::string name = shell;
      argv.push_back(name.data());
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      ::execv(shell.c_str(), argv.data());
      ::_exit(127);
    }
  }
  ~Terminal() {
    ::close(descriptor_);
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& text) {
    REQUIRE(::write(descriptor_, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  // Whether it shows this within a minute, beyond what was shown before the last call that found something.
  bool shows(const std::string& text) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (std::chrono::steady_clock::now() < deadline) {
      if (const std::size_t at = shown_.find(text); at != std::string::npos) {
        shown_.erase(0, at + text.size());
        return true;
      }
      pollfd ready{.fd = descriptor_, .events = POLLIN, .revents = 0};
      if (::poll(&ready, 1, 100) <= 0) continue;
      std::array<char, 4096> buffer{};
      const ssize_t n = ::read(descriptor_, buffer.data(), buffer.size());
      if (n <= 0) break;
      shown_.append(buffer.data(), static_cast<std::size_t>(n));
    }
    MESSAGE("shown: " << shown_);
    return false;
  }

 private:
  int descriptor_ = -1;
  pid_t child_ = -1;
  std::string shown_;
};

}  // namespace

TEST_CASE("commands, options, keys, values and files are offered where they may stand") {
  CHECK(has(offered({""}), "run"));
  CHECK(offered({"sch"}) == std::vector<std::string>{"schema"});
  CHECK_FALSE(has(offered({""}), "worker"));
  CHECK(has(offered({"checkpoint", ""}), "export"));
  CHECK(has(offered({"run", "config.yaml", "--"}), "--resume"));
  CHECK(has(offered({"run", "config.yaml", ""}), "--set"));
  CHECK(has(offered({"run", ""}), ":files"));
  CHECK(offered({"run", "c.yaml", "--resume", "re"}) == std::vector<std::string>{"required", ":files"});
  CHECK(offered({"check", "c.yaml", "--device", "h100"}) == std::vector<std::string>{"h100", "h100-pcie", "h100-nvl"});
  CHECK(offered({"check", "c.yaml", "--device=h100-"}) ==
        std::vector<std::string>{"--device=h100-pcie", "--device=h100-nvl"});
  CHECK(offered({"completion", "b"}) == std::vector<std::string>{"bash"});
  CHECK(offered({"schema", "train.clip"}) == std::vector<std::string>{"train.clip_norm"});
  CHECK(has(offered({"schema", ""}), "train"));

  // Every key of the schema.
  const std::vector<std::string> keys = offered({"run", "c.yaml", "--set", ""});
  CHECK(has(keys, "train.lr_schedule.type="));
  CHECK(has(keys, "data.train.0.weight="));
  CHECK(offered({"run", "c.yaml", "--set", "train.lr_schedule.type=co"}) ==
        std::vector<std::string>{"train.lr_schedule.type=cosine", "train.lr_schedule.type=constant",
                                 "train.lr_schedule.type=cosine_restarts"});
  CHECK(offered({"run", "c.yaml", "--set=checkpoint.best=t"}) ==
        std::vector<std::string>{"--set=checkpoint.best=true"});
  CHECK(offered({"check", "c.yaml", "--set", "parallel.data="}) == std::vector<std::string>{"parallel.data=auto"});
  CHECK(has(offered({"check", "c.yaml", "--set", "data.train.3.type="}), "data.train.3.type=jsonl"));
  // What would be refused is not offered.
  CHECK(offered({"check", "c.yaml", "--set", "train.lr_schedule.type="}) ==
        std::vector<std::string>{"train.lr_schedule.type=cosine", "train.lr_schedule.type=linear",
                                 "train.lr_schedule.type=constant", "train.lr_schedule.type=inverse_sqrt",
                                 "train.lr_schedule.type=wsd", "train.lr_schedule.type=cosine_restarts"});
  CHECK(offered({"check", "c.yaml", "--set", "precision.compute="}) ==
        std::vector<std::string>{"precision.compute=auto", "precision.compute=fp32", "precision.compute=tf32",
                                 "precision.compute=bf16", "precision.compute=fp16"});
  // A value is no key, and behind `--` there are no options.
  CHECK(offered({"check", "c.yaml", "--set", "nothing=x"}).empty());
  CHECK(offered({"check", "--", "--"}) == std::vector<std::string>{":files"});
}

TEST_CASE("bash completes commands, keys, values and files") {
  const std::string shell = path_of("bash");
  REQUIRE_FALSE(shell.empty());
  const TempFolder home;
  home.write("my-config.yaml", "");
  Terminal bash(shell, {"--norc", "--noprofile", "-i"}, home.path());
  bash.type("PS1='READY> '; source <(scaletrain completion bash)\n");
  bash.type("bind 'set bell-style none'; echo LOADED-$((1+1))\n");
  REQUIRE(bash.shows("LOADED-2"));
  const auto completes = [&](const std::string& keys, const std::string& line) {
    CAPTURE(keys);
    bash.type(keys +
              "\x01"
              "echo \x05"
              "END\n");  // to the line's begin, `echo`, to its end
    CHECK(bash.shows("\r\n" + line + "END"));
  };
  completes("scaletrain sch\t", "scaletrain schema ");
  completes("scaletrain run my-\t", "scaletrain run my-config.yaml ");
  completes("scaletrain run x --res\t", "scaletrain run x --resume ");
  completes("scaletrain run x --resume req\t", "scaletrain run x --resume required ");
  completes("scaletrain run x --set train.clip\t", "scaletrain run x --set train.clip_norm=");
  completes("scaletrain run x --set train.lr_schedule.type=lin\t",
            "scaletrain run x --set train.lr_schedule.type=linear ");
  completes("scaletrain checkpoint exp\t", "scaletrain checkpoint export ");
}

TEST_CASE("zsh completes commands, keys and values, where it is installed") {
  const std::string shell = path_of("zsh");
  if (shell.empty()) {
    MESSAGE("zsh is not installed: not tested");
    return;
  }
  const TempFolder home;
  home.write("my-config.yaml", "");
  Terminal zsh(shell, {"-f", "-i"}, home.path());
  zsh.type(
      "autoload -U compinit; compinit -u -D; unsetopt zle_bracketed_paste 2>/dev/null; "
      "source <(scaletrain completion zsh); echo LOADED-$((1+1))\n");
  REQUIRE(zsh.shows("LOADED-2"));
  // The blank that zsh adds is taken back where nothing follows it.
  const auto completes = [&](const std::string& keys, const std::string& line) {
    CAPTURE(keys);
    zsh.type(keys +
             "\x01"
             "echo 'A'; echo \x05"
             "END\n");
    CHECK(zsh.shows("A\r\n" + line + "END"));
  };
  completes("scaletrain sch\t", "scaletrain schema");
  completes("scaletrain run my-\t", "scaletrain run my-config.yaml");
  completes("scaletrain run x --set train.clip\t", "scaletrain run x --set train.clip_norm=");
  completes("scaletrain run x --set train.lr_schedule.type=lin\t",
            "scaletrain run x --set train.lr_schedule.type=linear");
}

TEST_CASE("fish completes commands, keys and values, where it is installed") {
  const std::string shell = path_of("fish");
  if (shell.empty()) {
    MESSAGE("fish is not installed: not tested");
    return;
  }
  const TempFolder home;
  home.write("my-config.yaml", "");
  const auto completed = [&](const std::string& line) {
    const Ended end = run_program({.executable = shell,
                                   .arguments = {"--no-config", "-c",
                                                 "set PATH " + fs::path(SCALETRAIN_PROGRAM).parent_path().string() +
                                                     " /usr/bin /bin; scaletrain completion fish | source; cd " +
                                                     home.path().string() + "; complete -C '" + line + "'"}});
    CHECK_MESSAGE(end.exit_code == 0, end.errors);
    return end.output;
  };
  CHECK(completed("scaletrain sch").starts_with("schema\t"));
  CHECK(completed("scaletrain run my-").starts_with("my-config.yaml"));
  CHECK(completed("scaletrain run x --set train.clip").starts_with("train.clip_norm="));
  CHECK(completed("scaletrain run x --set train.lr_schedule.type=lin").starts_with("train.lr_schedule.type=linear"));
}

}  // namespace scaletrain
