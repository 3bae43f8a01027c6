// The way of offloaded state through a device: values and order, on streams of which some run nothing before somebody
// waits for it, with memory that the host cannot touch.
#include "store/offload_staging.h"

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/forwarding_backend.h"
#include "support/ranks/fenced_backend.h"
#include "support/ranks/late_backend.h"

using namespace scaletrain;

namespace {

// work: the stream that updates are issued to; in, back: those of the copies.
enum class Role { work, in, back };

// That a stream does not wait for another one's moments.
struct Edge {
  Role waits;
  Role for_whom;
};

// Knows whose moments it waits for, and may leave some out.
class EdgeStream final : public Stream {
 public:
  EdgeStream(Role role, bool is_late, std::optional<Edge> missing)
      : role_(role), missing_(missing), inner_(make(is_late)) {}
  void synchronize() override { inner_->synchronize(); }
  void call(std::function<void()> function) override { inner_->call(std::move(function)); }
  Event record() override { return Event(std::make_shared<Moment>(role_, inner_->record())); }
  void after(const Event& event) override {
    const auto* const moment = dynamic_cast<const Moment*>(event.state());
    if (moment == nullptr) return;
    if (missing_ && missing_->waits == role_ && missing_->for_whom == moment->of) return;
    inner_->after(moment->inner);
  }

 private:
  struct Moment final : Event::State {
    Moment(Role stream, Event event) : of(stream), inner(std::move(event)) {}
    bool is_done() override { return inner.is_done(); }
    void wait() override { inner.wait(); }
    Role of;
    Event inner;
  };
  static std::unique_ptr<Stream> make(bool is_late) {
    if (is_late) return std::make_unique<LateStream>(0, Lateness::on_demand);
    return std::make_unique<HostStream>();
  }

  Role role_;
  std::optional<Edge> missing_;
  std::unique_ptr<Stream> inner_;
};

// Its streams are those of the copies, in the order in which they are made.
class EdgesBackend final : public ForwardingBackend {
 public:
  EdgesBackend(std::vector<Role> late, std::optional<Edge> missing)
      : ForwardingBackend(
            std::make_unique<LateBackend>(std::make_unique<FencedBackend>(make_reference_backend(DType::f32)))),
        late_(std::move(late)),
        missing_(missing) {}
  std::unique_ptr<Stream> make_stream() override { return make(num_streams_++ == 0 ? Role::in : Role::back); }
  std::unique_ptr<Stream> make(Role role) const {
    return std::make_unique<EdgeStream>(role, std::find(late_.begin(), late_.end(), role) != late_.end(), missing_);
  }

 private:
  std::vector<Role> late_;
  std::optional<Edge> missing_;
  int num_streams_ = 0;
};

constexpr std::int64_t elements = 7 * 16 + 5;  // of a range: pieces of 16, the last one not full
constexpr std::int64_t num_ranges = 2;

// Params, states, and what the device was told of the params, all as the host finds them behind the work's stream.
struct Found {
  std::vector<float> params, states, told;
  bool operator==(const Found&) const = default;
};

// Params are 0, 1, 2 ..., states 1. Each of two updates adds a state to its param and doubles it; then the params are
// read.
Found pass_twice(const std::vector<Role>& late, std::optional<Edge> missing = {}) {
  EdgesBackend backend(late, missing);
  const auto work = backend.make(Role::work);
  StoreMemory memory;
  memory.num_states = 1;
  memory.offload = true;
  memory.staged_elements = 16;
  memory.num_state_staging = 3;
  memory.state_staging = 2 * 16 * sizeof(float);
  constexpr std::size_t bytes = num_ranges * elements * sizeof(float);
  const Buffer params = backend.allocate_pinned(bytes);
  const Buffer states = backend.allocate_pinned(bytes);
  const Buffer told = backend.allocate_pinned(bytes);
  const Buffer compute = backend.allocate(bytes);
  const auto all = [](const Buffer& buffer) { return buffer.view(0, DType::f32, {num_ranges * elements}); };
  for (std::int64_t i = 0; i < num_ranges * elements; ++i) {
    all(params).as<float>()[i] = static_cast<float>(i);
    all(states).as<float>()[i] = 1.0F;
  }
  std::vector<OptimizerRange> ranges;
  for (std::int64_t first = 0; first < num_ranges * elements; first += elements)
    ranges.push_back({.buffer = 0,
                      .first = first,
                      .param = all(params).rows(first, elements),
                      .compute = all(compute).rows(first, elements),
                      .gradient = {},
                      .states = {all(states).rows(first, elements)},
                      .state_block = 0,
                      .scales = {}});
  OffloadStaging staging(backend, memory);
  const auto update = [&](const OptimizerRange& piece) {
    backend.run(*work, Add{.a = piece.param, .b = piece.states[0], .output = piece.param});
    backend.run(*work, Add{.a = piece.states[0], .b = piece.states[0], .output = piece.states[0]});
  };
  staging.update(*work, ranges, update);
  staging.update(*work, ranges, update);
  staging.read(*work, ranges, [&](const OptimizerRange& piece) {
    backend.run(*work, Copy{.input = piece.param, .output = piece.compute});
  });
  backend.copy(*work, all(compute), all(told));
  work->synchronize();
  const auto values = [&](const Buffer& buffer) {
    const float* const first = all(buffer).as<float>();
    return std::vector<float>(first, first + num_ranges * elements);
  };
  return {values(params), values(states), values(told)};
}

Found expected() {
  Found found;
  for (std::int64_t i = 0; i < num_ranges * elements; ++i) found.params.push_back(static_cast<float>(i + 3));
  found.states.assign(num_ranges * elements, 4.0F);
  found.told = found.params;
  return found;
}

}  // namespace

TEST_CASE("offloaded state is updated piece by piece, whichever of the streams are late") {
  for (const std::vector<Role>& late : {std::vector<Role>{},
                                        {Role::work},
                                        {Role::in},
                                        {Role::back},
                                        {Role::work, Role::in},
                                        {Role::work, Role::back},
                                        {Role::in, Role::back},
                                        {Role::work, Role::in, Role::back}}) {
    CAPTURE(late.size());
    CHECK(pass_twice(late) == expected());
  }
}

// Each with streams that are late so that the edge is all that keeps the order.
TEST_CASE("a way through the device that lacks one of its edges makes other values") {
  struct Case {
    std::string what;
    Edge edge;
    std::vector<Role> late;
  };
  const std::vector<Case> cases = {
      {"the update reads what has come in", {Role::work, Role::in}, {Role::in}},
      {"what goes back has been updated", {Role::back, Role::work}, {Role::work}},
      {"a piece comes in where another has left", {Role::in, Role::back}, {Role::back}},
      {"a pass begins behind the one before", {Role::in, Role::work}, {Role::work, Role::back}},
      {"what follows finds what has gone back", {Role::work, Role::back}, {Role::back}},
  };
  for (const Case& missing : cases) {
    CAPTURE(missing.what);
    CHECK(pass_twice(missing.late) == expected());
    CHECK_FALSE(pass_twice(missing.late, missing.edge) == expected());
  }
}
