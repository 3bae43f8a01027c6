#include <fmt/core.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "config/yaml/yaml_tree.h"

namespace scaletrain {

namespace {

// Ends the parse from inside an event; the parser unwinds cleanly.
struct Refused {
  Place place;
  std::string message;
};

class TreeBuilder final : public YAML::EventHandler {
 public:
  TreeBuilder(int source, Diagnostics& diagnostics) : source_(source), diagnostics_(diagnostics) {}

  std::optional<YamlNode> take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) throw Refused{place_of(mark), "a second YAML document; a config is one document"};
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_marks(mark, "?", anchor);
    if (wants_key()) throw Refused{place_of(mark), "an empty key; before the colon stands a name"};
    YamlNode node;
    // The mark of an absent value is that of whatever follows; the key is where the user looks.
    node.place = !stack_.empty() && stack_.back().has_key ? stack_.back().key_place : place_of(mark);
    add(std::move(node));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw Refused{place_of(mark), "aliases (*name) are not used in configs; write the value out"};
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_marks(mark, tag, anchor);
    if (wants_key()) return take_key(place_of(mark), value);
    YamlNode node;
    node.kind = YamlNode::Kind::scalar;
    node.place = place_of(mark);
    node.text = value;
    node.is_quoted = tag == "!";
    add(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::list);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::map);
  }
  void OnMapEnd() override { close(); }

  Place place_of(const YAML::Mark& mark) const {
    if (mark.is_null()) return {source_, 1, 1};
    return {source_, mark.line + 1, mark.column + 1};
  }

 private:
  struct Level {
    YamlNode node;
    bool has_key = false;
    bool is_duplicate = false;
    std::string key;
    Place key_place;
    std::unordered_map<std::string, Place> seen;
  };

  bool wants_key() const {
    return !stack_.empty() && stack_.back().node.kind == YamlNode::Kind::map && !stack_.back().has_key;
  }

  void refuse_marks(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) const {
    if (anchor != 0) throw Refused{place_of(mark), "anchors (&name) are not used in configs; write the value out"};
    if (!tag.empty() && tag != "?" && tag != "!")
      throw Refused{place_of(mark), "tags (!name) are not used in configs; the key decides the type"};
  }

  void take_key(Place place, const std::string& key) {
    if (key == "<<") throw Refused{place, "merge keys (<<) are not used in configs; write the values out"};
    Level& level = stack_.back();
    level.has_key = true;
    level.key = key;
    level.key_place = place;
    const auto [first, is_new] = level.seen.emplace(key, place);
    level.is_duplicate = !is_new;
    if (!is_new) {
      diagnostics_.add(place, fmt::format("duplicate key {}; it stands first at line {}, column {}", quoted(key),
                                          first->second.line, first->second.column));
    }
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YamlNode::Kind kind) {
    refuse_marks(mark, tag, anchor);
    if (wants_key()) throw Refused{place_of(mark), "a list or a mapping as a key; before the colon stands a name"};
    if (stack_.size() >= static_cast<std::size_t>(kMaxYamlDepth))
      throw Refused{place_of(mark), fmt::format("more than {} levels of nesting", kMaxYamlDepth)};
    Level level;
    level.node.kind = kind;
    level.node.place = place_of(mark);
    stack_.push_back(std::move(level));
  }

  void close() {
    YamlNode node = std::move(stack_.back().node);
    stack_.pop_back();
    add(std::move(node));
  }

  void add(YamlNode node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Level& level = stack_.back();
    if (level.node.kind == YamlNode::Kind::list) {
      level.node.items.push_back(std::move(node));
      return;
    }
    if (!level.is_duplicate) level.node.entries.push_back({level.key, level.key_place, std::move(node)});
    level.has_key = false;
  }

  int source_;
  Diagnostics& diagnostics_;
  int documents_ = 0;
  std::vector<Level> stack_;
  std::optional<YamlNode> root_;
};

}  // namespace

const YamlNode* find_child(const YamlNode& node, std::string_view key) {
  const auto found =
      std::find_if(node.entries.begin(), node.entries.end(), [&](const YamlEntry& entry) { return entry.key == key; });
  return found == node.entries.end() ? nullptr : &found->value;
}

std::optional<YamlNode> parse_yaml(std::string_view text, int source, Diagnostics& diagnostics) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // a byte order mark says UTF-8, which we know
  const YamlScan scan = scan_yaml(text, source, diagnostics);
  if (!scan.is_clean) return std::nullopt;
  TreeBuilder builder(source, diagnostics);
  std::optional<Refused> fault;
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Refused& refused) {
    fault = refused;
  } catch (const YAML::Exception& error) {
    fault = {builder.place_of(error.mark),
             fmt::format("not valid YAML: {} (check the indentation, colons and brackets here)", error.msg)};
  }
  if (fault) {
    // Behind an open bracket the parser takes anything for anything; the bracket is what the user wants to see.
    if (scan.open_bracket) fault = {*scan.open_bracket, "the bracket opened here is never closed"};
    diagnostics.add(fault->place, fault->message);
    return std::nullopt;
  }
  auto root = builder.take_root();
  if (!root) root.emplace().place = {source, 1, 1};
  return root;
}

}  // namespace scaletrain
