#include "support/cuda/fake_machine.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string_view>

#include "support/cuda/fake_runtime.h"

namespace scaletrain::fake_machine {

namespace {

// "H100 + old GPU" is one of each.
std::vector<std::string> wanted_one_by_one() {
  constexpr std::string_view between = " + ";
  std::vector<std::string> all;
  std::string rest = wanted_of_environment();
  for (std::size_t at = 0; (at = rest.find(between)) != std::string::npos; rest.erase(0, at + between.size()))
    all.push_back(rest.substr(0, at));
  all.push_back(rest);
  return all;
}

bool has_lost_one() {
  const char* const file = std::getenv("SCALETRAIN_FAKE_LOSS");
  return file != nullptr && std::filesystem::exists(file);
}

// In use by others. A full one has room for streams and what goes through pinned memory alone.
constexpr std::size_t memory_before = std::size_t{1} << 30;

// Of what libraries take, by GPU; and where a test says how much others leave them.
std::mutex memory_mutex;
std::map<int, std::size_t> memory_of_libraries;
std::map<int, std::size_t> memory_left;
std::size_t left_of(int device) {
  const std::size_t all = memory_of_gpu(visible_gpus().at(static_cast<std::size_t>(device)));
  const auto left = memory_left.find(device);
  const std::size_t before = left != memory_left.end() ? left->second : is_full() ? 0 : all - memory_before;
  return before - std::min(before, memory_of_libraries[device]);
}

}  // namespace

std::string wanted_of_environment() {
  const char* const wanted = std::getenv("SCALETRAIN_FAKE_GPU");
  return wanted == nullptr ? "" : wanted;
}

std::string wanted_gpu(int gpu) {
  const std::vector<std::string> all = wanted_one_by_one();
  return all.size() == 1 ? all.front() : all.at(static_cast<std::size_t>(gpu));
}

// "8 GPUs": so many; 1 where no number says how many. By their numbers without CUDA_VISIBLE_DEVICES.
std::vector<int> visible_gpus() {
  const std::string wanted = wanted_of_environment();
  const int number =
      std::max({1, std::atoi(wanted.c_str()), static_cast<int>(wanted_one_by_one().size())}) - (has_lost_one() ? 1 : 0);
  std::vector<int> gpus;
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) {
    for (int gpu = 0; gpu < number; ++gpu) gpus.push_back(gpu);
    return gpus;
  }
  std::istringstream list(visible);
  for (std::string one; std::getline(list, one, ',') && std::atoi(one.c_str()) < number;)
    gpus.push_back(std::atoi(one.c_str()));
  return gpus;
}

int number_of_gpus() {
  return static_cast<int>(visible_gpus().size());
}

std::size_t memory_of_gpu(int gpu) {
  const std::string wanted = wanted_gpu(gpu);
  constexpr std::size_t mebi = std::size_t{1} << 20;
  return wanted == "small GPU" ? 2 * mebi : wanted == "narrow GPU" ? 610 * mebi : 80 * 1024 * mebi;
}

std::size_t free_memory_of(int device) {
  const std::lock_guard lock(memory_mutex);
  return left_of(device);
}

bool is_full() {
  return wanted_of_environment() == "full GPU";
}

bool has_failed(int device, std::string_view what) {
  const char* const file = std::getenv("SCALETRAIN_FAKE_FAILURE");
  if (file == nullptr) return false;
  const std::string text(file);
  const std::size_t colon = text.rfind(':');
  if (std::atoi(text.c_str() + colon + 1) != device) return false;
  std::ifstream failure(text.substr(0, colon));
  if (!failure) return false;
  std::string only;
  return !std::getline(failure, only) || only == what;
}

}  // namespace scaletrain::fake_machine

namespace scaletrain::fake_runtime {

using namespace fake_machine;

bool take_memory(int device, std::size_t bytes) {
  const std::lock_guard lock(memory_mutex);
  if (left_of(device) < bytes) return false;
  memory_of_libraries[device] += bytes;
  return true;
}

void give_memory(int device, std::size_t bytes) {
  const std::lock_guard lock(memory_mutex);
  memory_of_libraries[device] -= bytes;
}

std::size_t taken_memory(int device) {
  const std::lock_guard lock(memory_mutex);
  return memory_of_libraries[device];
}

void leave_memory(int device, std::size_t bytes) {
  const std::lock_guard lock(memory_mutex);
  memory_left[device] = memory_of_libraries[device] + bytes;
}

void free_memory() {
  const std::lock_guard lock(memory_mutex);
  memory_left.clear();
}

}  // namespace scaletrain::fake_runtime
