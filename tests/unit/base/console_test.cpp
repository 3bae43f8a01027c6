#include "base/process/console.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

#include "base/clock.h"
#include "base/file.h"
#include "support/temp_folder.h"

namespace scaletrain {
namespace {

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    reader = FileDescriptor(ends[0]);
    writer = FileDescriptor(ends[1]);
    ::fcntl(writer.get(), F_SETPIPE_SZ, 4096);
  }
  std::string read_some() const {
    std::string text(65536, '\0');
    const ssize_t n = ::read(reader.get(), text.data(), text.size());
    text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return text;
  }
  FileDescriptor reader;
  FileDescriptor writer;
};

}  // namespace

TEST_CASE("what nobody reads holds its writer up no longer than its patience") {
  const Pipe pipe;
  const std::string text(100000, 'x');
  const MonotonicTime begin = monotonic_now();
  CHECK_FALSE(write_to_console(pipe.writer.get(), text, 0.2));
  CHECK(seconds_since(begin) < 10.0);
  CHECK_FALSE(write_to_console(pipe.writer.get(), text, 0.0));
  CHECK(pipe.read_some().size() >= 4096);
}

TEST_CASE("what is read comes whole and in order") {
  const Pipe pipe;
  CHECK(write_to_console(pipe.writer.get(), "first\n", 1.0));
  CHECK(write_to_console(pipe.writer.get(), "second\n", 1.0));
  CHECK(pipe.read_some() == "first\nsecond\n");
}

TEST_CASE("the flags of a descriptor that others share stay as they are") {
  const Pipe pipe;
  const int before = ::fcntl(pipe.writer.get(), F_GETFL);
  write_to_console(pipe.writer.get(), std::string(100000, 'x'), 0.0);
  CHECK(::fcntl(pipe.writer.get(), F_GETFL) == before);
  CHECK((before & O_NONBLOCK) == 0);
}

TEST_CASE("a file takes all, however little the patience") {
  const TempFolder folder;
  const std::string path = (folder.path() / "log").string();
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(file);
  const std::string text(1 << 20, 'y');
  CHECK(write_to_console(file.get(), text, 0.0));
  CHECK(TempFolder::read(path) == text);
}

TEST_CASE("a reader that has left is no error") {
  std::signal(SIGPIPE, SIG_IGN);  // as the program does
  Pipe pipe;
  pipe.reader = FileDescriptor();
  CHECK(write_to_console(pipe.writer.get(), "unheard", 1.0));
}

}  // namespace scaletrain
