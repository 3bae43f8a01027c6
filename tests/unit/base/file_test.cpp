#include "base/file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "support/file_size_limit.h"
#include "support/own_mounts.h"
#include "support/refused_files.h"
#include "support/temp_folder.h"
#include "support/text.h"

using namespace scaletrain;

namespace {

std::vector<std::byte> bytes_of(std::size_t size, int value) {
  return std::vector<std::byte>(size, static_cast<std::byte>(value));
}

std::size_t entries(const std::filesystem::path& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

bool closes_on_exec(int fd) {
  return (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0;
}

mode_t current_umask() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return mask;
}

}  // namespace

TEST_CASE("what is written is read back") {
  const TempFolder folder;
  FileWriter writer(folder / "data");
  writer.write("hello ");
  writer.write("world");
  writer.write_at(0, bytes_of(1, 'J'));
  CHECK(writer.position() == 11);
  writer.write("!");
  writer.finish();
  CHECK(TempFolder::read(folder / "data") == "Jello world!");
  const FileReader reader(folder / "data");
  CHECK(reader.size() == 12);
  std::vector<std::byte> out(5);
  reader.read_at(6, out);
  CHECK(std::memcmp(out.data(), "world", 5) == 0);
  CHECK_THROWS_AS(writer.write("more"), BugError);
}

TEST_CASE("a writer never touches an existing file and readers refuse what is no file") {
  const TempFolder folder;
  const auto file = folder.write("data", "old");
  CHECK(contains(message_of<InputError>([&] { FileWriter writer(file); }), "File exists"));
  CHECK(TempFolder::read(file) == "old");
  CHECK(contains(message_of<InputError>([&] { FileReader reader(folder.path()); }), "not a regular file"));
  CHECK(contains(message_of<InputError>([&] { FileReader reader("/dev/null"); }), "not a regular file"));
  CHECK(contains(message_of<InputError>([&] { MappedFile map("/dev/null"); }), "not a regular file"));
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(contains(message_of<InputError>([&] { FileReader reader(folder / "pipe"); }), "not a regular file"));
  CHECK(contains(message_of<InputError>([&] { FileReader reader(folder / "absent"); }), "No such file"));
  CHECK(contains(message_of<InputError>([&] { FileReader reader(folder / "absent"); }), (folder / "absent").string()));
}

TEST_CASE("reading past the end names file and offset") {
  const TempFolder folder;
  const FileReader reader(folder.write("data", "0123456789"));
  std::vector<std::byte> out(4);
  const auto message = message_of<InputError>([&] { reader.read_at(8, out); });
  CHECK(contains(message, "data"));
  CHECK(contains(message, "offset 10"));
  CHECK_THROWS_AS(reader.read_at(~0ull - 1, out), InputError);
  CHECK_NOTHROW(reader.read_at(6, out));
}

TEST_CASE("a disk that fills up is reported with path, operation and reason") {
  const TempFolder folder;
  const FileSizeLimit limit(1000);
  FileWriter writer(folder / "data");
  const auto message = message_of<InputError>([&] { writer.write(bytes_of(5000, 1)); });
  CHECK(contains(message, (folder / "data").string()));
  CHECK(contains(message, "writing"));
  CHECK(contains(message, "offset 1000"));
  CHECK(contains(message, std::strerror(EFBIG)));
}

TEST_CASE("short writes are continued") {
  const TempFolder folder;
  FileWriter writer(folder / "data");
  std::string text;
  for (int i = 0; i < 100000; ++i) text += static_cast<char>('a' + i % 26);
  writer.write(text);
  writer.finish();
  CHECK(TempFolder::read(folder / "data") == text);
}

TEST_CASE("a durable write replaces the file whole or leaves it alone") {
  const TempFolder folder;
  const auto file = folder / "state.json";
  write_file_durably(file, "first");
  write_file_durably(file, "second");
  CHECK(TempFolder::read(file) == "second");
  CHECK(entries(folder.path()) == 1);
  {
    const FileSizeLimit limit(100);
    CHECK_THROWS_AS(write_file_durably(file, std::string(5000, 'x')), InputError);
  }
  CHECK(TempFolder::read(file) == "second");
  CHECK(entries(folder.path()) == 1);
  std::filesystem::create_directories(folder / "folder/inner");
  CHECK_THROWS_AS(write_file_durably(folder / "folder", "x"), InputError);  // the rename fails
  CHECK(entries(folder.path()) == 2);
  CHECK_THROWS_AS(write_file_durably(folder / "absent/file", "x"), InputError);
  struct stat status {};
  REQUIRE(::stat(file.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == (0666 & ~current_umask()));
}

TEST_CASE("descriptors do not leak into children and move with their owner") {
  const TempFolder folder;
  FileDescriptor a(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int fd = a.get();
  FileDescriptor b = std::move(a);
  CHECK(b.get() == fd);
  a = std::move(b);
  CHECK(a.get() == fd);
  a = FileDescriptor();
  CHECK(::fcntl(fd, F_GETFD) == -1);
  // The writer gets the lowest free number, which is the one just given back.
  FileWriter writer(folder / "data");
  CHECK(closes_on_exec(fd));
  const FileReader reader(folder.write("other", "x"));
  CHECK(closes_on_exec(::fcntl(fd, F_GETFD) >= 0 ? fd : -1));
}

TEST_CASE("read_text_file refuses a large file before it reads it") {
  const TempFolder folder;
  const auto file = folder.write("text", "12345");
  CHECK(read_text_file(file, 5) == "12345");
  CHECK(contains(message_of<InputError>([&] { read_text_file(file, 4); }), "at most 4"));
  std::filesystem::resize_file(file, 1ull << 40);  // sparse: reading it would end the process
  CHECK_THROWS_AS(read_text_file(file, 1 << 20), InputError);
  CHECK(read_text_file(folder.write("empty", ""), 0).empty());
}

TEST_CASE("folders are made and renamed, and a file in the way is named") {
  const TempFolder folder;
  create_folders(folder / "a/b/c");
  create_folders(folder / "a/b/c");
  CHECK(std::filesystem::is_directory(folder / "a/b/c"));
  struct stat status {};
  REQUIRE(::stat((folder / "a").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == (0777 & ~current_umask()));
  folder.write("file", "x");
  const auto message = message_of<InputError>([&] { create_folders(folder / "file/b"); });
  CHECK(contains(message, (folder / "file").string()));
  CHECK(contains(message, "Not a directory"));
  rename_durably(folder / "a/b", folder / "moved");
  CHECK(std::filesystem::is_directory(folder / "moved/c"));
  CHECK(contains(message_of<InputError>([&] { rename_durably(folder / "absent", folder / "x"); }), "absent"));
  CHECK_THROWS_AS(sync_folder(folder / "absent"), InputError);
}

TEST_CASE("whether a folder can be made or written to is told without making anything") {
  const TempFolder folder;
  CHECK_NOTHROW(check_folder_is_writable(folder.path()));
  CHECK_NOTHROW(check_folder_is_writable(folder / "a/b"));
  CHECK_FALSE(std::filesystem::exists(folder / "a"));
  folder.write("file", "x");
  for (const char* name : {"file", "file/b"}) {
    const auto message = message_of<InputError>([&] { check_folder_is_writable(folder / name); });
    CHECK(message == message_of<InputError>([&] { create_folders(folder / name); }));
    CHECK(message.starts_with((folder / "file").string() + ": "));
  }
  std::filesystem::create_symlink(folder / "nowhere", folder / "link");
  CHECK_THROWS_AS(check_folder_is_writable(folder / "link"), InputError);
  CHECK_THROWS_AS(create_folders(folder / "link"), InputError);
}

TEST_CASE("plain file names stay inside their folder") {
  for (const char* good : {"a", "model-00001-of-00002.safetensors", "..a", "a..", ".hidden", "a b"}) {
    CHECK(is_plain_file_name(good));
  }
  for (const char* bad : {"", ".", "..", "/", "a/b", "../x", "/etc/passwd", "a/"}) CHECK_FALSE(is_plain_file_name(bad));
  CHECK_FALSE(is_plain_file_name(std::string_view("a\0b", 3)));
  CHECK(is_plain_file_name(std::string(255, 'a')));
  CHECK_FALSE(is_plain_file_name(std::string(256, 'a')));
}

TEST_CASE("a mapped file is read like a file") {
  const TempFolder folder;
  MappedFile map(folder.write("data", "0123456789"));
  std::vector<std::byte> out(4);
  map.read(6, out);
  CHECK(std::memcmp(out.data(), "6789", 4) == 0);
  CHECK(contains(message_of<InputError>([&] { map.read(7, out); }), "offset 7"));
  CHECK_THROWS_AS(map.read(~0ull, out), InputError);
  MappedFile moved = std::move(map);
  moved.read(0, out);
  CHECK(std::memcmp(out.data(), "0123", 4) == 0);
  const MappedFile empty(folder.write("empty", ""));
  CHECK(empty.size() == 0);
  CHECK_NOTHROW(empty.read(0, {}));
  CHECK_THROWS_AS(empty.read(0, out), InputError);
}

TEST_CASE("a file truncated under its map is an error, not a signal") {
  const TempFolder folder;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto file = folder.write("tokens", std::string(4 * page, 'x'));
  const MappedFile map(file);
  std::vector<std::byte> out(16);
  map.read(3 * page, out);
  std::filesystem::resize_file(file, page);
  for (int again = 0; again < 3; ++again) {
    const auto message = message_of<InputError>([&] { map.read(3 * page + 5, out); });
    CHECK(contains(message, file.string()));
    CHECK(contains(message, "offset " + std::to_string(3 * page + 5)));
  }
  CHECK_NOTHROW(map.read(0, out));
  CHECK(out[15] == std::byte{'x'});
  // Inside its last page a truncated file reads as zeros without a signal.
  std::filesystem::resize_file(file, page / 2);
  CHECK_THROWS_AS(map.read(page / 2 - 4, out), InputError);
  CHECK_NOTHROW(map.read(page / 2 - 16, out));
}

namespace {

// Every file holds its number; more of them than stay open.
std::vector<MappedFile> many_maps(const TempFolder& folder, int count) {
  std::vector<MappedFile> maps;
  maps.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i)
    maps.emplace_back(folder.write("many/" + std::to_string(i), std::to_string(1000 + i)));
  return maps;
}

std::string text_of(const MappedFile& map) {
  std::string text(map.size(), ' ');
  map.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

int open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<int>(std::distance(begin(entries), end(entries)));
}

}  // namespace

TEST_CASE("more mapped files are read than the process may have descriptors") {
  const TempFolder folder;
  const int before = open_descriptors();
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlimit tight{static_cast<rlim_t>(before + kMostOpenMaps + 8), limit.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &tight) == 0);
  {
    constexpr int count = 300;
    const std::vector<MappedFile> maps = many_maps(folder, count);
    for (int round = 0; round < 2; ++round)
      for (int i = 0; i < count; ++i)
        CHECK(text_of(maps[static_cast<std::size_t>(i * 7 % count)]) == std::to_string(1000 + i * 7 % count));
    CHECK(open_descriptors() <= before + kMostOpenMaps);
    // Threads open the same ones, and let others go that are being read.
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    threads.reserve(4);
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < count; ++i)
          wrong += text_of(maps[static_cast<std::size_t>(i)]) != std::to_string(1000 + i) ? 1 : 0;
      });
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
  }
  CHECK(open_descriptors() == before);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

TEST_CASE("a mapped file that was replaced or cut while it was closed is refused by name, one that stays open is not") {
  const TempFolder folder;
  const std::vector<MappedFile> maps = many_maps(folder, 3 + static_cast<int>(kMostOpenMaps));
  const auto path = [&](std::size_t i) { return maps[i].path(); };
  folder.write("other", "2000");
  std::filesystem::rename(folder.path() / "other", path(0));
  std::filesystem::resize_file(path(1), 2);
  std::filesystem::remove(path(2));
  std::filesystem::remove(maps.back().path());
  CHECK(text_of(maps.back()) == std::to_string(1002 + kMostOpenMaps));
  for (const std::size_t i : {0u, 1u}) {
    const std::string message = message_of<InputError>([&] { text_of(maps[i]); });
    CHECK(contains(message, path(i).string()));
    CHECK(contains(message, "was replaced or truncated"));
  }
  CHECK(contains(message_of<InputError>([&] { text_of(maps[2]); }), path(2).string() + ": opening the file failed"));
}

TEST_CASE("a mapped file that was closed may come back as a copy of itself, not as another of its size") {
  const TempFolder folder;
  const std::vector<MappedFile> maps = many_maps(folder, 3 + static_cast<int>(kMostOpenMaps));
  const auto path = [&](std::size_t i) { return maps[i].path(); };
  // A copy has another inode; one that was only touched has other times.
  std::filesystem::copy_file(path(0), folder.path() / "copy");
  std::filesystem::rename(folder.path() / "copy", path(0));
  std::filesystem::last_write_time(path(1), std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  CHECK(text_of(maps[0]) == "1000");
  CHECK(text_of(maps[1]) == "1001");
  // The same device, inode and size, as when a removed file's inode is given to the next.
  folder.write("many/2", "2002");
  CHECK(contains(message_of<InputError>([&] { text_of(maps[2]); }), "was replaced or truncated"));
}

TEST_CASE("a mapped file that stays open is read without its name, however many are opened after it") {
  const TempFolder folder;
  const MappedFile kept(folder.write("kept", "kept"), MappedFile::Keeping::stays_open);
  std::filesystem::remove(kept.path());
  const std::vector<MappedFile> maps = many_maps(folder, 3 + static_cast<int>(kMostOpenMaps));
  CHECK(text_of(kept) == "kept");
}

TEST_CASE("threads meet a truncated file each on their own") {
  const TempFolder folder;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto file = folder.write("tokens", std::string(8 * page, 'x'));
  const MappedFile map(file);
  std::filesystem::resize_file(file, 4 * page);
  std::atomic<int> errors{0};
  std::atomic<int> reads{0};
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::byte> out(100);
      for (int i = 0; i < 200; ++i) {
        try {
          map.read(static_cast<std::uint64_t>((i + t) % 8) * page, out);
          ++reads;
        } catch (const InputError&) {
          ++errors;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(errors == 400);
  CHECK(reads == 400);
}

TEST_CASE("a bus error that is not ours still ends the process") {
  const TempFolder folder;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto file = folder.write("data", std::string(2 * page, 'x'));
  const MappedFile map(file);  // installs the guard
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::close(STDERR_FILENO);
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    const auto* raw = static_cast<const volatile char*>(::mmap(nullptr, 2 * page, PROT_READ, MAP_SHARED, fd, 0));
    if (::truncate(file.c_str(), 0) != 0) ::_exit(0);
    ::_exit(raw[page] == 'x' ? 0 : 0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  // A sanitizer turns the signal into an exit with a code of its own.
  CHECK_FALSE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("file_refused_by_the_system_is_told_from_one_that_is_not_there") {
  const TempFolder folder;
  const auto path = folder.write("file", "content");
  const auto is_access_error = [](auto call) {
    try {
      call();
    } catch (const FileAccessError&) {
      return true;
    } catch (const InputError&) {
      return false;
    }
    FAIL("no error");
    return false;
  };
  {
    const DescriptorLimit limit(0);
    const bool reader = is_access_error([&] { FileReader refused(path); });
    const bool map = is_access_error([&] { MappedFile refused(path); });
    const bool writer = is_access_error([&] { FileWriter refused(folder / "new"); });
    CHECK(reader);
    CHECK(map);
    CHECK(writer);
    CHECK(path_exists(path));  // needs none
  }
  for (const char* absent : {"absent", "file/below", "absent/below"}) {
    CAPTURE(absent);
    CHECK_FALSE(is_access_error([&] { FileReader reader(folder / absent); }));
    CHECK_FALSE(path_exists(folder / absent));
    CHECK_FALSE(is_folder(folder / absent));
  }
  CHECK_FALSE(is_access_error([&] { FileReader reader(folder.path()); }));  // a folder
  CHECK(is_folder(folder.path()));
  CHECK_FALSE(is_folder(path));
  CHECK(is_plain_file(path));
  CHECK_FALSE(is_plain_file(folder.path()));
  CHECK_FALSE(is_plain_file(folder / "absent"));
  folder.write("closed/file", "content");
  const ClosedFolder closed(folder / "closed");
  CHECK(is_access_error([&] { is_plain_file(folder / "closed" / "file"); }));
  CHECK(is_access_error([&] { path_exists(folder / "closed" / "file"); }));
}

TEST_CASE("descriptors_that_have_run_out_are_told_with_the_limit_to_raise") {
  const auto told = [](int error) {
    try {
      throw_file_error("corpus.txt", "opening the file", error);
    } catch (const FileAccessError& refused) {
      return std::string(refused.what());
    }
  };
  // This process's limit, the machine's, and what is neither.
  CHECK(
      told(EMFILE).starts_with("corpus.txt: opening the file failed: Too many open files; RLIMIT_NOFILE (ulimit -n)"));
  CHECK(told(ENFILE).find("raise fs.file-max") != std::string::npos);
  CHECK(told(EACCES) == "corpus.txt: opening the file failed: Permission denied");
  CHECK_THROWS_WITH_AS(throw_descriptor_error("eventfd", EMFILE),
                       doctest::Contains("eventfd failed: Too many open files; RLIMIT_NOFILE"), UserError);
  CHECK_THROWS_WITH_AS(throw_descriptor_error("eventfd", ENFILE), doctest::Contains("fs.file-max"), InputError);
}

TEST_CASE("writing_back_early_changes_nothing_of_what_a_file_holds") {
  const TempFolder folder;
  const auto path = folder / "file";
  FileWriter writer(path);
  writer.begin_writeback();
  std::string expected;
  for (int i = 0; i < 5; ++i) {
    const std::string piece(100'000, static_cast<char>('a' + i));
    writer.write(piece);
    expected += piece;
    if (i % 2 == 0) writer.begin_writeback();
  }
  writer.finish();
  CHECK(TempFolder::read(path) == expected);
  sync_file(path);
  CHECK(contains(message_of<InputError>([&] { sync_file(folder / "absent"); }), "absent"));
}

namespace {

// Bytes as O_DIRECT takes them, and no two units alike.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t size)
      : size_(size), bytes_(static_cast<std::byte*>(::operator new(size, alignment))) {
    for (std::size_t i = 0; i < size; ++i) bytes_.get()[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  }
  std::span<const std::byte> bytes() const { return {bytes_.get(), size_}; }
  std::string text() const { return {reinterpret_cast<const char*>(bytes_.get()), size_}; }

 private:
  static constexpr auto alignment = std::align_val_t(FileWriter::direct_unit);
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, alignment); }
  };
  std::size_t size_;
  std::unique_ptr<std::byte, Free> bytes_;
};

// Pages of the file that the system has a copy of.
std::size_t cached_pages(const std::filesystem::path& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const std::size_t size = std::filesystem::file_size(path);
  void* const map = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  REQUIRE(map != MAP_FAILED);
  std::vector<unsigned char> is_cached((size + 4095) / 4096);
  REQUIRE(::mincore(map, size, is_cached.data()) == 0);
  ::munmap(map, size);
  return static_cast<std::size_t>(
      std::count_if(is_cached.begin(), is_cached.end(), [](unsigned char page) { return (page & 1) != 0; }));
}

constexpr std::size_t unit = FileWriter::direct_unit;

}  // namespace

TEST_CASE("uncached_writes_leave_no_copy_in_the_page_cache_but_of_the_tail") {
  const TempFolder folder;
  const AlignedBytes content(64 * unit + 100);
  const auto path = folder / "data";
  FileWriter writer(path, FileWriter::Caching::none);
  if (!writer.is_direct()) {
    MESSAGE("skipped: the file system of the temporary files has no O_DIRECT");
    return;
  }
  writer.write(content.bytes().first(32 * unit));
  CHECK(writer.is_direct());
  writer.write(content.bytes().subspan(32 * unit));
  CHECK_FALSE(writer.is_direct());
  writer.finish();
  CHECK(cached_pages(path) <= 1);
  CHECK(TempFolder::read(path) == content.text());
  FileWriter cached(folder / "cached");
  cached.write(content.bytes());
  CHECK_FALSE(cached.is_direct());
  cached.finish();
  CHECK(cached_pages(folder / "cached") > 1);
}

TEST_CASE("uncached_writes_that_do_not_fit_go_through_the_cache_from_there_on") {
  const TempFolder folder;
  const AlignedBytes content(16 * unit);
  const auto bytes = content.bytes();
  const std::string text = content.text();
  int number = 0;
  // Where the first write ends, and from where in memory the second one comes.
  for (const std::size_t cut : {unit, unit + 1, std::size_t{1}, 3 * unit - 512}) {
    for (const std::size_t shift : {std::size_t{0}, std::size_t{8}, unit}) {
      CAPTURE(cut);
      CAPTURE(shift);
      const auto path = folder / ("file-" + std::to_string(number++));
      FileWriter writer(path, FileWriter::Caching::none);
      writer.write(bytes.first(cut));
      writer.write(bytes.subspan(cut + shift, 5 * unit));
      writer.write(bytes.first(2 * unit));
      writer.write_at(unit / 2, bytes.subspan(unit, 2 * unit));
      writer.finish();
      std::string expected = text.substr(0, cut) + text.substr(cut + shift, 5 * unit) + text.substr(0, 2 * unit);
      expected.replace(unit / 2, 2 * unit, text, unit, 2 * unit);
      CHECK(TempFolder::read(path) == expected);
    }
  }
}

TEST_CASE("uncached_writes_come_to_a_full_disk_with_the_same_words") {
  const TempFolder folder;
  const AlignedBytes content(16 * unit);
  for (const std::size_t limit : {4 * unit, 4 * unit + 1000, std::size_t{100}}) {
    CAPTURE(limit);
    const auto path = folder / std::to_string(limit);
    FileWriter writer(path, FileWriter::Caching::none);
    const FileSizeLimit files(limit);
    const auto message = message_of<InputError>([&] { writer.write(content.bytes()); });
    CHECK(contains(message, path.string()));
    CHECK(contains(message, "at offset " + std::to_string(limit)));
    CHECK(contains(message, std::strerror(EFBIG)));
    CHECK(TempFolder::read(path) == content.text().substr(0, limit));
  }
}

TEST_CASE("uncached_writes_reach_file_systems_that_have_no_such_way_or_no_space") {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "ram");
  if (!enter_own_mounts() || ::mount("none", (folder / "ram").c_str(), "ramfs", 0, nullptr) != 0) {
    MESSAGE("skipped: may not mount");
    return;
  }
  const AlignedBytes content(64 * unit);
  FileWriter writer(folder / "ram/file", FileWriter::Caching::none);
  CHECK_FALSE(writer.is_direct());
  writer.write(content.bytes());
  writer.finish();
  CHECK(TempFolder::read(folder / "ram/file") == content.text());
  REQUIRE(::umount((folder / "ram").c_str()) == 0);
  REQUIRE(mount_memory(folder / "ram", 0, "size=128k"));
  FileWriter full(folder / "ram/file", FileWriter::Caching::none);
  const auto message = message_of<NoSpaceError>([&] { full.write(content.bytes()); });
  CHECK(contains(message, "at offset 131072"));
  ::umount((folder / "ram").c_str());
}
