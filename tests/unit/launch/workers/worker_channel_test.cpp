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

std::string doing(const std::string& progress, const std::string& step, const std::string& waiting) {
  return R"({"progress":)" + progress + R"(,"step":)" + step + R"(,"waiting":)" + waiting + "}\n";
}
std::string doing(int progress, int step, bool waiting) {
  return doing(std::to_string(progress), std::to_string(step), waiting ? "true" : "false");
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
  const std::string text = doing(12, 3, true) + doing("18446744073709551615", "4", "false") +
                           R"({"error": 3, "message": "a\u0020b c"})" + "\n";
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
    CHECK(status.error->at == 0.0);  // not told
  }
}

TEST_CASE("what a status tells is what its line says") {
  WorkerStatus told;
  told.progress = 12;
  told.step = 3;
  told.waiting = false;
  told.collective = InCollective{.text = "group data: all_reduce #1", .seconds = 1.5};
  told.storage = InStorage{.activity = 7, .bytes = 1u << 20, .text = "fsync of a b%\n", .seconds = 61.25};
  told.pace = Pace{.steps = 4, .busy_seconds = 2.5};
  const WorkerStatus heard = parse(status_line(told));
  CHECK(heard.lines == 1);
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
  CHECK(parse(status_line(told)).storage->text.empty());
  told.storage.reset();
  CHECK_FALSE(parse(status_line(told)).storage);
}

TEST_CASE("a half line changes nothing, wherever it is cut and whatever follows") {
  const std::string line = doing(1234, 56, false);
  for (std::size_t cut = 0; cut + 1 < line.size(); ++cut) {
    CAPTURE(cut);
    const std::string half = line.substr(0, cut);
    CHECK(parse(doing(7, 5, false) + half).progress == 7);
    // Torn, then written over by the next line.
    const WorkerStatus status = parse(doing(7, 5, false) + half + (cut == 0 ? "" : doing(8, 6, true)));
    CHECK(status.progress == 7);
    CHECK(status.step == 5);
    CHECK(status.lines == 1);
  }
}

TEST_CASE("what is no line of the protocol is skipped") {
  std::string text = "\n\n{}\n[]\n1\nhello\n\xff\xfe\n";
  for (const std::string progress : {"-1", "1.5", "\"1\"", "null", "18446744073709551616"})
    text += doing(progress, "2", "false");
  for (const std::string step : {"-2", "x", "0.5", "9223372036854775808"}) text += doing("1", step, "false");
  text += doing("1", "2", "1") + doing("1", "2", "asleep");
  for (const char* const rest : {R"("collective":"x")", R"("collective":{"text":"x"})",
                                 R"("storage":{"activity":7,"bytes":"x","text":"","seconds":1})",
                                 R"("pace":{"steps":1})", R"("pace":[])", R"("step":3)"})
    text += std::string(R"({"progress":1,"step":2,"waiting":false,)") + rest + "}\n";
  text += R"({"error":99,"message":"x"})"
          "\n"
          R"({"error":3})"
          "\n"
          R"({"error":"3","message":"x"})"
          "\n";
  text += R"({"dumped":7})"
          "\n"
          R"({"error":3,"message":"x"} {})"
          "\n";
  const WorkerStatus status = parse(text + doing(9, 8, false));
  CHECK(status.lines == 1);
  CHECK(status.progress == 9);
  CHECK(status.step == 8);
  CHECK_FALSE(status.error);
  CHECK_FALSE(status.dumped);
  CHECK_FALSE(status.pace);
}

TEST_CASE("an endless line is dropped and the next one is read") {
  WorkerStatusParser parser;
  const std::string piece(4096, 'x');
  for (int i = 0; i < 1000; ++i) parser.feed(piece);
  parser.feed(doing(1, 1, false) + doing(2, 2, false));
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
    const double before = seconds_since(MonotonicTime());
    CHECK(reporter.error(ExitCode::diverged, message));
    CHECK(channel.drain());
    CHECK(channel.status().error->at >= before);
    CHECK(channel.status().error->at <= seconds_since(MonotonicTime()));
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
  CHECK_FALSE(parse(doing(12, 3, true)).has_worked);
  CHECK(parse(doing(12, 3, true) + doing(13, 3, false) + doing(13, 4, true)).has_worked);
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

TEST_CASE("a collective is forgotten with the next line, and a pace is not") {
  WorkerStatusParser parser;
  WorkerStatus told;
  told.collective = InCollective{.text = "group data: 100% ", .seconds = 1.5};
  told.pace = Pace{.steps = 12, .busy_seconds = 3.25};
  parser.feed(status_line(told));
  REQUIRE(parser.status().collective);
  CHECK(parser.status().collective->text == "group data: 100% ");
  CHECK(parser.status().collective->seconds == 1.5);
  CHECK_FALSE(parser.status().dumped);
  parser.feed(doing(8, 3, false) + dumped_line(""));
  CHECK_FALSE(parser.status().collective);
  CHECK(parser.status().dumped == "");
  REQUIRE(parser.status().pace);
  CHECK(parser.status().pace->steps == 12);
  CHECK(parser.status().pace->busy_seconds == 3.25);
}

TEST_CASE("a report's collective arrives behind half a line of another thread") {
  WorkerStatusParser parser;
  parser.feed(doing(7, 3, false).substr(0, 20) + "\n" + dumped_line("group data (ranks 0, 1): 100%\n#7"));
  CHECK(parser.status().dumped == "group data (ranks 0, 1): 100%\n#7");
  CHECK(parser.status().progress == 0);
}

TEST_CASE("the longest message of the least printable bytes arrives, cut where it is too long") {
  const ChannelPair pair = make_channel();
  WorkerReporter reporter(::dup(pair.worker.get()), 60.0);
  WorkerChannel channel(FileDescriptor(::dup(pair.agent.get())));
  CHECK(reporter.error(ExitCode::input, std::string(100'000, '\x01')));
  CHECK(channel.drain());
  REQUIRE(channel.status().error);
  CHECK(channel.status().error->message == std::string(8192, '\x01'));
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
