// Internal to lib/data: whether a text is JSONL under another name, told by its first lines.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace scaletrain {

// Looks at a text from its beginning on, piece by piece, at its first two lines that are not blank. Holds at most one
// line of them, and of that a MiB: a longer one is judged by how it begins.
class JsonLinesScan {
 public:
  void take(std::string_view piece);
  // How many of the two are JSON objects, or of the only one; 0 as soon as one of them is none. is_whole: the text ends
  // here, so a last line without its end is one as well.
  int objects(bool is_whole) const;
  // What comes now does not change that.
  bool is_over() const { return is_over_; }

 private:
  void end_line();
  void end_scan(int objects);

  std::string line_;  // the current one, up to here
  int objects_ = 0;
  bool is_over_ = false;
};

// JsonLinesScan::objects() of a file, which may be compressed. Reads its first 4 MiB of text at most.
int json_lines_at_beginning(const std::filesystem::path& file);

// Whether a file named .json may be one of documents and not one about them, as a meta.json is: its beginning is that
// of several lines of objects, or of an array of objects, or it is one line with an object that has the field of a
// document. It need not be valid. Reads as much.
bool may_hold_records(const std::filesystem::path& file, const std::string& field);

}  // namespace scaletrain
