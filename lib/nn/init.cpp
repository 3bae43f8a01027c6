#include "nn/init.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "backend/host_access.h"
#include "base/error.h"
#include "base/numbers/philox.h"
#include "base/process/guarded_thread.h"

namespace scaletrain {

namespace {

// Elements of a parameter that follow each other in its global tensor and here.
struct Run {
  std::uint64_t first = 0;  // global element index
  std::int64_t count = 0;
};

// Consecutive elements of what the rank holds of a parameter, which one thread fills: as many runs as fit in, since
// those of a column shard are short.
struct Piece {
  const Parameter* parameter = nullptr;
  View out;  // [elements of its runs]
  std::size_t first_run = 0;
  std::size_t num_runs = 0;
};

struct Pieces {
  std::vector<Run> runs;
  std::vector<Piece> pieces;
};

constexpr std::int64_t piece_elements = 1 << 16;

// Calls visit(first global element, count) for each contiguous run of the box.
template <class Visit>
void for_each_run(const Shape& shape, const Box& box, Visit visit) {
  const int dims = shape.num_dims();
  int inner = std::max(dims - 1, 0);
  std::int64_t count = dims == 0 ? 1 : box.extent[std::size_t(inner)];
  while (inner > 0 && box.extent[std::size_t(inner)] == shape[inner]) count *= box.extent[std::size_t(--inner)];
  std::vector<std::int64_t> stride(static_cast<std::size_t>(dims), 1);
  for (int dim = dims - 2; dim >= 0; --dim) stride[std::size_t(dim)] = stride[std::size_t(dim) + 1] * shape[dim + 1];

  const std::int64_t runs = count == 0 ? 0 : box.num_elements() / count;
  for (std::int64_t run = 0; run < runs; ++run) {
    std::int64_t first = dims == 0 ? 0 : box.first[std::size_t(inner)] * stride[std::size_t(inner)];
    std::int64_t rest = run;
    for (int dim = inner - 1; dim >= 0; --dim) {
      const std::int64_t extent = box.extent[std::size_t(dim)];
      first += (box.first[std::size_t(dim)] + rest % extent) * stride[std::size_t(dim)];
      rest /= extent;
    }
    visit(first, count);
  }
}

Pieces pieces_of(const ParamStore& store, bool adapters_alone) {
  Pieces all;
  for (const ParamRange& range : store.held(StateKind::master)) {
    const Parameter& parameter = store.table().parameters()[std::size_t(range.parameter)];
    if (adapters_alone && !parameter.is_adapter) continue;
    const View values = store.values(StateKind::master, range);
    std::int64_t begin = 0;  // of the piece under way, in the range
    std::int64_t end = 0;
    std::size_t first_run = all.runs.size();
    const auto close = [&] {
      if (end == begin) return;
      all.pieces.push_back({&parameter, values.rows(begin, end - begin), first_run, all.runs.size() - first_run});
      begin = end;
      first_run = all.runs.size();
    };
    // The boxes tile the range in order.
    for (const Box& box : boxes_of_range(store.layout().find(range.parameter)->box, range.first, range.count)) {
      for_each_run(parameter.shape, box, [&](std::int64_t first, std::int64_t count) {
        for (std::int64_t done = 0; done < count;) {
          const std::int64_t part = std::min(piece_elements - (end - begin), count - done);
          all.runs.push_back({static_cast<std::uint64_t>(first + done), part});
          end += part;
          done += part;
          if (end - begin == piece_elements) close();
        }
      });
    }
    close();
    SCALETRAIN_CHECK_EQ(end, range.count);
  }
  return all;
}

// runs: those of the piece.
void fill(const Parameter& parameter, std::span<const Run> runs, std::uint64_t seed, std::span<float> out) {
  const InitialValues& init = parameter.init;
  const auto deviation = static_cast<float>(init.deviation);
  // A tied copy has the values of the tensor it is a copy of.
  const PhiloxKey key = philox_key(seed, parameter.tied_to.value_or(parameter.name));
  const auto fill_runs = [&](const auto& fill_run) {
    std::size_t done = 0;
    for (const Run& run : runs) {
      const auto count = static_cast<std::size_t>(run.count);
      fill_run(run.first, out.subspan(done, count));
      done += count;
    }
  };
  switch (init.kind) {
    case InitialValues::Kind::zeros:
      std::fill(out.begin(), out.end(), 0.0f);
      break;
    case InitialValues::Kind::ones:
      std::fill(out.begin(), out.end(), 1.0f);
      break;
    case InitialValues::Kind::normal:
      fill_runs([&](std::uint64_t first, std::span<float> part) { fill_normal(key, first, 0.0f, deviation, part); });
      break;
    case InitialValues::Kind::uniform:
      fill_runs(
          [&](std::uint64_t first, std::span<float> part) { fill_uniform(key, first, -deviation, deviation, part); });
      break;
  }
}

// Values of another type than f32 are the generator's floats, widened or rounded, through `scratch`.
void fill(const Parameter& parameter, std::span<const Run> runs, std::uint64_t seed, const View& out,
          std::vector<float>& scratch) {
  const auto count = static_cast<std::size_t>(out.num_elements());
  if (out.dtype() == DType::f32) {
    fill(parameter, runs, seed, std::span<float>(out.as<float>(), count));
    return;
  }
  fill(parameter, runs, seed, std::span<float>(scratch.data(), count));
  convert_floats(DType::f32, scratch.data(), out.dtype(), out.bytes(), count);
}

void initialise(ParamStore& store, Stream& stream, std::uint64_t seed, int threads, WorkCount* work,
                const Pieces& all) {
  SCALETRAIN_CHECK(threads >= 1);
  std::vector<std::vector<float>> scratch(static_cast<std::size_t>(threads));
  std::size_t widest = size_of(DType::f32);
  for (const Piece& piece : all.pieces) {
    if (piece.out.dtype() == DType::f32) continue;
    for (std::vector<float>& buffer : scratch) buffer.resize(static_cast<std::size_t>(piece_elements));
    widest = std::max(widest, size_of(piece.out.dtype()));
  }
  const auto longest = static_cast<std::size_t>(piece_elements) * widest;
  HostAccess access(store.backend(), {.threads = threads, .longest_write = longest});
  std::atomic<std::size_t> next{0};
  const auto fill_some = [&](std::size_t thread) {
    for (std::size_t i = next++; i < all.pieces.size(); i = next++) {
      const Piece& piece = all.pieces[i];
      const std::span<const Run> runs = std::span(all.runs).subspan(piece.first_run, piece.num_runs);
      access.write(piece.out, [&](const View& host) { fill(*piece.parameter, runs, seed, host, scratch[thread]); });
      count_work(work);
    }
  };
  {
    std::vector<GuardedThread> helpers;
    for (int thread = 1; thread < threads; ++thread)
      helpers.emplace_back([&fill_some, thread] { fill_some(std::size_t(thread)); });
    fill_some(0);
    for (GuardedThread& helper : helpers) helper.join_and_rethrow();
  }
  access.finish();
  store.values_changed(stream);
}

}  // namespace

void initialise_parameters(ParamStore& store, Stream& stream, std::uint64_t seed, int threads, WorkCount* work) {
  initialise(store, stream, seed, threads, work, pieces_of(store, false));
}

void initialise_adapters(ParamStore& store, Stream& stream, std::uint64_t seed, int threads, WorkCount* work) {
  initialise(store, stream, seed, threads, work, pieces_of(store, true));
}

}  // namespace scaletrain
