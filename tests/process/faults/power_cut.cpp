#include "power_cut.h"

#include <linux/fs.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "process/tiny_run.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t nowhere = static_cast<std::size_t>(-1);

std::int64_t integer_at(std::string_view bytes, std::size_t at) {
  std::int64_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace

std::vector<DiskChange> read_journal(const fs::path& journal, const fs::path& folder) {
  constexpr std::size_t head = 25;
  const std::string bytes = read_file(journal);
  const std::string prefix = fs::canonical(folder).string();
  const auto relative = [&prefix](std::string path) {
    path = path.substr(std::min(path.size(), prefix.size()));
    return path.starts_with("/") ? path.substr(1) : path;
  };
  std::vector<DiskChange> changes;
  for (std::size_t at = 0; at < bytes.size();) {
    if (bytes.size() - at < head) throw std::runtime_error("the journal is torn");
    DiskChange change{.kind = bytes[at], .path = {}, .data = {}, .number = integer_at(bytes, at + 1)};
    const auto length = static_cast<std::size_t>(integer_at(bytes, at + 9));
    const auto size = static_cast<std::size_t>(integer_at(bytes, at + 17));
    at += head;
    change.path = relative(bytes.substr(at, length));
    change.data = bytes.substr(at + length, size);
    at += length + size;
    if (change.kind == 'x')
      throw std::runtime_error("a change that the model of the disk does not know: " + change.path);
    if (change.kind == 'r') change.data = relative(change.data);
    changes.push_back(std::move(change));
  }
  return changes;
}

const char* name_of(CutKind kind) {
  switch (kind) {
    case CutKind::nothing_unsynced:
      return "only what was synced";
    case CutKind::everything:
      return "everything";
    case CutKind::names_only:
      return "names without bytes";
    case CutKind::names_and_zeros:
      return "names and zeros";
    case CutKind::torn:
      return "torn writes";
    case CutKind::random:
      return "any beginning of each";
  }
  return "?";
}

DiskModel::DiskModel(const fs::path& folder) {
  load(folder);
}

std::size_t DiskModel::load(const fs::path& path) {
  const std::size_t index = nodes_.size();
  nodes_.emplace_back();
  if (!fs::is_directory(path)) {
    nodes_[index].synced = read_file(path);
    return index;
  }
  nodes_[index].is_folder = true;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::size_t child = load(entry.path());
    nodes_[index].synced_names[entry.path().filename().string()] = child;
  }
  return index;
}

void DiskModel::apply_names(Names& names, const NameChange& change) {
  for (const std::string& name : change.removed) names.erase(name);
  for (const auto& [name, node] : change.set) names[name] = node;
}

void DiskModel::apply_write(std::string& content, const Write& write) {
  if (write.offset < 0) {
    content.resize(write.size);
    return;
  }
  const auto at = static_cast<std::size_t>(write.offset);
  if (content.size() < at + write.bytes.size()) content.resize(at + write.bytes.size());
  content.replace(at, write.bytes.size(), write.bytes);
}

DiskModel::Names DiskModel::names_of(std::size_t folder) const {
  Names names = nodes_[folder].synced_names;
  for (const NameChange& change : nodes_[folder].name_changes) apply_names(names, change);
  return names;
}

std::size_t DiskModel::find(std::string_view path) const {
  std::size_t node = 0;
  while (!path.empty()) {
    const std::size_t slash = std::min(path.find('/'), path.size());
    const Names names = names_of(node);
    const auto found = names.find(std::string(path.substr(0, slash)));
    if (found == names.end()) return nowhere;
    node = found->second;
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return node;
}

// The folder that has the name, and the name in it.
std::pair<std::size_t, std::string> DiskModel::place_of(const std::string& path) const {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {0, path};
  const std::size_t folder = find(std::string_view(path).substr(0, slash));
  if (folder == nowhere) throw std::runtime_error("the model of the disk has no folder for " + path);
  return {folder, path.substr(slash + 1)};
}

std::size_t DiskModel::make(const std::string& path, bool is_folder) {
  const auto [folder, name] = place_of(path);
  const std::size_t node = nodes_.size();
  nodes_.emplace_back();
  nodes_[node].is_folder = is_folder;
  nodes_[folder].name_changes.push_back({.removed = {}, .set = {{name, node}}});
  return node;
}

void DiskModel::apply(const DiskChange& change) {
  const std::size_t known = find(change.path);
  switch (change.kind) {
    case 'o': {
      const std::size_t node = known == nowhere ? make(change.path, false) : known;
      if (change.number == 1) nodes_[node].writes.push_back({.offset = -1, .bytes = {}, .size = 0});
      break;
    }
    case 'm':
      make(change.path, true);
      break;
    case 'w':
      // A file whose name is gone concerns nobody after a cut.
      if (known != nowhere) nodes_[known].writes.push_back({.offset = change.number, .bytes = change.data, .size = 0});
      break;
    case 't':
      if (known != nowhere)
        nodes_[known].writes.push_back({.offset = -1, .bytes = {}, .size = static_cast<std::size_t>(change.number)});
      break;
    case 's':
      if (known == nowhere) break;
      if (nodes_[known].is_folder) {
        nodes_[known].synced_names = names_of(known);
        nodes_[known].name_changes.clear();
      } else {
        for (const Write& write : nodes_[known].writes) apply_write(nodes_[known].synced, write);
        nodes_[known].writes.clear();
      }
      break;
    case 'u': {
      const auto [folder, name] = place_of(change.path);
      nodes_[folder].name_changes.push_back({.removed = {name}, .set = {}});
      break;
    }
    case 'r': {
      const auto [from, old_name] = place_of(change.path);
      const auto [to, new_name] = place_of(change.data);
      if (from != to) throw std::runtime_error("the model of the disk knows no rename between folders");
      NameChange renamed{.removed = {old_name}, .set = {{new_name, known}}};
      if (change.number == RENAME_EXCHANGE)
        renamed = {.removed = {}, .set = {{new_name, known}, {old_name, find(change.data)}}};
      nodes_[from].name_changes.push_back(renamed);
      break;
    }
    default:
      throw std::runtime_error(std::string("the model of the disk does not know a change ") + change.kind);
  }
}

bool DiskModel::is_durable(const std::string& path) const {
  const auto [folder, name] = place_of(path);
  return nodes_[folder].name_changes.empty() && nodes_[folder].synced_names.contains(name);
}

std::string DiskModel::content_after(const Node& node, CutKind kind, Random& random) {
  if (kind == CutKind::random) {
    constexpr CutKind kinds[] = {CutKind::nothing_unsynced, CutKind::everything, CutKind::names_and_zeros,
                                 CutKind::torn};
    kind = kinds[random() % std::size(kinds)];
  }
  std::string content = node.synced;
  std::size_t kept = 0;
  if (kind == CutKind::everything) kept = node.writes.size();
  if (kind == CutKind::torn && !node.writes.empty()) kept = random() % node.writes.size();
  for (std::size_t i = 0; i < kept; ++i) apply_write(content, node.writes[i]);
  if (kind == CutKind::torn && kept < node.writes.size()) {
    Write half = node.writes[kept];
    half.bytes.resize(half.bytes.size() / 2);
    apply_write(content, half);
  }
  if (kind == CutKind::names_and_zeros) {
    std::string whole = content;
    for (const Write& write : node.writes) apply_write(whole, write);
    content.resize(whole.size());
  }
  return content;
}

void DiskModel::collect(std::size_t node, const std::string& path, CutKind kind, Random& random, State& state) const {
  const Node& here = nodes_[node];
  if (!here.is_folder) {
    state[path] = content_after(here, kind, random);
    return;
  }
  if (!path.empty()) state[path + "/"] = {};
  std::size_t kept = kind == CutKind::nothing_unsynced ? 0 : here.name_changes.size();
  if (kind == CutKind::random) kept = random() % (here.name_changes.size() + 1);
  Names names = here.synced_names;
  for (std::size_t i = 0; i < kept; ++i) apply_names(names, here.name_changes[i]);
  for (const auto& [name, child] : names) collect(child, path.empty() ? name : path + "/" + name, kind, random, state);
}

DiskModel::State DiskModel::after_cut(CutKind kind, unsigned seed) const {
  Random random(seed);
  State state;
  collect(0, "", kind, random, state);
  return state;
}

void restore(const DiskModel::State& state, const fs::path& folder) {
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const auto& [path, content] : state) {
    if (path.ends_with("/")) {
      fs::create_directories(folder / path.substr(0, path.size() - 1));
    } else {
      write_file(folder / path, content);
    }
  }
}

}  // namespace scaletrain
