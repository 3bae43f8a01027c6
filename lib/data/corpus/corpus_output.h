// Internal to lib/data: the files of a corpus that is built (corpus_build.h), their names, and how they get them.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/corpus/corpus_build.h"

namespace scaletrain {

inline constexpr std::array<const char*, 3> kCorpusParts = {"train", "validation", "test"};

// STEM.bin, STEM.idx.
std::filesystem::path with_ending(const std::filesystem::path& stem, const char* ending);
inline constexpr const char* kRecordEnding = ".build.json";

// Of all bytes of STEM.bin and STEM.idx.
std::uint64_t pair_hash(const std::filesystem::path& stem);

// The names of the outputs of one build, and of the folder that they are built in.
class OutputNames {
 public:
  OutputNames(const std::string& output, std::int64_t shard, std::int64_t shards);

  const std::filesystem::path& folder() const { return folder_; }
  // part: empty for the only one.
  std::filesystem::path stem(const std::string& part) const {
    const std::string file = name(part) + ending_;
    return folder_ == "." ? std::filesystem::path(file) : folder_ / file;
  }
  std::filesystem::path work_folder() const { return folder_ / ("." + name("") + ending_ + ".building"); }
  // Without the number of the shard.
  std::string name(const std::string& part) const;

 private:
  std::filesystem::path folder_;
  std::string base_;
  std::string ending_;
};

// Which build wrote a record, or the state of one.
struct BuildId {
  std::uint64_t hash = 0;  // of what was asked for, but for the shard
  std::int64_t shard = 0;
  std::int64_t shards = 1;
};
bool is_record_of(const nlohmann::json& record, const BuildId& id);

// The files of outputs under their temporary names, and the way to those that they get.
class Workplace {
 public:
  Workplace(const OutputNames& names, const std::vector<std::string>& parts, const BuildId& id);

  // The records of the outputs, if they are there as this build would leave them: by their sizes, or reading them.
  std::optional<std::vector<nlohmann::json>> find_built(bool reads_all = false) const;

  // Locks the folder, and tells how far a build of the same has come; nothing: begin. What a build of others has left
  // is in the way unless that one has ended by an error, which leaves nothing that anyone could go on with.
  std::optional<nlohmann::json> enter(bool overwrites);

  std::filesystem::path stem_within(std::size_t output) const { return folder_ / stems_[output].filename(); }
  const std::filesystem::path& stem(std::size_t output) const { return stems_[output]; }

  // Adds whose state it is.
  void save(nlohmann::json state) const;
  // The build that is under way ends by an error.
  void note_failure() const;
  // What is complete gets its names; what has them already keeps them. overwrites: other parts that builds with this
  // output have left (a test part, say, that there is no more) go.
  void publish(bool overwrites);
  // Whether there are such parts, and what makes them go.
  bool has_others() const;
  void remove_others();
  // Removes the folder.
  void leave();

 private:
  // Makes the folder and locks it: UserError if another process has.
  void lock();
  void refuse_what_is_there();

  std::filesystem::path folder_;
  std::vector<std::filesystem::path> stems_;
  std::vector<std::filesystem::path> other_stems_;  // of the parts that this build does not have
  BuildId id_;
  FileDescriptor lock_;
};

std::vector<CorpusOutput> outputs_of(const Workplace& work, const std::vector<std::string>& parts,
                                     const std::vector<nlohmann::json>& records);

}  // namespace scaletrain
