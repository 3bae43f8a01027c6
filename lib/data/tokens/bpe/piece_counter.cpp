#include "data/tokens/bpe/piece_counter.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/process/guarded_thread.h"
#include "data/tokens/bpe/split_pattern.h"
#include "data/tokens/bpe/unicode.h"

namespace scaletrain {

namespace {

constexpr std::size_t kTextOfTask = 1u << 20;

// Whole documents and parts of them, each of which is cut by itself.
struct Task {
  std::string text;
  std::vector<std::size_t> ends;
};

using Counts = std::unordered_map<std::string, std::uint64_t>;

// Between the two the pattern cuts, whatever comes before and behind.
bool is_cut_between(const SplitPattern& pattern, char32_t x, char32_t y) {
  return !pattern.may_straddle(x, y) && pattern.matches_alone(x);
}

// The last place before the text's end at which it is cut whatever follows; 0 if none is known.
std::size_t last_cut(const SplitPattern& pattern, std::string_view text) {
  return scaletrain::last_cut(text, [&pattern](char32_t x, char32_t y) { return is_cut_between(pattern, x, y); });
}

void count_pieces(const SplitPattern& pattern, std::string_view bytes, Counts& counts) {
  std::string repaired;
  if (!is_valid_utf8(bytes)) bytes = repaired = replace_malformed_utf8(bytes);
  const auto count = [&counts](const char* begin, const char* end) {
    if (begin != end) ++counts[std::string(begin, end)];
  };
  const char* const end = bytes.data() + bytes.size();
  const char* unmatched = bytes.data();
  for (const char* at = bytes.data(); at < end;) {
    const char* const match = pattern.match(at, end);
    if (match == nullptr) {
      at += decode_utf8(at).length;
      continue;
    }
    count(unmatched, at);
    count(at, match);
    unmatched = at = match;
  }
  count(unmatched, end);
}

}  // namespace

struct PieceCounter::Pool {
  Pool(std::string_view pattern_text, int threads) : pattern(pattern_text), counts(static_cast<std::size_t>(threads)) {
    for (Counts& own : counts) workers.emplace_back([this, &own] { work(own); });
  }
  ~Pool() { close(); }

  void close() {
    {
      const std::lock_guard lock(mutex);
      is_closed = true;
    }
    changed.notify_all();
    for (GuardedThread& worker : workers) worker.join();
  }

  // A worker that has failed takes nothing any more; its error comes out of finish().
  void work(Counts& own) {
    try {
      for (;;) {
        Task task;
        {
          std::unique_lock lock(mutex);
          changed.wait(lock, [this] { return is_closed || !tasks.empty(); });
          if (tasks.empty()) return;
          task = std::move(tasks.front());
          tasks.pop_front();
        }
        changed.notify_all();
        std::size_t begin = 0;
        for (const std::size_t end : task.ends) {
          count_pieces(pattern, std::string_view(task.text).substr(begin, end - begin), own);
          begin = end;
        }
      }
    } catch (...) {
      {
        const std::lock_guard lock(mutex);
        has_failed = true;
      }
      changed.notify_all();
      throw;
    }
  }

  void push(Task task) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [this] { return has_failed || tasks.size() < 2 * workers.size(); });
      tasks.push_back(std::move(task));
    }
    changed.notify_all();
  }

  SplitPattern pattern;
  std::vector<Counts> counts;  // of each worker
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Task> tasks;
  bool is_closed = false;
  bool has_failed = false;
  std::vector<GuardedThread> workers;
};

PieceCounter::PieceCounter(std::string_view pattern, int threads)
    : pool_(std::make_unique<Pool>(pattern, threads)), wanted_(kTextOfTask) {}

PieceCounter::~PieceCounter() = default;

void PieceCounter::add(std::string_view text) {
  text_ += text;
  if (text_.size() < wanted_) return;
  const std::size_t begin = ends_.empty() ? 0 : ends_.back();
  const std::size_t cut = last_cut(pool_->pattern, std::string_view(text_).substr(begin));
  if (cut > 0) ends_.push_back(begin + cut);
  if (!ends_.empty()) hand_on();
  // Where there is no place to cut, the next look is at twice as much: all looks together take linear time.
  wanted_ = std::max(kTextOfTask, 2 * text_.size());
}

void PieceCounter::end_document() {
  ends_.push_back(text_.size());
  if (text_.size() >= kTextOfTask) hand_on();
}

// All but the rest of a document that is not complete.
void PieceCounter::hand_on() {
  std::string rest = text_.substr(ends_.back());
  text_.resize(ends_.back());
  pool_->push({std::exchange(text_, std::move(rest)), std::exchange(ends_, {})});
  wanted_ = kTextOfTask;
}

std::vector<PieceCount> PieceCounter::finish() {
  end_document();
  hand_on();
  pool_->close();
  for (GuardedThread& worker : pool_->workers) worker.join_and_rethrow();
  Counts all = std::move(pool_->counts.front());
  for (std::size_t i = 1; i < pool_->counts.size(); ++i)
    for (const auto& [piece, count] : pool_->counts[i]) all[piece] += count;
  std::vector<PieceCount> out;
  out.reserve(all.size());
  for (auto& [piece, count] : all) out.push_back({piece, count});
  std::sort(out.begin(), out.end(), [](const PieceCount& a, const PieceCount& b) { return a.piece < b.piece; });
  return out;
}

}  // namespace scaletrain
