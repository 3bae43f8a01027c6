// What a disk may hold after a power cut. A journal (FAULT_JOURNAL of storage_faults.cpp) says what a process changed
// in a folder; the model keeps, for every file and folder, what was synced and the changes since, of which a power cut
// leaves some beginning: none, all, or up to a write that is torn or whose space is there but reads as zeros. A file's
// fsync keeps its bytes and not its name, a folder's keeps the names and not the bytes: less than most file systems
// promise.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace scaletrain {

struct DiskChange {
  char kind = '?';          // o: made or opened (emptied if number is 1), w, t, s, r, m, u
  std::string path;         // relative to the folder; empty: the folder itself
  std::string data{};       // w: the bytes. r: the new path
  std::int64_t number = 0;  // w: offset. t: size. r: flags
};
// Of those inside `folder`; throws if there is one that the model does not know.
std::vector<DiskChange> read_journal(const std::filesystem::path& journal, const std::filesystem::path& folder);

enum class CutKind {
  nothing_unsynced,  // only what was synced
  everything,        // as after a kill
  names_only,        // all names; files as they were synced
  names_and_zeros,   // all names; files as long as written, with zeros where they were not synced
  torn,              // all names; of each file some changes, the last one half
  random             // any of these for each file and folder by itself
};
inline constexpr CutKind all_cuts[] = {CutKind::nothing_unsynced, CutKind::everything, CutKind::names_only,
                                       CutKind::names_and_zeros,  CutKind::torn,       CutKind::random};
const char* name_of(CutKind kind);

class DiskModel {
 public:
  // As it is now, all of it synced.
  explicit DiskModel(const std::filesystem::path& folder);
  void apply(const DiskChange& change);
  // Every file and folder (its content empty and its name with a slash behind it) after a cut at this moment.
  using State = std::map<std::string, std::string>;
  State after_cut(CutKind kind, unsigned seed) const;
  // Whether the name is there whatever a cut does.
  bool is_durable(const std::string& path) const;

 private:
  using Names = std::map<std::string, std::size_t>;
  struct Write {
    std::int64_t offset = 0;  // negative: a change of the size
    std::string bytes{};
    std::size_t size = 0;
  };
  struct NameChange {
    std::vector<std::string> removed{};
    std::vector<std::pair<std::string, std::size_t>> set{};
  };
  struct Node {
    bool is_folder = false;
    std::string synced{};
    std::vector<Write> writes{};
    Names synced_names{};
    std::vector<NameChange> name_changes{};
  };
  using Random = std::mt19937;

  std::size_t load(const std::filesystem::path& path);
  Names names_of(std::size_t folder) const;
  std::size_t find(std::string_view path) const;  // nowhere if there is none
  std::pair<std::size_t, std::string> place_of(const std::string& path) const;
  std::size_t make(const std::string& path, bool is_folder);
  void collect(std::size_t node, const std::string& path, CutKind kind, Random& random, State& state) const;
  static void apply_names(Names& names, const NameChange& change);
  static void apply_write(std::string& content, const Write& write);
  static std::string content_after(const Node& node, CutKind kind, Random& random);

  std::vector<Node> nodes_;  // the first is the folder itself
};

// Makes the folder hold exactly this.
void restore(const DiskModel::State& state, const std::filesystem::path& folder);

}  // namespace scaletrain
