#include "train/saving/checkpointer.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/process/guarded_thread.h"
#include "base/process/memory_limit.h"
#include "base/text.h"
#include "checkpoint/catalog.h"
#include "checkpoint/save/save.h"
#include "checkpoint/save/staging.h"
#include "comm/sliced_wait.h"
#include "config/load.h"
#include "plan/save_size.h"
#include "train/saving/checkpoint_room.h"
#include "train/saving/retention.h"
#include "train/saving/save_notices.h"

namespace scaletrain {

namespace {

// Bytes per second and rank below which a save is given up, beyond the time that is allowed to any: a shared file
// system under the load of all ranks is slow, but not slower.
constexpr double slowest_write = 10e6;
// The same for one rank that reads a whole checkpoint.
constexpr double slowest_read = 10e6;
// Of the thread that writes, beyond that of training: with no processor to spare it gets about a quarter of one, where
// a gigabyte takes half a second of it.
constexpr int added_niceness = 5;
constexpr int highest_niceness = 19;
// Attempts of one start are fewer, and no start's numbers are another's.
constexpr int attempt_bits = 20;
// Between two looks whether a wait still makes sense.
constexpr double slice_seconds = 0.25;

// Of all ranks: one deadline holds for all of them. Replicas hold alike.
std::size_t largest_store_bytes(const PhasePlan& plan) {
  std::size_t largest = 0;
  for (std::int64_t pipeline = 0; pipeline < plan.mesh.degree(Axis::pipeline); ++pipeline) {
    for (std::int64_t tensor = 0; tensor < plan.mesh.degree(Axis::tensor); ++tensor) {
      const ShardLayout layout = plan.layout(plan.mesh.rank_of({.tensor = tensor, .data = 0, .pipeline = pipeline}));
      largest = std::max(largest, store_bytes(plan.table, layout, plan.store_options()).total());
    }
  }
  return largest;
}

// The store of the thread that writes, whose waits end when the run does.
class AbandonedStore final : public KeyValueStore {
 public:
  AbandonedStore(KeyValueStore& store, const std::atomic<bool>& abandoned) : store_(store), abandoned_(abandoned) {}
  void set(const std::string& key, const std::string& value) override { store_.set(key, value); }
  std::optional<std::string> find(const std::string& key) override { return store_.find(key); }
  std::optional<std::string> find_within(const std::string& key, double seconds) override {
    const auto end_if_abandoned = [this] {
      if (abandoned_) throw PeerError("the save was given up: training has ended");
    };
    return wait_in_slices(
        seconds, slice_seconds, [&](double slice) { return store_.find_within(key, slice); }, end_if_abandoned);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override { return store_.add(key, amount); }
  void remove(const std::string& key) override { store_.remove(key); }

 private:
  KeyValueStore& store_;
  const std::atomic<bool>& abandoned_;
};

// Of this thread alone. There is no way back, so that each save has a thread of its own. Refused: no matter.
void be_nicer() {
  const auto self = static_cast<id_t>(::gettid());
  const int now = ::getpriority(PRIO_PROCESS, self);
  ::setpriority(PRIO_PROCESS, self, std::min(now + added_niceness, highest_niceness));
}

// One save, from its beginning to what became of it.
struct SaveJob {
  SaveRequest request;
  bool best = false;
  std::optional<std::string> best_save_id;  // the one so far
  std::int64_t number = 0;                  // of this process's saves, failed ones too; the same on all ranks
  CheckpointRecord line;
  std::string save_id{};          // if it was saved
  double all_seconds = 0.0;       // copy and pruning included, failed or not
  std::exception_ptr error = {};  // what is no InputError
};

}  // namespace

struct Checkpointer::Impl {
  Impl(const Parts& checkpointer_parts, RunState& run_state);
  ~Impl();

  void save(const Reason& reason);
  void poll();
  void settle();
  void before_update();
  // Finishes a save under way for a run that ends before it; reason: empty: it is told already.
  void end(const std::string& reason);
  void tell_end(const std::string& reason);

  SaveJob make_job(const Reason& reason, KeyValueStore* store);
  // Before the first step: a warning if not all checkpoints will fit; InputError if not one does and the run begins.
  void check_room();
  // Writes and commits; then prunes. Whatever fails is in the job.
  void perform(SaveJob& job, const SavedState* copied, KeyValueStore* store);
  void begin_in_background(SaveJob next);
  void write_in_background();
  void copy_and_write();
  // Seconds that training waited; enters and leaves the state of waiting.
  double wait_for_running();
  // What became of a save that has ended. InputError is left to the caller.
  void adopt(SaveJob& job);
  // Where there is no space for it, once more after something was let go.
  SaveResult write(SaveJob& job, const SavedState* copied, KeyValueStore* store);
  // What rank 0 does, which may verify a checkpoint or two of this size; the others wait for its word here and not in
  // the next step's collectives, whose deadlines are short.
  void prune_together(const SaveJob& job, KeyValueStore* store);
  bool make_room_together(const SaveJob& job, KeyValueStore* store);
  // Rank 0's word to the others about one save, and what they hear.
  void say(const std::string& about, const std::string& word, const SaveJob& job, KeyValueStore* store);
  std::string hear(const std::string& about, const SaveJob& job, KeyValueStore* store);
  // The pinned checkpoint, if the job's is there or, else, if it is not.
  static std::optional<std::string> best_of(const SaveJob& job) {
    return job.best && !job.save_id.empty() ? job.save_id : job.best_save_id;
  }
  void enter(bool waiting_on_storage) const {
    if (parts.entered) parts.entered(waiting_on_storage);
  }
  bool is_alone() const { return parts.rendezvous == nullptr; }
  bool is_first() const { return parts.rank == Rank(0); }

  Parts parts;
  const CheckpointConfig& config;
  const PhasePlan& plan;
  RunState& state;
  MonotonicTime last_save;  // the end of one that held training up, the beginning of one in the background
  std::int64_t saved_step;
  std::int64_t num_saves;         // tried, by all ranks alike
  std::size_t largest_store = 0;  // bytes; of several ranks
  std::size_t all_bytes = 0;      // of a checkpoint
  double copy_stall = 0.0;        // of the save under way: seconds that training was held up

  // Of whoever performs a save, one thread at a time.
  SaveNotices notices;
  Retention retention;                 // rank 0's
  std::vector<std::string> words;      // keys of rank 0's words about this save
  std::vector<std::string> old_words;  // about earlier ones

  // Saves in the background.
  std::optional<StateStaging> staging;
  GuardedThread prefault;
  GuardedThread writer;  // joinable: a save is under way, or its end not yet adopted
  SaveJob running;       // the writer's until is_done
  std::atomic<bool> abandoned{false};
  std::mutex mutex;
  std::condition_variable changed;
  bool is_copied = true;
  Event state_ready;  // when the stream has made the state that is being copied
  bool is_done = true;
};

Checkpointer::Checkpointer(const Parts& parts, RunState& state) : impl_(std::make_unique<Impl>(parts, state)) {}
Checkpointer::~Checkpointer() = default;

bool Checkpointer::due_by_step() const {
  const auto due = [this](const std::optional<std::int64_t>& every) {
    return every && *every > 0 && impl_->state.step % *every == 0;
  };
  return due(impl_->config.every_steps) || due(impl_->config.keep_every);
}

bool Checkpointer::due_by_time() const {
  if (impl_->writer.joinable()) return false;
  const auto& every = impl_->config.every_seconds;
  const double seconds = seconds_since(impl_->last_save);
  return (every && seconds >= *every) || impl_->notices.retry_due(seconds);
}

void Checkpointer::save(const Reason& reason) {
  impl_->save(reason);
}

void Checkpointer::poll() {
  impl_->poll();
}

void Checkpointer::before_update() {
  impl_->before_update();
}

void Checkpointer::settle() {
  impl_->settle();
}

void Checkpointer::end(const std::string& reason) {
  impl_->end(reason);
}

void Checkpointer::went_back() {
  impl_->settle();
  impl_->saved_step = impl_->state.step;
  impl_->last_save = monotonic_now();
  impl_->notices.went_back(impl_->state.step);
}

std::int64_t Checkpointer::saved_step() const {
  return impl_->saved_step;
}

Checkpointer::Impl::Impl(const Parts& checkpointer_parts, RunState& run_state)
    : parts(checkpointer_parts),
      config(checkpointer_parts.config.checkpoint),
      plan(checkpointer_parts.plan),
      state(run_state),
      last_save(monotonic_now()),
      saved_step(run_state.step > 0 ? run_state.step : -1),
      num_saves(run_state.generation << attempt_bits),
      all_bytes(checkpoint_bytes(plan.table, plan.optimizer_states, plan.masters())),
      notices({.log = parts.log,
               .is_first = is_first(),
               .is_alone = is_alone(),
               .background = config.background,
               .grace_seconds = parts.grace_seconds,
               .retry_seconds = parts.retry_seconds},
              saved_step),
      retention(parts.paths.checkpoints(), config, parts.log, parts.may_commit) {
  // Whoever chose the checkpoint that training goes on from has read all of it.
  retention.begin_from(state.parent_save_id);
  if (!is_alone()) largest_store = largest_store_bytes(plan);
  if (is_first()) check_room();
  if (!config.background) return;
  try {
    staging.emplace(parts.store, parts.work);
  } catch (const std::bad_alloc&) {
    throw InputError(fmt::format(
        "rank {}: out of memory: {} for a copy of the state that checkpoints are written from while training goes on; "
        "checkpoint.background: false needs none{}",
        parts.rank.value(), bytes_text(plan.checkpoint_staging(parts.rank)), MemoryLimitText().view()));
  }
  // Beside the first step, which takes longer than the others anyway.
  prefault = GuardedThread([this] { staging->prefault(); });
}

Checkpointer::Impl::~Impl() {
  if (std::uncaught_exceptions() > 0 && !is_alone()) abandoned = true;
  end({});
  if (prefault.joinable()) prefault.join();
}

// The state of waiting is not left again: nothing follows but the end.
void Checkpointer::Impl::end(const std::string& reason) {
  if (!writer.joinable()) return;
  tell_end(reason);
  writer.join();
  // Whoever reads the metrics should find what the folder has.
  running.line.stall_seconds += copy_stall;
  if (parts.metrics != nullptr && !running.error) parts.metrics->write(running.line);
}

void Checkpointer::Impl::tell_end(const std::string& reason) {
  {
    const std::lock_guard lock(mutex);
    if (is_done) return;
  }
  try {
    if (!reason.empty())
      parts.log.error(fmt::format("step {}: training has failed and ends when the checkpoint of step {} is written: {}",
                                  state.step, running.line.step, reason));
    enter(true);
  } catch (const std::exception& error) {
    // The hook may find that the lock is lost, which is no news to a run that has failed.
    parts.log.warn(error.what());
  }
}

void Checkpointer::Impl::check_room() {
  if (const std::string refusal = save_refusal(save_size(plan)); !refusal.empty()) throw UserError(refusal);
  const auto folder = parts.paths.checkpoints();
  const auto look = [&] { return checkpoint_room(parts.config, plan, folder, available_bytes(folder)); };
  CheckpointRoom room;
  try {
    room = look();
    if (room.fits_none()) {
      // What a save has left whose process died may be what fills the disk.
      remove_leftovers(
          folder, [this](const std::string& text) { parts.log.warn(text); }, parts.may_commit);
      room = look();
    }
  } catch (const InputError& error) {
    parts.log.warn(fmt::format("whether the checkpoints will fit is not known: {}", error.what()));
    return;
  }
  if (!room.fits_none()) {
    if (!room.fits()) parts.log.warn(room.shortage());
    return;
  }
  const std::string text =
      fmt::format("{}. Not even one more fits, so that nothing of what is trained could be kept", room.shortage());
  // There is something to go on from, and the shortage may have passed when the next save is due.
  if (saved_step >= 0 || state.generation > 0) return parts.log.error(text);
  throw InputError(text);
}

void Checkpointer::Impl::say(const std::string& about, const std::string& word, const SaveJob& job,
                             KeyValueStore* store) {
  words.push_back(fmt::format("{}/{}/{}", about, job.request.manifest.generation, job.number));
  store->set(words.back(), word);
}

// Storage that is slow ends no run; a rank 0 that is gone does.
std::string Checkpointer::Impl::hear(const std::string& about, const SaveJob& job, KeyValueStore* store) {
  const std::string key = fmt::format("{}/{}/{}", about, job.request.manifest.generation, job.number);
  const double seconds = SaveGroup().deadline + static_cast<double>(all_bytes) / slowest_read;
  for (;;) {
    if (auto word = store->find_within(key, seconds)) return std::move(*word);
    parts.log.warn(
        fmt::format("rank 0 has been removing old checkpoints for {:.0f} s; the next save waits for it", seconds));
  }
}

void Checkpointer::Impl::prune_together(const SaveJob& job, KeyValueStore* store) {
  if (is_first()) retention.prune(best_of(job));
  if (is_alone()) return;
  if (!is_first()) {
    hear("pruned", job, store);
    return;
  }
  say("pruned", "done", job, store);
  // Whoever took part in this save has heard what was said about those before.
  for (const std::string& key : old_words) store->remove(key);
  old_words = std::exchange(words, {});
}

bool Checkpointer::Impl::make_room_together(const SaveJob& job, KeyValueStore* store) {
  if (!is_first()) return hear("room", job, store) == "made";
  const bool is_made = retention.make_room(job.line.step, best_of(job));
  if (!is_alone()) say("room", is_made ? "made" : "none", job, store);
  return is_made;
}

SaveResult Checkpointer::Impl::write(SaveJob& job, const SavedState* copied, KeyValueStore* store) {
  const auto save = [&] {
    return copied != nullptr ? save_checkpoint(*copied, job.request) : save_checkpoint(parts.store, job.request);
  };
  try {
    return save();
  } catch (const NoSpaceError&) {
    if (!make_room_together(job, store)) throw;
  }
  ++job.request.group.attempt;
  return save();
}

SaveJob Checkpointer::Impl::make_job(const Reason& reason, KeyValueStore* store) {
  SaveJob job;
  job.best = reason.best;
  job.best_save_id = state.best_save_id;
  job.number = ++num_saves;
  job.line.step = state.step;
  SaveRequest& request = job.request;
  request.folder = parts.paths.checkpoints();
  request.manifest.config = resolved_yaml(parts.config);
  request.manifest.fingerprint = parts.fingerprint;
  for (const auto& file : parts.tokenizer_files) request.manifest.tokenizer_files.push_back(file.name);
  request.tokenizer_files = parts.tokenizer_files;
  request.may_commit = parts.may_commit;
  if (reason.again) request.supersedes = state.parent_save_id;
  request.is_abandoned = [this] { return abandoned.load(); };
  request.warn = [this](const std::string& text) { parts.log.warn(text); };
  if (!is_alone()) {
    request.group.rank = parts.rank;
    request.group.world = plan.mesh.world();
    request.group.store = store;
    request.group.attempt = 2 * job.number;  // each may be tried a second time
    request.group.deadline += static_cast<double>(largest_store) / slowest_write;
    request.group.plan_of = [this](Rank rank) { return plan.save_plan(rank); };
  }
  write_state(state, reason.best, request.manifest);
  return job;
}

void Checkpointer::Impl::perform(SaveJob& job, const SavedState* copied, KeyValueStore* store) {
  const MonotonicTime start = monotonic_now();
  CheckpointRecord& line = job.line;
  try {
    const SaveResult result = write(job, copied, store);
    job.save_id = result.save_id;
    line.path = result.path.string();
    line.seconds = result.seconds;
    line.bytes = static_cast<std::int64_t>(result.bytes);
    retention.saved(result.save_id);
    parts.log.info(fmt::format("step {}: saved {}", line.step, result.path.string()));
    prune_together(job, store);
  } catch (const InputError& error) {
    line.failure = error.what();
  } catch (...) {
    job.error = std::current_exception();
  }
  job.all_seconds = seconds_since(start);
}

// Whatever happens to it, training learns of its end.
void Checkpointer::Impl::write_in_background() {
  try {
    copy_and_write();
  } catch (...) {
    running.error = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex);
    is_copied = true;
    is_done = true;
  }
  changed.notify_all();
}

void Checkpointer::Impl::copy_and_write() {
  const MonotonicTime start = monotonic_now();
  if (prefault.joinable()) prefault.join();
  state_ready.wait();
  staging->copy();
  const double copy_seconds = seconds_since(start);
  {
    const std::lock_guard lock(mutex);
    is_copied = true;
  }
  changed.notify_all();
  be_nicer();
  if (is_first()) {
    // What was recorded up to this step, before a checkpoint says that it was taken. Not by the writer of the metrics,
    // which training uses meanwhile.
    try {
      sync_file(parts.paths.metrics());
      if (parts.metrics != nullptr && parts.metrics->event_file()) sync_file(*parts.metrics->event_file());
    } catch (const InputError& error) {
      parts.log.warn(error.what());
    }
  }
  std::optional<AbandonedStore> guarded;
  if (!is_alone()) {
    guarded.emplace(*running.request.group.store, abandoned);
    running.request.group.store = &*guarded;
  }
  perform(running, &*staging, running.request.group.store);
  running.all_seconds += copy_seconds;
  if (!running.line.failure.empty())
    notices.failed(running.line.step, running.best, running.all_seconds, running.line.failure);
}

void Checkpointer::Impl::begin_in_background(SaveJob next) {
  running = std::move(next);
  is_copied = false;
  is_done = false;
  state_ready = parts.stream.record();
  staging->begin(parts.stream);
  writer = GuardedThread([this] { write_in_background(); });
}

void Checkpointer::Impl::before_update() {
  if (!writer.joinable() || staging->hold_back(parts.stream)) return;
  std::unique_lock lock(mutex);
  if (is_copied) return;
  const MonotonicTime start = monotonic_now();
  changed.wait(lock, [this] { return is_copied; });
  copy_stall += seconds_since(start);
}

void Checkpointer::Impl::poll() {
  if (!writer.joinable()) return;
  {
    const std::lock_guard lock(mutex);
    if (!is_done) return;
  }
  writer.join();
  SaveJob job = std::move(running);
  adopt(job);
}

double Checkpointer::Impl::wait_for_running() {
  if (!writer.joinable()) return 0.0;
  const MonotonicTime start = monotonic_now();
  {
    std::unique_lock lock(mutex);
    if (!is_done) {
      lock.unlock();
      enter(true);
      lock.lock();
      changed.wait(lock, [this] { return is_done; });
      lock.unlock();
      enter(false);
    }
  }
  const double seconds = seconds_since(start);
  poll();
  return seconds;
}

void Checkpointer::Impl::settle() {
  wait_for_running();
}

// Rank 0's metrics have the record when this returns or throws.
void Checkpointer::Impl::adopt(SaveJob& job) {
  job.line.stall_seconds += std::exchange(copy_stall, 0.0);
  if (job.error) std::rethrow_exception(job.error);
  if (job.line.failure.empty()) {
    state.parent_save_id = job.save_id;
    if (job.best) state.best_save_id = job.save_id;
    saved_step = job.line.step;
    notices.saved(saved_step, job.all_seconds);
  }
  if (parts.metrics != nullptr) parts.metrics->write(job.line);
}

void Checkpointer::Impl::save(const Reason& reason) {
  const MonotonicTime start = monotonic_now();
  const double waited = wait_for_running();
  const bool is_there = reason.must && !reason.best && saved_step == state.step;
  if (is_there) return;
  if (!reason.must) notices.waited(state.step, waited);
  last_save = monotonic_now();
  if (staging && !reason.must) {
    KeyValueStore* const store =
        parts.background_rendezvous != nullptr ? parts.background_rendezvous : parts.rendezvous;
    SaveJob job = make_job(reason, store);
    job.line.background = true;
    job.line.waited_seconds = waited;
    begin_in_background(std::move(job));
    copy_stall = seconds_since(start);
    return;
  }
  enter(true);
  parts.store.settle(parts.stream);
  SaveJob job = make_job(reason, parts.rendezvous);
  if (parts.metrics != nullptr) parts.metrics->sync();
  job.line.waited_seconds = waited;
  perform(job, nullptr, parts.rendezvous);
  copy_stall = seconds_since(start);
  adopt(job);
  if (parts.metrics != nullptr) parts.metrics->sync();
  if (!job.line.failure.empty()) {
    if (reason.must)
      throw InputError(fmt::format("step {}: the checkpoint was not saved: {}\n  {}", job.line.step, job.line.failure,
                                   notices.last_loss(job.line.step)));
    notices.failed(job.line.step, job.best, job.all_seconds, job.line.failure);
  }
  last_save = monotonic_now();
  enter(false);
}

}  // namespace scaletrain
