// What metrics.jsonl and event files have in common: a file to which whole records are appended, and records that wait
// until it accepts them. A write that fails leaves them waiting; part of them may then stand in the file, behind end().
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/file.h"

namespace scaletrain {

class RecordFile {
 public:
  // `end`: of the last whole record in it.
  void open(FileDescriptor file, std::uint64_t end);

  // Behind those that wait; given up where they are more than a day of steps of one second.
  void add(std::string_view record);
  // Before them.
  void add_first(std::string_view record);
  void clear();

  // These return 0, or an errno. Writes what waits, all or none.
  int write();
  int sync();
  int cut_to(std::uint64_t end);

  const FileDescriptor& file() const { return file_; }
  const std::string& waiting() const { return waiting_; }
  std::uint64_t end() const { return end_; }
  void set_end(std::uint64_t end) { end_ = end; }

 private:
  FileDescriptor file_;
  std::string waiting_;    // whole records that are not known to be in the file
  std::uint64_t end_ = 0;  // of the last whole record in the file
};

}  // namespace scaletrain
