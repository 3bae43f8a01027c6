// The piece of memory that two processes of one host share: what each of them has to send, and how far it has come.
// The bytes themselves do not pass through it (memory_link.h).
//
// It is a memfd: it has no name in any file system and ends with the last process that has mapped it, so that nothing
// is left behind by a killed one.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/file.h"

namespace scaletrain {

// A message that waits to be read out of its sender's memory.
struct LinkOffer {
  std::uint64_t tag = 0;
  std::uint64_t address = 0;  // in the sender
  std::uint64_t bytes = 0;
  std::uint64_t send = 0;  // index in `sends`, and in the upper half its use: see SendState
};

// Of an entry of `sends`: which use of the entry, and how far that has come. Only the sender begins a use.
enum class SendStage : std::uint64_t { none = 0, offered = 1, taken = 2, withdrawn = 3 };
inline constexpr std::uint64_t send_state(std::uint64_t use, SendStage stage) {
  return use << 2 | static_cast<std::uint64_t>(stage);
}

// One side's half. Unless said otherwise, written by that side alone.
struct LinkSide {
  static constexpr std::size_t most_offers = 1024;

  // A futex on which threads of this side sleep; rung by both.
  alignas(64) std::atomic<std::uint32_t> bell;
  std::atomic<std::uint32_t> sleepers;
  std::atomic<std::uint32_t> open_receives;  // posted, and not matched yet
  std::atomic<std::uint32_t> backlog;        // sends for which there was no room
  std::atomic<std::int32_t> read_error;      // errno, before this side ends the link because it cannot read; else 0
  // A ring of offers: how many were made in all, and how many the other side has read (written by it).
  alignas(64) std::atomic<std::uint64_t> made;
  alignas(64) std::atomic<std::uint64_t> seen;
  alignas(64) std::array<LinkOffer, most_offers> offers;
  // offered to taken: by the other side.
  std::array<std::atomic<std::uint64_t>, most_offers> sends;
};

struct LinkMemory {
  using Nonce = std::array<std::uint8_t, 32>;
  Nonce nonce;
  std::uint32_t capacity;  // entries in use of each array: most_offers, fewer in tests
  std::array<LinkSide, 2> sides;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);

// Owns a mapping. Move-only.
class LinkSegment {
 public:
  // Nothing where the system has no such memory, or none left.
  static std::optional<LinkSegment> create(std::uint32_t capacity = LinkSide::most_offers);
  // What `create` of another process has made, by its process id, descriptor and nonce. Nothing if there is no such
  // process here, or it has no such descriptor: then it is one of another host, or of a container that keeps to itself.
  static std::optional<LinkSegment> find(pid_t process, int descriptor, const LinkMemory::Nonce& nonce);
  ~LinkSegment();
  LinkSegment(LinkSegment&& other) noexcept;
  LinkSegment& operator=(LinkSegment&& other) noexcept;

  LinkMemory& memory() const { return *memory_; }
  int descriptor() const { return file_.get(); }
  // When the other side has found it: the mapping stays.
  void close_descriptor() { file_ = FileDescriptor(); }

 private:
  LinkSegment(FileDescriptor file, LinkMemory* memory) : file_(std::move(file)), memory_(memory) {}

  FileDescriptor file_;
  LinkMemory* memory_ = nullptr;
};

// Reads out of another process's memory, or this one's: 0, or the errno of why not. EFAULT where nothing lies there.
int read_memory_of(pid_t process, std::uint64_t address, std::byte* to, std::size_t bytes);

}  // namespace scaletrain
