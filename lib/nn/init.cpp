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

// A stretch of a parameter's global tensor that lies in one piece, here and there.
struct Piece {
  const Parameter* parameter = nullptr;
  std::uint64_t first = 0;  // global element index
  View out;                 // [count]
};

constexpr std::int64_t piece_elements = 1 << 16;

// Calls visit(first global element, first local element, count) for each contiguous run of the box.
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
    visit(first, run * count, count);
  }
}

std::vector<Piece> pieces_of(const ParamStore& store) {
  std::vector<Piece> pieces;
  for (const ParamRange& range : store.held(StateKind::master)) {
    const Parameter& parameter = store.table().parameters()[std::size_t(range.parameter)];
    if (parameter.role != ParamRole::trained) continue;
    const View values = store.values(StateKind::master, range);
    std::int64_t end = 0;  // of the boxes so far, which tile the range in order
    for (const Box& box : boxes_of_range(store.layout().find(range.parameter)->box, range.first, range.count)) {
      for_each_run(parameter.shape, box, [&](std::int64_t first, std::int64_t local, std::int64_t count) {
        for (std::int64_t done = 0; done < count; done += piece_elements)
          pieces.push_back({&parameter, static_cast<std::uint64_t>(first + done),
                            values.rows(end + local + done, std::min(piece_elements, count - done))});
      });
      end += box.num_elements();
    }
    SCALETRAIN_CHECK_EQ(end, range.count);
  }
  return pieces;
}

void fill(const Piece& piece, std::uint64_t seed, std::span<float> out) {
  const InitialValues& init = piece.parameter->init;
  const auto deviation = static_cast<float>(init.deviation);
  // A tied copy has the values of the tensor it is a copy of.
  const PhiloxKey key = philox_key(seed, piece.parameter->tied_to.value_or(piece.parameter->name));
  switch (init.kind) {
    case InitialValues::Kind::zeros:
      std::fill(out.begin(), out.end(), 0.0f);
      break;
    case InitialValues::Kind::ones:
      std::fill(out.begin(), out.end(), 1.0f);
      break;
    case InitialValues::Kind::normal:
      fill_normal(key, piece.first, 0.0f, deviation, out);
      break;
    case InitialValues::Kind::uniform:
      fill_uniform(key, piece.first, -deviation, deviation, out);
      break;
  }
}

// Masters wider than f32 hold the same values: the generator's floats, widened through `scratch`.
void fill(const Piece& piece, std::uint64_t seed, const View& out, std::vector<float>& scratch) {
  const auto count = static_cast<std::size_t>(out.num_elements());
  if (out.dtype() == DType::f32) {
    fill(piece, seed, std::span<float>(out.as<float>(), count));
    return;
  }
  fill(piece, seed, std::span<float>(scratch.data(), count));
  convert_floats(DType::f32, scratch.data(), out.dtype(), out.bytes(), count);
}

}  // namespace

void initialise_parameters(ParamStore& store, Stream& stream, std::uint64_t seed, int threads, WorkCount* work) {
  SCALETRAIN_CHECK(threads >= 1);
  const std::vector<Piece> pieces = pieces_of(store);
  std::vector<std::vector<float>> scratch(static_cast<std::size_t>(threads));
  if (store.options().dtype != DType::f32)
    for (std::vector<float>& buffer : scratch) buffer.resize(static_cast<std::size_t>(piece_elements));
  HostAccess access(store.backend(), threads);
  std::atomic<std::size_t> next{0};
  const auto fill_some = [&](std::size_t thread) {
    for (std::size_t i = next++; i < pieces.size(); i = next++) {
      access.write(pieces[i].out, [&](const View& host) { fill(pieces[i], seed, host, scratch[thread]); });
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

}  // namespace scaletrain
