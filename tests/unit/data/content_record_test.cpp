// A start reads what has changed, not what it has read before.
#include "data/tokens/content_record.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "support/bytes_read.h"
#include "support/temp_folder.h"

using namespace scaletrain;
namespace fs = std::filesystem;

namespace {

// An hour after the files of the test were written.
std::int64_t an_hour_later() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return (std::int64_t{now.tv_sec} + 3600) * 1'000'000'000;
}

struct Corpus {
  TempFolder folder;
  std::vector<std::string> messages;
  std::int64_t reads = 0;

  fs::path cache() const { return folder.path() / "cache"; }
  ContentRecord::Options options(DataCheck check = DataCheck::changed) {
    return {.source = folder.path() / "data",
            .folders = {cache()},
            .check = check,
            .report = [this](const std::string& m) { messages.push_back(m); },
            .now = an_hour_later};
  }
  std::uint64_t hash(ContentRecord& record, const fs::path& file, ContentKind kind = ContentKind::bytes) {
    return record.hash_of(kind, {&file, 1}, 1, [&] {
      ++reads;
      return hash_of_files({&file, 1});
    });
  }
  // What one start does with one file: true if it reads it.
  bool start_reads(const fs::path& file, DataCheck check = DataCheck::changed) {
    reads = 0;
    ContentRecord record(options(check));
    const std::uint64_t found = hash(record, file);
    CHECK(found == hash_of_files({&file, 1}));
    record.save();
    return reads > 0;
  }
  fs::path record_file() const {
    fs::path found;
    for (const auto& entry : fs::directory_iterator(cache())) {
      CHECK(entry.path().extension() == ".contents");
      found = entry.path();
    }
    return found;
  }
};

void set_modified(const fs::path& file, std::int64_t nanoseconds) {
  const timespec time{.tv_sec = nanoseconds / 1'000'000'000, .tv_nsec = nanoseconds % 1'000'000'000};
  const timespec times[2] = {time, time};
  REQUIRE(::utimensat(AT_FDCWD, file.c_str(), times, 0) == 0);
}

void overwrite(const fs::path& file, std::streamoff offset, const std::string& bytes) {
  std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekp(offset);
  stream << bytes;
}

// As a disk does that returns other bytes than were written: the record's entry of the file gets the file's stamp.
void hide_change(const fs::path& record, const FileStamp& before, const FileStamp& now) {
  const auto text_of = [](const FileStamp& s) {
    return fmt::format(" {} {} {} {} ", s.bytes, s.modified, s.changed, s.inode);
  };
  std::string text = TempFolder::read(record);
  std::string body = text.substr(text.find('\n') + 1);
  const std::size_t at = body.find(text_of(before));
  REQUIRE(at != std::string::npos);
  body.replace(at, text_of(before).size(), text_of(now));
  std::ofstream(record, std::ios::binary) << "scaletrain contents 1 " << to_hex(hash_text(body)) << "\n" << body;
}

}  // namespace

TEST_CASE("a file that has not changed is not read again") {
  Corpus corpus;
  const fs::path file = corpus.folder.write("data/a.txt", std::string(100'000, 'x'));
  CHECK(corpus.start_reads(file));
  CHECK_FALSE(corpus.start_reads(file));
  CHECK_FALSE(corpus.start_reads(file));
  CHECK(corpus.messages.empty());
}

TEST_CASE("a file whose size, time, inode or content has changed is read again") {
  Corpus corpus;
  const std::string content(100'000, 'x');
  const fs::path file = corpus.folder.write("data/a.txt", content);
  const FileStamp before = stamp_of(file);
  REQUIRE(corpus.start_reads(file));
  SUBCASE("longer") {
    corpus.folder.write("data/a.txt", content + "y");
    set_modified(file, before.modified);
  }
  SUBCASE("written with the same size, its time set back") {
    overwrite(file, 50'000, "y");
    set_modified(file, before.modified);
  }
  SUBCASE("another time of change") {
    set_modified(file, before.modified - 1);
  }
  SUBCASE("replaced by another file of the same size and time") {
    const fs::path other = corpus.folder.write("data/b.txt", std::string(100'000, 'y'));
    set_modified(other, before.modified);
    fs::rename(other, file);
  }
  CHECK(corpus.start_reads(file));
  CHECK_FALSE(corpus.start_reads(file));
}

TEST_CASE("of a disk's silent damage the sampled blocks are seen at any start, the rest by a full check") {
  Corpus corpus;
  const fs::path file = corpus.folder.write("data/a.txt", std::string(100'000, 'x'));
  const FileStamp before = stamp_of(file);
  REQUIRE(corpus.start_reads(file));
  SUBCASE("in the first block") {
    overwrite(file, 10, "y");
    hide_change(corpus.record_file(), before, stamp_of(file));
    CHECK(corpus.start_reads(file));
  }
  SUBCASE("in the last block") {
    overwrite(file, 99'999, "y");
    hide_change(corpus.record_file(), before, stamp_of(file));
    CHECK(corpus.start_reads(file));
  }
  SUBCASE("in between") {
    overwrite(file, 50'000, "y");
    hide_change(corpus.record_file(), before, stamp_of(file));
    ContentRecord record(corpus.options());
    corpus.reads = 0;
    corpus.hash(record, file);
    CHECK(corpus.reads == 0);  // the limit that the header states
    ContentRecord full(corpus.options(DataCheck::all));
    CHECK_THROWS_WITH_AS(corpus.hash(full, file), doctest::Contains("damaged it. Restore the file"), InputError);
    // As the message says: touched, it is taken as it is.
    set_modified(file, before.modified + 1);
    CHECK(corpus.start_reads(file, DataCheck::all));
  }
}

TEST_CASE("a full check reads everything and keeps what it finds") {
  Corpus corpus;
  const fs::path file = corpus.folder.write("data/a.txt", "text");
  CHECK(corpus.start_reads(file, DataCheck::all));
  CHECK(corpus.start_reads(file, DataCheck::all));
  CHECK_FALSE(corpus.start_reads(file));
}

TEST_CASE("a file changed within seconds of its reading is not kept, whichever way the clock has moved") {
  Corpus corpus;
  const fs::path file = corpus.folder.write("data/a.txt", "text");
  const std::int64_t changed = stamp_of(file).changed;
  const auto start_reads_at = [&](std::int64_t now) {
    ContentRecord::Options options = corpus.options();
    options.now = [now] { return now; };
    corpus.reads = 0;
    ContentRecord record(options);
    corpus.hash(record, file);
    record.save();
    return corpus.reads > 0;
  };
  constexpr std::int64_t second = 1'000'000'000;
  CHECK(start_reads_at(changed + second));
  CHECK(start_reads_at(changed - second));
  // Not kept so far: read once more. Then it is, by a clock that runs an hour behind the file's.
  CHECK(start_reads_at(changed - 3600 * second));
  CHECK_FALSE(start_reads_at(changed - 3600 * second));
  CHECK_FALSE(start_reads_at(changed + second));
}

TEST_CASE("a cache is kept however young it is") {
  Corpus corpus;
  const fs::path file = corpus.folder.write("data/a.tokens", "tokens");
  ContentRecord::Options options = corpus.options();
  options.now = [&file] { return stamp_of(file).changed; };
  for (const std::int64_t reads : {1, 1}) {
    ContentRecord record(options);
    corpus.hash(record, file, ContentKind::cache);
    record.save();
    CHECK(corpus.reads == reads);
  }
}

TEST_CASE("files that belong together are read again if one of them has changed") {
  Corpus corpus;
  const std::vector<fs::path> files = {corpus.folder.write("data/m.bin", "tokens"),
                                       corpus.folder.write("data/m.idx", "index")};
  const auto start_reads = [&] {
    bool is_read = false;
    ContentRecord record(corpus.options());
    record.hash_of(ContentKind::tokens, files, 1, [&] {
      is_read = true;
      return 5;
    });
    record.save();
    return is_read;
  };
  CHECK(start_reads());
  CHECK_FALSE(start_reads());
  corpus.folder.write("data/m.idx", "xedni");
  CHECK(start_reads());
}

TEST_CASE("a damaged record costs a reading, and a word about it") {
  Corpus corpus;
  const fs::path file = corpus.folder.write("data/a.txt", "text");
  REQUIRE(corpus.start_reads(file));
  const std::string whole = TempFolder::read(corpus.record_file());
  const auto with = [&](const std::string& text) { std::ofstream(corpus.record_file(), std::ios::binary) << text; };
  const std::vector<std::string> damaged = {"",
                                            "\n",
                                            "garbage",
                                            whole.substr(0, whole.size() - 1),
                                            whole + "x",
                                            "scaletrain contents 2" + whole.substr(21),
                                            std::string(5000, '\0')};
  for (const std::string& text : damaged) {
    with(text);
    corpus.messages.clear();
    CHECK(corpus.start_reads(file));
    REQUIRE(corpus.messages.size() >= 1);
    CHECK(corpus.messages[0].find("what was known of the data cannot be used, it is read again") != std::string::npos);
    CHECK_FALSE(corpus.start_reads(file));
  }
  // With a right checksum: written by a program gone wrong.
  for (const std::string body : {"b\n", "b 1 2 1 x 0 0 0 p\n", "b 1 2 99 p\n", "bb 1 2 1 0 0 0 0 p\n", "\n\n x\n"}) {
    with("scaletrain contents 1 " + to_hex(hash_text(body)) + "\n" + body);
    CHECK(corpus.start_reads(file));
  }
}

TEST_CASE("a folder that cannot be written to is reported once, and the next folder is taken") {
  Corpus corpus;
  const fs::path file = corpus.folder.write("data/a.txt", "text");
  corpus.folder.write("no-folder", "a file");
  ContentRecord::Options options = corpus.options();
  options.folders = {corpus.folder / "no-folder"};
  ContentRecord record(options);
  corpus.hash(record, file);
  record.save();
  record.save();
  REQUIRE(corpus.messages.size() == 1);
  CHECK(corpus.messages[0].find("cannot be noted for the next start, which will read all of it again: ") !=
        std::string::npos);
  CHECK(corpus.messages[0].find("no-folder") != std::string::npos);

  options.folders.push_back(corpus.cache());
  for (const std::int64_t reads : {2, 2}) {
    ContentRecord next(options);
    corpus.hash(next, file);
    next.save();
    CHECK(corpus.reads == reads);
  }
  options.folders.clear();
  ContentRecord none(options);
  corpus.hash(none, file);
  none.save();
  CHECK(corpus.messages.back().find("there is no data.cache, SCALETRAIN_CACHE or HOME") != std::string::npos);
}

TEST_CASE("what two starts find at the same time is kept, and what is gone is forgotten") {
  Corpus corpus;
  const fs::path a = corpus.folder.write("data/a.txt", "A");
  const fs::path b = corpus.folder.write("data/b%25\n b.txt", "B");
  {
    ContentRecord first(corpus.options());
    ContentRecord second(corpus.options());
    corpus.hash(first, a);
    corpus.hash(second, b);
    first.save();
    second.save();
  }
  CHECK_FALSE(corpus.start_reads(a));
  CHECK_FALSE(corpus.start_reads(b));
  fs::remove(a);
  overwrite(b, 0, "C");
  CHECK(corpus.start_reads(b));
  CHECK(TempFolder::read(corpus.record_file()).find("a.txt") == std::string::npos);
  CHECK_FALSE(corpus.start_reads(b));
}

TEST_CASE("many starts at once never meet half a record") {
  Corpus corpus;
  std::vector<fs::path> files;
  files.reserve(20);
  for (int i = 0; i < 20; ++i) files.push_back(corpus.folder.write(fmt::format("data/{}.txt", i), "text"));
  std::atomic<int> complaints{0};
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (std::size_t i = t; i < files.size(); i += 4) {
          ContentRecord::Options options = corpus.options();
          options.report = [&](const std::string&) { ++complaints; };
          ContentRecord record(options);
          record.hash_of(ContentKind::bytes, {&files[i], 1}, 1, [] { return 1; });
          record.save();
        }
      });
    }
  }
  CHECK(complaints == 0);
  for (const auto& entry : fs::directory_iterator(corpus.cache())) CHECK(entry.path().extension() == ".contents");
}

TEST_CASE("a restart on a terabyte reads some megabytes of it") {
  Corpus corpus;
  std::vector<fs::path> files;
  for (int i = 0; i < 10; ++i) {
    files.push_back(corpus.folder.write(fmt::format("data/{}.txt", i), "text"));
    REQUIRE(::truncate(files.back().c_str(), off_t{110} << 30) == 0);  // sparse: takes no room
  }
  const auto start = [&](bool expect_reading) {
    ContentRecord record(corpus.options());
    for (std::size_t i = 0; i < files.size(); ++i) {
      // Of a sparse file nobody need find out that all of it is zeros.
      CHECK(record.hash_of(ContentKind::bytes, {&files[i], 1}, std::uint64_t{110} << 30, [&] {
        CHECK(expect_reading);
        return i;
      }) == i);
    }
    record.save();
  };
  start(true);
  CHECK(corpus.messages.size() == files.size());  // so much is worth a word
  const std::uint64_t before = bytes_read();
  start(false);
  CHECK(bytes_read() - before < (8u << 20));
  CHECK(corpus.messages.size() == files.size());
}
