#include "launch/workers/worker_channel.h"

#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <string_view>

#include "support/eventually.h"

namespace scaletrain {
namespace {

WorkerStatus parse(std::string_view text) {
  WorkerStatusParser parser;
  parser.feed(text);
  return parser.status();
}

}  // namespace

TEST_CASE("before the first line a worker counts as starting up") {
  const WorkerStatus status = parse("");
  CHECK(status.waiting);
  CHECK(status.step == -1);
  CHECK(status.lines == 0);
  CHECK_FALSE(status.error);
}

TEST_CASE("lines mean the same in whatever pieces they arrive") {
  const std::string text = "progress 12 3 waiting\nprogress 18446744073709551615 4 working\nerror 3 a%20b c\n";
  for (std::size_t size = 1; size <= text.size(); ++size) {
    CAPTURE(size);
    WorkerStatusParser parser;
    for (std::size_t i = 0; i < text.size(); i += size) parser.feed(std::string_view(text).substr(i, size));
    const WorkerStatus& status = parser.status();
    CHECK(status.lines == 3);
    CHECK(status.progress == 18446744073709551615ull);
    CHECK(status.step == 4);
    CHECK_FALSE(status.waiting);
    REQUIRE(status.error);
    CHECK(status.error->kind == ExitCode::input);
    CHECK(status.error->message == "a b c");
  }
}

TEST_CASE("what a status tells is what its lines say") {
  WorkerStatus told;
  told.progress = 12;
  told.step = 3;
  told.waiting = false;
  told.collective = InCollective{.text = "group data: all_reduce #1", .seconds = 1.5};
  told.storage = InStorage{.activity = 7, .bytes = 1u << 20, .text = "fsync of a b%\n", .seconds = 61.25};
  told.pace = Pace{.steps = 4, .busy_seconds = 2.5};
  const WorkerStatus heard = parse(status_lines(told));
  CHECK(heard.lines == 4);
  CHECK(heard.progress == 12);
  CHECK(heard.step == 3);
  CHECK_FALSE(heard.waiting);
  CHECK(heard.collective->text == told.collective->text);
  REQUIRE(heard.storage);
  CHECK(heard.storage->activity == 7);
  CHECK(heard.storage->bytes == 1u << 20);
  CHECK(heard.storage->text == told.storage->text);
  CHECK(heard.storage->seconds == 61.25);
  CHECK(heard.pace->busy_seconds == 2.5);
  // In no call.
  told.storage->text.clear();
  CHECK(parse(status_lines(told)).storage->text.empty());
  CHECK_FALSE(parse("storage 7 x 1.0\n").storage);
}

TEST_CASE("a half line changes nothing, wherever it is cut and whatever follows") {
  const std::string line = "progress 1234 56 working\n";
  for (std::size_t cut = 0; cut + 1 < line.size(); ++cut) {
    CAPTURE(cut);
    const std::string half = line.substr(0, cut);
    CHECK(parse("progress 7 5 working\n" + half).progress == 7);
    // Torn, then written over by the next line.
    const WorkerStatus status = parse("progress 7 5 working\n" + half + (cut == 0 ? "" : "progress 8 6 waiting\n"));
    CHECK(status.progress == 7);
    CHECK(status.step == 5);
    CHECK(status.lines == 1);
  }
}

TEST_CASE("what is no line of the protocol is skipped") {
  const WorkerStatus status = parse(
      "\n\nprogress\nprogress 1 2\nprogress 1 2 working 3\nprogress x 2 working\nprogress 1 -2 working\nprogress -1 2 "
      "working\n"
      "progress 1 2 asleep\nerror\nerror 3\nerror 99 x\nerror 3 %G0\nerror 3 %4\nhello\n\xff\xfe\n progress 1 2 "
      "working\n"
      "progress 9 8 working\n");
  CHECK(status.lines == 1);
  CHECK(status.progress == 9);
  CHECK(status.step == 8);
  CHECK_FALSE(status.error);
}

TEST_CASE("an endless line is dropped and the next one is read") {
  WorkerStatusParser parser;
  const std::string piece(4096, 'x');
  for (int i = 0; i < 1000; ++i) parser.feed(piece);
  parser.feed("progress 1 1 working\nprogress 2 2 working\n");
  CHECK(parser.status().lines == 1);
  CHECK(parser.status().step == 2);
}

TEST_CASE("the agent sees what the worker reports, and its last words") {
  ChannelPair pair = make_channel();
  WorkerChannel channel(std::move(pair.agent));
  std::atomic<std::uint64_t> counter{41};
  const std::string message = "data/web.bin: offset 12:\n\t100 % wrong – \"ü\"\x01";
  {
    WorkerReporter reporter(pair.worker.release(), 0.01);
    reporter.watch([&counter] { return counter.load(); });
    reporter.entered(17, false);
    CHECK(channel.drain());
    CHECK(channel.status().step == 17);
    CHECK_FALSE(channel.status().waiting);
    CHECK(channel.status().progress == 41);
    // Without a call: the reporter's own thread.
    counter = 42;
    CHECK(eventually([&] { return channel.drain() && channel.status().progress == 42; }));
    reporter.entered(18, true);
    reporter.watch({});
    CHECK(reporter.error(ExitCode::diverged, message));
  }
  CHECK_FALSE(channel.drain());
  CHECK(channel.status().step == 18);
  CHECK(channel.status().waiting);
  CHECK(channel.status().progress == 42);
  REQUIRE(channel.status().error);
  CHECK(channel.status().error->kind == ExitCode::diverged);
  CHECK(channel.status().error->message == message);
}

TEST_CASE("a worker knows when its agent last said that it looks after it") {
  ChannelPair pair = make_channel();
  WorkerChannel channel(std::move(pair.agent));
  WorkerReporter reporter(pair.worker.release(), 0.01);
  CHECK(reporter.vouched() == MonotonicTime::min());
  const MonotonicTime first = monotonic_now();
  channel.vouch();
  REQUIRE(eventually([&] { return reporter.vouched() >= first; }));
  const MonotonicTime second = monotonic_now();
  channel.vouch();
  CHECK(eventually([&] { return reporter.vouched() >= second; }));
}

TEST_CASE("an agent whose worker does not listen does not wait for it") {
  ChannelPair pair = make_channel();
  WorkerChannel channel(std::move(pair.agent));
  for (int i = 0; i < 100'000; ++i) channel.vouch();
  pair.worker = FileDescriptor();
  channel.vouch();
}

TEST_CASE("a worker has worked once it was not waiting, whatever it does afterwards") {
  CHECK_FALSE(parse("progress 12 3 waiting\n").has_worked);
  CHECK(parse("progress 12 3 waiting\nprogress 13 3 working\nprogress 13 4 waiting\n").has_worked);
}

TEST_CASE("without an agent nothing is sent and the caller knows") {
  WorkerReporter reporter(-1);
  reporter.entered(1, false);
  CHECK_FALSE(reporter.error(ExitCode::input, "for the caller to print"));
}

TEST_CASE("an agent that has gone neither kills nor blocks the worker") {
  ChannelPair pair = make_channel();
  WorkerReporter reporter(pair.worker.release(), 0.01);
  pair.agent = FileDescriptor();
  for (int step = 0; step < 100; ++step) reporter.entered(step, false);
  CHECK_FALSE(reporter.error(ExitCode::input, "for the caller to print"));
}

TEST_CASE("an agent that does not read does not block the worker, and later reads whole lines") {
  ChannelPair pair = make_channel();
  WorkerChannel channel(std::move(pair.agent));
  WorkerReporter reporter(pair.worker.release(), 60.0);
  const std::string message(8000, 'm');
  bool is_full = false;
  for (int i = 0; i < 10000 && !is_full; ++i) is_full = !reporter.error(ExitCode::input, message);
  REQUIRE(is_full);
  CHECK(channel.drain());
  CHECK(channel.status().error->message == message);
  reporter.entered(5, false);
  CHECK(channel.drain());
  CHECK(channel.status().step == 5);
}

TEST_CASE("a collective is told behind a progress line and forgotten with the next one") {
  WorkerStatusParser parser;
  parser.feed("progress 7 3 working\ncollective 1.5 group data: 100%25 \npace 12 3.25\n");
  REQUIRE(parser.status().collective);
  CHECK(parser.status().collective->text == "group data: 100% ");
  CHECK(parser.status().collective->seconds == 1.5);
  REQUIRE(parser.status().pace);
  CHECK(parser.status().pace->steps == 12);
  CHECK(parser.status().pace->busy_seconds == 3.25);
  CHECK_FALSE(parser.status().dumped);
  parser.feed("progress 8 3 working\ndumped\ncollective x y\npace 1\n");
  CHECK_FALSE(parser.status().collective);
  CHECK(parser.status().dumped == "");
  CHECK(parser.status().pace->steps == 12);
}

TEST_CASE("a report's collective arrives behind half a line of another thread") {
  WorkerStatusParser parser;
  parser.feed("progress 7 3 wor\n" + dumped_line("group data (ranks 0, 1): 100%\n#7"));
  CHECK(parser.status().dumped == "group data (ranks 0, 1): 100%\n#7");
  CHECK(parser.status().progress == 0);
}

TEST_CASE("what a worker waits for and its pace arrive with its progress") {
  ChannelPair pair = make_channel();
  WorkerReporter reporter(::dup(pair.worker.get()), 0.02);
  WorkerChannel channel(std::move(pair.agent));
  reporter.watch_collective([] { return InCollective{.text = "all_reduce\n#3", .seconds = 2.0}; });
  reporter.pace({.steps = 4, .busy_seconds = 0.5});
  CHECK(eventually([&] {
    channel.drain();
    return channel.status().collective && channel.status().pace;
  }));
  CHECK(channel.status().collective->text == "all_reduce\n#3");
  CHECK(channel.status().pace->steps == 4);
  reporter.watch_collective({});
}

}  // namespace scaletrain
