#include "nn/init.h"

#include <doctest/doctest.h>

#include <span>

#include "backend/host_access.h"
#include "base/hash.h"
#include "model_fixture.h"
#include "support/near.h"
#include "support/ranks/fenced_backend.h"
#include "support/ranks/late_backend.h"

using namespace scaletrain;

namespace {

ModelSpec wide() {
  ModelSpec spec = tiny_llama();
  spec.hidden = 64;
  spec.heads = 8;
  spec.kv_heads = 4;
  spec.head_size = 8;
  spec.ffn_hidden = 96;
  spec.vocab = 3001;
  spec.bias = spec.qkv_bias = true;
  return spec;
}

// A rank's store, initialised.
struct RankStore : ModelStore {
  RankStore(const ParamTable& model, const RankPlace& place, int threads, DType dtype = DType::f32)
      : ModelStore(model, make_reference_backend(dtype), {.gradients = false}, place) {
    initialise_parameters(store, host_stream(), 42, threads);
  }
};

// Of matrices that no shard has in one piece of work: their columns' shards are runs of 500 elements.
ModelSpec wider() {
  ModelSpec spec = wide();
  spec.hidden = 320;
  spec.head_size = 40;
  spec.ffn_hidden = 1000;
  return spec;
}

// Of all masters, padding included, in the order in which the rank holds them.
std::vector<std::string> hashes(const ParamStore& store) {
  std::vector<std::string> found;
  HostAccess access(store.backend());
  for (const ParamRange& range : store.held(StateKind::master)) {
    std::vector<std::byte> bytes;
    access.read(store.values(StateKind::master, range), [&](const ConstView& host) {
      bytes.insert(bytes.end(), host.bytes(), host.bytes() + host.num_bytes());
    });
    found.push_back(to_hex(hash_bytes(bytes)));
  }
  return found;
}

struct Moments {
  double mean = 0.0;
  double deviation = 0.0;
  double largest = 0.0;
};

Moments moments(const View& values) {
  Moments out;
  double squares = 0.0;
  const std::vector<double> elements = to_doubles(values);
  for (const double value : elements) {
    out.mean += value / static_cast<double>(elements.size());
    squares += value * value / static_cast<double>(elements.size());
    out.largest = std::max(out.largest, std::abs(value));
  }
  out.deviation = std::sqrt(squares - out.mean * out.mean);
  return out;
}

}  // namespace

TEST_CASE("initial weights are seen to get further while they are made") {
  const ParamTable table = make_param_table(wide(), {});
  RankStore whole(table, RankPlace{}, 1);
  for (const int threads : {1, 2}) {
    WorkCount work{0};
    initialise_parameters(whole.store, host_stream(), 42, threads, &work);
    CHECK(work >= static_cast<std::uint64_t>(table.num_parameters() / (1 << 16)));
    CHECK(work >= whole.store.held(StateKind::master).size());
  }
}

TEST_CASE("an initial weight depends on seed, name and global index only") {
  const ParamTable table = make_param_table(wide(), {});
  RankStore whole(table, RankPlace{}, 1);
  for (const std::string name : {"embedding.token.weight", "blocks.1.ffn.down.weight"}) {
    CAPTURE(name);
    const View master = whole.store.master(name);
    const double deviation = table.find(name)->init.deviation;
    std::vector<float> expected(static_cast<std::size_t>(master.num_elements()));
    fill_normal(philox_key(42, name), 0, 0.0f, static_cast<float>(deviation), expected);
    CHECK(std::equal(expected.begin(), expected.end(), master.as<float>()));
  }
}

TEST_CASE("any number of threads, any tensor rank, any stage gives the same bits") {
  struct Model {
    InitKind kind;
    ModelSpec spec;
    std::int64_t tensor;  // of 8 ranks, more than key/value heads
  };
  for (const Model& model :
       {Model{InitKind::normal, wide(), 8}, Model{InitKind::xavier, wide(), 8}, Model{InitKind::normal, wider(), 2}}) {
    InitConfig init;
    init.type = model.kind;
    const ParamTable table = make_param_table(model.spec, init);
    RankStore whole(table, RankPlace{}, 1);
    const Mesh mesh(1, model.tensor, 1);
    std::vector<std::unique_ptr<RankStore>> others;
    others.push_back(std::make_unique<RankStore>(table, RankPlace{}, 3));
    others.push_back(std::make_unique<RankStore>(table, RankPlace{}, 16));
    const std::vector<int> last_stage{2, 3};
    others.push_back(std::make_unique<RankStore>(table, RankPlace{.units = last_stage}, 2));
    for (std::int64_t rank = 0; rank < model.tensor; ++rank)
      others.push_back(std::make_unique<RankStore>(table, RankPlace{mesh, {.tensor = rank}}, rank % 2 == 0 ? 1 : 5));
    std::int64_t compared = 0;
    for (const auto& other : others)
      for (const ParamSpan& span : other->layout.spans()) {
        const Parameter& parameter = table.parameters()[std::size_t(span.parameter)];
        const View part = other->store.master(parameter.name);
        const View all = whole.store.master(parameter.name);
        const std::int64_t columns = parameter.shape.num_dims() == 2 ? parameter.shape[1] : 1;
        const std::int64_t width = parameter.shape.num_dims() == 2 ? span.box.extent[1] : 1;
        const std::int64_t first_column = parameter.shape.num_dims() == 2 ? span.box.first[1] : 0;
        bool is_equal = true;
        for (std::int64_t i = 0; i < span.box.extent[0]; ++i)
          for (std::int64_t j = 0; j < width; ++j)
            is_equal = is_equal && part.as<float>()[i * width + j] ==
                                       all.as<float>()[(span.box.first[0] + i) * columns + first_column + j];
        CAPTURE(parameter.name);
        CHECK(is_equal);
        compared += span.box.num_elements();
      }
    CHECK(compared > 2 * table.num_parameters());  // twice for the threads and the tensor ranks, and a stage
  }
}

// The hashes are of the values of the program before it made several elements at once.
TEST_CASE("initial weights are what they have always been, also in memory beyond the host's reach") {
  const ParamTable table = make_param_table(wider(), {});
  const Mesh mesh(1, 2, 1);
  for (const std::int64_t tensor : {0, 1}) {
    const RankPlace place{mesh, {.tensor = tensor}};
    const RankStore on_host(table, place, 1);
    std::string all;
    for (const std::string& hash : hashes(on_host.store)) all += hash;
    CHECK(to_hex(hash_text(all)) == (tensor == 0 ? "4e2cc4de0306e8c2" : "f119af547ce1d90b"));
    for (const int threads : {1, 3, 16}) {
      CAPTURE(threads);
      ModelStore device(
          table, std::make_unique<LateBackend>(std::make_unique<FencedBackend>(make_reference_backend(DType::f32))),
          {.gradients = false}, place);
      initialise_parameters(device.store, *device.stream, 42, threads);
      const auto& fenced = dynamic_cast<const FencedBackend&>(dynamic_cast<LateBackend&>(*device.backend).inner());
      CHECK(fenced.most_pinned() <= host_access_pieces * host_access_piece_bytes);
      CHECK(hashes(device.store) == hashes(on_host.store));
    }
  }
}

TEST_CASE("masters in f64 hold the values of those in f32") {
  const ParamTable table = make_param_table(tiny_gpt2(), {});
  RankStore narrow_store(table, RankPlace{}, 1);
  RankStore wide_store(table, RankPlace{}, 2, DType::f64);
  for (const Parameter& parameter : table.parameters())
    CHECK(to_doubles(narrow_store.store.master(parameter.name)) == to_doubles(wide_store.store.master(parameter.name)));
}

TEST_CASE("initial values have the mean and deviation that the config asks for") {
  const ModelSpec spec = wide();
  const auto store_for = [&](InitKind kind) {
    InitConfig init;
    init.type = kind;
    return make_param_table(spec, init);
  };
  const ParamTable normal_table = store_for(InitKind::normal);
  RankStore normal(normal_table, RankPlace{}, 2);
  const Moments token = moments(normal.store.master("embedding.token.weight"));  // 192 064 elements
  CHECK(std::abs(token.mean) < 5 * 0.02 / std::sqrt(192064.0));
  CHECK(token.deviation == Near(0.02).epsilon(0.01));
  const Moments down = moments(normal.store.master("blocks.0.ffn.down.weight"));  // std / sqrt(2·2 layers)
  CHECK(down.deviation == Near(0.01).epsilon(0.05));
  CHECK(moments(normal.store.master("head.norm.weight")).mean == 1.0);
  CHECK(moments(normal.store.master("head.norm.weight")).deviation == 0.0);
  CHECK(moments(normal.store.master("blocks.0.ffn.down.bias")).largest == 0.0);

  const ParamTable xavier_table = store_for(InitKind::xavier);
  RankStore xavier(xavier_table, RankPlace{}, 2);
  const Moments up = moments(xavier.store.master("blocks.0.ffn.up.weight"));  // [96,64]: bound sqrt(6/160)
  const double bound = std::sqrt(6.0 / 160.0);
  CHECK(up.largest <= bound * (1 + 1e-6));
  CHECK(up.largest > 0.99 * bound);
  CHECK(up.deviation == Near(bound / std::sqrt(3.0)).epsilon(0.03));

  const ParamTable he_table = store_for(InitKind::he);
  RankStore he(he_table, RankPlace{}, 2);
  CHECK(moments(he.store.master("blocks.0.ffn.down.weight")).deviation == Near(std::sqrt(2.0 / 96)).epsilon(0.05));
}

TEST_CASE("two tensors and two seeds share no values") {
  const ParamTable table = make_param_table(wide(), {});
  RankStore first(table, RankPlace{}, 1);
  const std::vector<double> query = to_doubles(first.store.master("blocks.0.attention.query.weight"));
  CHECK(query != to_doubles(first.store.master("blocks.1.attention.query.weight")));
  initialise_parameters(first.store, host_stream(), 43, 1);
  CHECK(query != to_doubles(first.store.master("blocks.0.attention.query.weight")));
}
