// The module that is loaded when a GPU is asked for: one whose GPU the host carries out, one of another version, and
// the one that nvcc has compiled.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

#include "backend/cuda_module.h"
#include "base/error.h"

using namespace scaletrain;

namespace fs = std::filesystem;

namespace {

struct Found {
  std::string refusal = "none";
  bool is_absent = false;  // by NoGpuError
};

Found found_in(const fs::path& file) {
  try {
    const CudaModule module(file);
  } catch (const NoGpuError& error) {
    return {error.what(), true};
  } catch (const UserError& error) {
    return {error.what(), false};
  }
  return {};
}

std::string refusal_of(const fs::path& file) {
  return found_in(file).refusal;
}

// While it lives.
struct Environment {
  Environment(const char* given_name, const char* value) : name(given_name) { ::setenv(name, value, 1); }
  ~Environment() { ::unsetenv(name); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  const char* name;
};

}  // namespace

// A module that was compiled with another of these reads what the program gives it wrongly.
TEST_CASE("the_version_of_a_module_is_of_every_header_that_its_interface_is_made_of") {
  std::set<fs::path> hashed;
  std::istringstream list(INTERFACE_HEADERS);
  for (std::string header; std::getline(list, header, ',');) hashed.insert(header);
  const fs::path lib = SOURCE_FOLDER;
  std::set<fs::path> reached;
  const std::function<void(const fs::path&)> reach = [&](const fs::path& header) {
    if (!reached.insert(header).second) return;
    std::ifstream in(header);
    REQUIRE_MESSAGE(in.good(), header.string());
    constexpr std::string_view include = "#include \"";
    for (std::string line; std::getline(in, line);)
      if (line.starts_with(include)) reach(lib / line.substr(include.size(), line.rfind('"') - include.size()));
  };
  reach(lib / "backend/cuda_module.h");
  CHECK(reached.contains(lib / "backend/update_operations.h"));
  for (const fs::path& header : reached) CHECK_MESSAGE(hashed.contains(header), header.string());
}

TEST_CASE("a_module_gives_the_program_the_backend_of_its_gpu") {
  const CudaModule module(FAKE_MODULE);
  CHECK(module.num_devices() == 1);
  const auto backend = module.make_backend({.compute = DType::bf16});
  CHECK(backend->compute_type() == DType::bf16);
  const auto stream = backend->make_stream();
  const Buffer device = backend->allocate(3 * sizeof(float));
  const Buffer pinned = backend->allocate_pinned(3 * sizeof(float));
  const View values = device.view(0, DType::f32, Shape{3});
  backend->run(*stream, Fill{.output = values, .value = 2.5});
  backend->copy(*stream, values, pinned.view(0, DType::f32, Shape{3}));
  stream->synchronize();
  float found[3];
  std::memcpy(found, pinned.data(), sizeof found);
  for (const float value : found) CHECK(value == 2.5F);
  // What it throws is what the program catches.
  CHECK_THROWS_AS(module.make_backend({.device = 7}), PeerError);
}

TEST_CASE("a_module_that_is_not_there_or_not_ours_is_refused_with_what_would_help") {
  CHECK(
      refusal_of("/nowhere/libscaletrain-cuda.so") ==
      "run.device: cuda: there is no /nowhere/libscaletrain-cuda.so, so this program was built without CUDA: build it "
      "with -DSCALETRAIN_CUDA=ON where the CUDA 13 toolkit is installed, or set run.device: cpu");
  CHECK(refusal_of(OTHER_MODULE) ==
        std::string("run.device: cuda: ") + OTHER_MODULE +
            " belongs to another version of this program: build and install both together, or set run.device: cpu");
  const std::string text = refusal_of(__FILE__);
  CHECK(text.find("cannot be loaded (") != std::string::npos);
  CHECK(text.find("install the libraries of CUDA 13 that it names, or set run.device: cpu") != std::string::npos);
}

TEST_CASE("a_machine_without_a_gpu_to_use_is_told_why_and_what_would_help") {
  const auto refusal_where = [](const char* state) {
    const Environment fake("SCALETRAIN_FAKE_GPU", state);
    return refusal_of(FAKE_MODULE);
  };
  CHECK(refusal_where("no driver") ==
        "run.device: cuda: no NVIDIA driver is installed: install one of version 580 or later, or set run.device: cpu");
  CHECK(
      refusal_where("old driver") ==
      "run.device: cuda: the NVIDIA driver is made for CUDA 12.4, and 13.0 is needed: install version 580 or later, or "
      "set run.device: cpu");
  CHECK(refusal_where("no GPU") ==
        "run.device: cuda: the driver finds no GPU: see what nvidia-smi says, or set run.device: cpu");
  CHECK(refusal_where("broken").find("the driver cannot be used (") != std::string::npos);
  const Environment hidden("CUDA_VISIBLE_DEVICES", "");
  CHECK(refusal_where("no GPU") ==
        "run.device: cuda: CUDA_VISIBLE_DEVICES is '', which leaves no GPU to see: unset it, or set run.device: cpu");
}

TEST_CASE("a_machine_without_a_gpu_is_told_from_one_whose_gpu_cannot_be_used") {
  const auto is_absent = [](const char* state) {
    const Environment fake("SCALETRAIN_FAKE_GPU", state);
    const Found found = found_in(FAKE_MODULE);
    REQUIRE(found.refusal != "none");
    return found.is_absent;
  };
  CHECK(is_absent("no driver"));
  CHECK(is_absent("no GPU"));
  CHECK_FALSE(is_absent("old driver"));
  CHECK_FALSE(is_absent("broken"));
  CHECK(found_in("/nowhere/libscaletrain-cuda.so").is_absent);
  CHECK_FALSE(found_in(OTHER_MODULE).is_absent);
}

TEST_CASE("a_gpu_is_known_by_name_and_memory_before_and_while_it_is_used") {
  const Environment fake("SCALETRAIN_FAKE_GPU", "H100");
  const CudaModule module(FAKE_MODULE);
  const DeviceFacts facts = module.look_at_device(0);
  CHECK(facts.name == "NVIDIA H100 80GB HBM3");
  CHECK(facts.memory == std::uint64_t{80} << 30);
  CHECK(facts.bus_address == "fa4e:1b:00.0");
  const auto backend = module.make_backend({});
  REQUIRE(backend->device());
  CHECK(backend->device()->name == facts.name);
  CHECK(backend->device()->memory == facts.memory);
  CHECK(backend->device_memory_in_use() == std::uint64_t{1} << 30);
  CHECK(backend->workspace_bytes() == cuda_workspace_bytes);
  const auto processors = make_cpu_backend({.threads = 1});
  CHECK_FALSE(processors->device());
  CHECK(processors->device_memory_in_use() == 0);
}

TEST_CASE("tf32_that_the_environment_overrides_is_refused") {
  const CudaModule module(FAKE_MODULE);
  const Environment off("NVIDIA_TF32_OVERRIDE", "0");
  CHECK_THROWS_WITH_AS(module.make_backend({.compute = DType::f32, .tf32 = true}),
                       "precision.compute: tf32: NVIDIA_TF32_OVERRIDE is '0', which cuBLAS obeys instead: unset it, or "
                       "set precision.compute: fp32",
                       UserError);
  CHECK_NOTHROW(module.make_backend({.compute = DType::f32}));
}

TEST_CASE("a_gpu_that_kernels_are_not_compiled_for_is_refused_before_anything_runs") {
  const CudaModule module(FAKE_MODULE);
  const Environment old("SCALETRAIN_FAKE_GPU", "old GPU");
  CHECK_THROWS_AS(module.look_at_device(0), UserError);
  CHECK_THROWS_WITH_AS(module.make_backend({}),
                       "run.device: cuda: the GPU the host (sm_70) is older than sm_80, the oldest that is supported: "
                       "choose another by CUDA_VISIBLE_DEVICES, or set run.device: cpu",
                       UserError);
}

// Where it was built, which the sanitizers' builds leave out.
TEST_CASE("the_module_that_nvcc_has_compiled_loads_and_knows_this_machine") {
  const fs::path file = cuda_module_path();
  if (!fs::exists(file)) {
    MESSAGE("skipped: " << file.string() << " was not built");
    return;
  }
  const std::string text = refusal_of(file);
  if (fs::exists("/proc/driver/nvidia/version"))
    CHECK((text == "none" || text.find("leaves no GPU") != std::string::npos));
  else
    CHECK(
        text ==
        "run.device: cuda: no NVIDIA driver is installed: install one of version 580 or later, or set run.device: cpu");
}
