#include "data/tokens/token_cache.h"

#include <doctest/doctest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "support/temp_folder.h"

using namespace scaletrain;
namespace fs = std::filesystem;

namespace {

// The documents of a cache as text; the end-of-document token as '|'.
std::vector<std::string> documents_of(const TokenFile& file) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(file.num_tokens()));
  file.read(0, tokens, 257);
  std::vector<std::string> documents;
  std::int64_t start = 0;
  for (std::int64_t d = 0; d < file.num_documents(); ++d) {
    std::string text;
    for (const std::int64_t end = file.document_end(d); start < end; ++start) {
      const std::int32_t token = tokens[static_cast<std::size_t>(start)];
      text.push_back(token == 256 ? '|' : static_cast<char>(token));
    }
    documents.push_back(text);
  }
  return documents;
}

// With a record that nothing is kept in.
std::unique_ptr<TokenFile> open_cache(const TextSource& source, const Tokenizer& tokenizer, const fs::path& folder,
                                      const Reporter& report) {
  ContentRecord record({.source = folder, .folders = {}});
  const std::vector<FileContent> contents = contents_of(source, record);
  return open_token_cache({source, contents, tokenizer, record, report}, folder);
}

// Files without a place of their own go there while it lives.
struct TemporaryFolder {
  TempFolder folder;
  std::optional<std::string> before;

  TemporaryFolder() {
    if (const char* const set = std::getenv("TMPDIR")) before = set;
    ::setenv("TMPDIR", folder.path().c_str(), 1);
  }
  ~TemporaryFolder() {
    if (before) {
      ::setenv("TMPDIR", before->c_str(), 1);
    } else {
      ::unsetenv("TMPDIR");
    }
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
};

struct Builder {
  TempFolder folder;
  ByteTokenizer tokenizer;
  std::vector<std::string> messages;

  fs::path cache() const { return folder.path() / "cache"; }
  std::unique_ptr<TokenFile> open(const TextSource& source) {
    return open_cache(source, tokenizer, cache(), [this](const std::string& m) { messages.push_back(m); });
  }
  std::vector<std::string> text(const std::string& content, std::optional<std::string> separator = std::nullopt) {
    TextSource source;
    source.files = {{folder.write("t.txt", content), TextKind::text}};
    source.separator = std::move(separator);
    return documents_of(*open(source));
  }
  std::vector<std::string> jsonl(const std::string& content, const std::string& field = "text") {
    TextSource source;
    source.files = {{folder.write("t.jsonl", content), TextKind::jsonl}};
    source.field = field;
    return documents_of(*open(source));
  }
  bool built() {
    const bool any =
        std::any_of(messages.begin(), messages.end(), [](const auto& m) { return m.starts_with("tokenising"); });
    messages.clear();
    return any;
  }
  std::vector<std::string> cached_files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(cache())) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
};

using Documents = std::vector<std::string>;

}  // namespace

TEST_CASE("a text file is one document, byte for byte, valid UTF-8 or not") {
  Builder b;
  CHECK(b.text("one\n\ntwo\n") == Documents{"one\n\ntwo\n|"});
  CHECK(b.text("no newline") == Documents{"no newline|"});
  CHECK(b.text(std::string("\xff\x00\xfe", 3)) == Documents{std::string("\xff\x00\xfe|", 4)});
  CHECK(b.text("").empty());
}

TEST_CASE("a line that is the separator ends a document") {
  Builder b;
  CHECK(b.text("a\n---\nb\nc\n---\n", "---") == Documents{"a\n|", "b\nc\n|"});
  CHECK(b.text("---\n---\na", "---") == Documents{"a|"});
  CHECK(b.text("a\r\n---\r\nb\r\n", "---") == Documents{"a\r\n|", "b\r\n|"});
  CHECK(b.text("a\n----\n --- \nb---\n---", "---") == Documents{"a\n----\n --- \nb---\n|"});
  CHECK(b.text("a\n\n%\n\nb", "%") == Documents{"a\n\n|", "\nb|"});
  // An empty line; one of spaces is text.
  CHECK(b.text("a\nb\n\n\nc\r\n\r\nd \n \ne", "") == Documents{"a\nb\n|", "c\r\n|", "d \n \ne|"});
  CHECK(b.text("\n\na\n\n", "") == Documents{"a\n|"});
}

TEST_CASE("documents larger than a reading piece arrive whole") {
  Builder b;
  std::string large;
  for (int i = 0; i < 400'000; ++i) large += std::to_string(i) + (i % 7 == 0 ? "\n" : " ");
  REQUIRE(large.size() > (2u << 20));
  CHECK(b.text(large) == Documents{large + "|"});
  CHECK(b.text(large + "\n%\n" + large, "%") == Documents{large + "\n|", large + "|"});
  const std::string line(3u << 20, 'x');
  CHECK(b.text(line + "\n%\nb", "%") == Documents{line + "\n|", "b|"});
  CHECK(b.jsonl("{\"text\":\"" + line + "\"}\n{\"text\":\"b\"}") == Documents{line + "|", "b|"});
}

TEST_CASE("each JSONL line is a document; blank lines do not count") {
  Builder b;
  CHECK(b.jsonl("{\"text\":\"a\\nb\"}\n\n  \r\n{\"id\":1,\"text\":\"\\u00e9\"}\r\n") ==
        Documents{"a\nb|", "\xc3\xa9|"});
  CHECK(b.jsonl("{\"body\":\"x\",\"text\":\"y\"}", "body") == Documents{"x|"});
  CHECK(b.jsonl("{\"text\":\"\"}\n{\"text\":\"y\"}\n") == Documents{"y|"});
}

TEST_CASE("a wrong JSONL line is named by file and line") {
  Builder b;
  const std::string ok = "{\"text\":\"a\"}\n\n";
  // The whole message: one line number, the file's.
  CHECK_THROWS_WITH_AS(b.jsonl(ok + "{\"text\":"),
                       ((b.folder / "t.jsonl").string() + ":3: not valid JSON at byte 9; mend the line, or have such "
                                                          "lines left out (on_bad_record: skip)")
                           .c_str(),
                       InputError);
  CHECK_THROWS_WITH_AS(b.jsonl(ok + "[1]"), doctest::Contains("t.jsonl:3"), InputError);
  CHECK_THROWS_WITH_AS(b.jsonl(ok + "{\"txt\":\"a\"}"), doctest::Contains("t.jsonl:3"), InputError);
  CHECK_THROWS_WITH_AS(b.jsonl(ok + "{\"text\":5}"), doctest::Contains("t.jsonl:3"), InputError);
  CHECK_THROWS_WITH_AS(b.jsonl(ok + "{\"text\":\"\xff\"}"), doctest::Contains("t.jsonl:3"), InputError);
  CHECK_THROWS_WITH_AS(b.jsonl(ok + "{\"text\":\"a\",\"text\":\"b\"}"), doctest::Contains("t.jsonl:3"), InputError);
  CHECK_THROWS_WITH_AS(b.jsonl(ok + std::string(100'000, '[')), doctest::Contains("t.jsonl:3"), InputError);
  CHECK(b.cached_files().empty());  // a failed build leaves nothing
}

TEST_CASE("a cache is used again for equal text, wherever it lies, and for nothing else") {
  Builder b;
  const auto at = [&](const std::string& name, const std::string& content) {
    TextSource source;
    source.files = {{b.folder.write(name, content), TextKind::text}};
    return source;
  };
  b.open(at("a.txt", "hello"));
  CHECK(b.built());
  b.open(at("a.txt", "hello"));
  CHECK_FALSE(b.built());
  b.open(at("moved.txt", "hello"));
  CHECK_FALSE(b.built());
  const auto time = fs::last_write_time(b.folder / "a.txt");
  const auto changed = at("a.txt", "hallo");  // same size, same time
  fs::last_write_time(b.folder / "a.txt", time);
  CHECK(documents_of(*b.open(changed)) == Documents{"hallo|"});
  CHECK(b.built());
  auto cut = at("a.txt", "hello");
  cut.separator = "%";
  b.open(cut);
  CHECK(b.built());
  const IdsTokenizer ids(300, 7);
  CHECK(open_cache(at("n.txt", "1 2 299"), ids, b.cache(), {})->num_tokens() == 4);
  CHECK(b.cached_files().size() == 4);
}

TEST_CASE("a cache with any byte changed or missing is built again, and that is said") {
  Builder b;
  TextSource source;
  source.files = {{b.folder.write("t.txt", "ab\n%\ncd"), TextKind::text}};
  source.separator = "%";
  const Documents expected = {"ab\n|", "cd|"};
  REQUIRE(documents_of(*b.open(source)) == expected);
  REQUIRE(b.cached_files().size() == 1);
  const fs::path path = b.cache() / b.cached_files()[0];
  const std::string good = TempFolder::read(path);
  const auto damaged = [&](const std::string& content) {
    b.messages.clear();
    b.folder.write("cache/" + path.filename().string(), content);
    REQUIRE(documents_of(*b.open(source)) == expected);
    REQUIRE(b.messages.size() == 2);
    REQUIRE(b.messages[0].find("built again") != std::string::npos);
    REQUIRE(TempFolder::read(path) == good);
  };
  // Header 72 bytes, 7 tokens of 2 bytes, padding, 2 ends. Padding is covered by no checksum and read by nobody.
  REQUIRE(good.size() == 72 + 14 + 2 + 16);
  for (std::size_t i = 0; i < good.size(); i += i < 72 ? 5 : 3) {
    if (i == 86 || i == 87) continue;
    CAPTURE(i);
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    damaged(bad);
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{40}, std::size_t{72}, good.size() - 8, good.size() - 1}) {
    damaged(good.substr(0, size));
  }
  damaged(good + "x");
  b.messages.clear();
  b.open(source);
  CHECK(b.messages.empty());
}

TEST_CASE("builders at the same time, in threads and processes, end with one good cache") {
  Builder b;
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += std::to_string(i);
  TextSource source;
  source.files = {{b.folder.write("t.txt", text), TextKind::text}};
  const auto build = [&] {
    const ByteTokenizer tokenizer;
    return documents_of(*open_cache(source, tokenizer, b.cache(), {})) == Documents{text + "|"};
  };
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      bool good = false;
      try {
        good = build();
      } catch (...) {
        good = false;
      }
      ::_exit(good ? 0 : 1);
    }
    children.push_back(child);
  }
  std::vector<int> results(4, 0);
  {
    std::vector<std::jthread> threads;
    threads.reserve(results.size());
    for (int& result : results) threads.emplace_back([&build, &result] { result = build() ? 1 : 0; });
  }
  for (const int result : results) CHECK(result == 1);
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  CHECK(b.cached_files().size() == 1);
}

TEST_CASE("what dead builders left is removed, what living ones hold is not") {
  Builder b;
  b.folder.write("cache/.0123.aaaa.tmp", "half");
  b.folder.write("cache/.0123.aaaa.tmp.ends", "half");
  b.folder.write("cache/.0123.bbbb.tmp.ends", "alone");
  b.folder.write("cache/.0123.cccc.tmp", "alive");
  b.folder.write("cache/.0123.cccc.tmp.ends", "alive");
  b.folder.write("cache/other.tokens", "not ours to judge");
  // Open for reading is enough to hold the lock, as a builder does.
  const FileReader alive(b.cache() / ".0123.cccc.tmp");
  const int fd = ::fileno(::fopen((b.cache() / ".0123.cccc.tmp").c_str(), "r+"));
  REQUIRE(::flock(fd, LOCK_EX) == 0);
  b.text("hello");
  auto names = b.cached_files();
  std::erase_if(names, [](const std::string& name) { return name.ends_with(".tokens"); });
  CHECK(names == std::vector<std::string>{".0123.cccc.tmp", ".0123.cccc.tmp.ends"});
  ::close(fd);
  b.text("hello again");
  names = b.cached_files();
  CHECK(std::none_of(names.begin(), names.end(), [](const std::string& name) { return name.starts_with("."); }));
}

TEST_CASE("a cache folder that cannot be made is an input error that names the key") {
  Builder b;
  b.folder.write("cache", "a file in the way");
  CHECK_THROWS_WITH_AS(b.text("hello"), doctest::Contains("data.cache"), InputError);
}

TEST_CASE("a_cache_that_may_be_anywhere_is_taken_where_it_is_and_built_where_it_can_be") {
  Builder b;
  TextSource source;
  source.files = {{b.folder.write("t.txt", "abc"), TextKind::text}};
  const auto open_in = [&](const std::vector<fs::path>& folders) {
    b.messages.clear();
    ContentRecord record({.source = b.folder.path(), .folders = {}});
    const std::vector<FileContent> contents = contents_of(source, record);
    const Reporter report = [&b](const std::string& m) { b.messages.push_back(m); };
    return documents_of(*open_token_cache_anywhere({source, contents, b.tokenizer, record, report}, folders));
  };
  const std::vector<std::string> expected = {"abc|"};
  const fs::path first = b.folder.path() / "first";
  const fs::path second = b.folder.path() / "second";
  CHECK(open_in({first, second}) == expected);
  CHECK(fs::exists(first));
  CHECK_FALSE(fs::exists(second));
  CHECK(open_in({second, first}) == expected);
  CHECK_FALSE(fs::exists(second));  // found in the other
  CHECK(b.messages.empty());

  // A folder that cannot be made, one that nobody may write to, and none at all.
  fs::remove_all(first);
  const fs::path file = b.folder.write("file", "");
  CHECK(open_in({file / "below", "/sys/kernel", second}) == expected);
  REQUIRE(b.messages.size() == 4);  // the second was tried
  CHECK(b.messages[0].find((file / "below").string()) != std::string::npos);
  CHECK(b.messages[2].find("not kept in /sys/kernel") != std::string::npos);
  CHECK(fs::exists(second));
  {
    const TemporaryFolder temporary;
    CHECK(open_in({file / "below"}) == expected);
    CHECK(fs::is_empty(temporary.folder.path()));
  }
  // Text that is damaged is no reason to look for another folder.
  source.files = {{b.folder.write("t.jsonl", "{"), TextKind::jsonl}};
  CHECK_THROWS_AS(open_in({second, first}), InputError);
  CHECK_FALSE(fs::exists(first));
}

TEST_CASE("tokenised_text_that_no_folder_keeps_is_read_however_much_is_opened_after_it") {
  const Builder b;
  const TemporaryFolder temporary;
  std::vector<std::unique_ptr<TokenFile>> files;
  for (int i = 0; i < kMostOpenMaps + 3; ++i) {
    TextSource source;
    source.files = {{b.folder.write("t.txt", std::to_string(i)), TextKind::text}};
    ContentRecord record({.source = b.folder.path(), .folders = {}});
    const std::vector<FileContent> contents = contents_of(source, record);
    files.push_back(open_token_cache_anywhere({source, contents, b.tokenizer, record, {}}, {}));
  }
  CHECK(fs::is_empty(temporary.folder.path()));
  for (std::size_t i = 0; i < files.size(); ++i)
    CHECK(documents_of(*files[i]) == std::vector<std::string>{std::to_string(i) + "|"});
}

TEST_CASE("the cache folder is the config's, the environment's, then the home's") {
  const auto saved = [](const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string() : std::string(value);
  };
  const std::string cache = saved("SCALETRAIN_CACHE");
  const std::string home = saved("HOME");
  ::setenv("SCALETRAIN_CACHE", "/c", 1);
  ::setenv("HOME", "/h", 1);
  CHECK(cache_folder("/given") == "/given");
  CHECK(cache_folder(std::nullopt) == "/c");
  ::unsetenv("SCALETRAIN_CACHE");
  CHECK(cache_folder(std::nullopt) == "/h/.cache/scaletrain");
  ::unsetenv("HOME");
  CHECK_THROWS_WITH_AS(cache_folder(std::nullopt), doctest::Contains("data.cache"), UserError);
  if (!cache.empty()) ::setenv("SCALETRAIN_CACHE", cache.c_str(), 1);
  if (!home.empty()) ::setenv("HOME", home.c_str(), 1);
}

TEST_CASE("tokenised text is the same to the byte for any number of threads, and says how far it is") {
  TempFolder folder;
  std::string text;
  std::string lines;
  for (std::int64_t i = 0; i < 160'000; ++i) {
    text += std::to_string(i * 7919) + (i % 13 == 0 ? "\n%\n" : " ");
    if (i % 3 == 0) lines += "{\"text\": \"" + std::string(static_cast<std::size_t>(i % 90), 'x') + "\"}\n";
  }
  TextSource source;
  source.files = {{folder.write("a.txt", text), TextKind::text},
                  {folder.write("b.jsonl", lines), TextKind::jsonl},
                  {folder.write("empty.jsonl", ""), TextKind::jsonl},
                  {folder.write("c.txt", "the last one"), TextKind::text}};
  source.separator = "%";
  const ByteTokenizer tokenizer;
  ContentRecord record({.source = folder.path(), .folders = {}});
  const std::vector<FileContent> contents = contents_of(source, record);
  std::uint64_t all_bytes = 0;
  for (const FileContent& content : contents) all_bytes += content.bytes;
  std::string first;
  for (const int threads : {1, 2, 5}) {
    CAPTURE(threads);
    std::vector<std::uint64_t> seen;
    CacheRequest request{source, contents, tokenizer, record, {}, "a source", threads};
    request.progress = [&](const std::string& name, std::uint64_t bytes, std::uint64_t all) {
      CHECK(name == "a source");
      CHECK(all == all_bytes);
      seen.push_back(bytes);
    };
    const auto file = open_token_cache(request, folder / ("cache-" + std::to_string(threads)));
    const std::string bytes = TempFolder::read(file->path());
    if (first.empty()) first = bytes;
    CHECK((bytes == first));
    CHECK(seen.size() > 3);
    CHECK(std::is_sorted(seen.begin(), seen.end()));
    CHECK(seen.back() == all_bytes);
    seen.clear();
    open_token_cache(request, folder / ("cache-" + std::to_string(threads)));
    CHECK(seen.empty());
  }
}
