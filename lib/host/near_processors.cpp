#include "host/near_processors.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/text.h"

namespace scaletrain {

namespace {

std::string line_of(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::optional<int> number_of(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// From the first to the last of each stretch.
using Stretches = std::vector<std::pair<int, int>>;

// "0-3,8"; nothing where it is anything else.
std::optional<Stretches> stretches_of(std::string_view list) {
  Stretches stretches;
  for (const std::string& part : split_text(list, ',')) {
    const std::size_t dash = part.find('-');
    const auto first = number_of(std::string_view(part).substr(0, dash));
    const auto last = dash == std::string::npos ? first : number_of(std::string_view(part).substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first) return std::nullopt;
    stretches.emplace_back(*first, *last);
  }
  return stretches;
}

// A name of a folder, and no way out of it.
bool is_address(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789abcdef:.") == std::string::npos && text.front() != '.';
}

}  // namespace

std::optional<NearProcessors> processors_near(const std::string& bus_address, const std::vector<int>& usable,
                                              const std::string& sys) {
  if (!is_address(bus_address)) return std::nullopt;
  const std::string device = fmt::format("{}/bus/pci/devices/{}/", sys, bus_address);
  const auto node = number_of(line_of(device + "numa_node"));
  if (!node || *node < 0) return std::nullopt;
  const auto stretches = stretches_of(line_of(device + "local_cpulist"));
  if (!stretches) return std::nullopt;
  NearProcessors near{.node = *node};
  const auto is_near = [&stretches](int processor) {
    return std::any_of(stretches->begin(), stretches->end(), [processor](const auto& stretch) {
      return stretch.first <= processor && processor <= stretch.second;
    });
  };
  std::copy_if(usable.begin(), usable.end(), std::back_inserter(near.processors), is_near);
  if (near.processors.empty() || near.processors.size() == usable.size()) return std::nullopt;
  return near;
}

std::string processors_text(const std::vector<int>& processors) {
  std::string text;
  for (std::size_t begin = 0; begin < processors.size();) {
    std::size_t end = begin + 1;
    while (end < processors.size() && processors[end] == processors[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", processors[begin]);
    if (end - begin > 1) text += fmt::format("-{}", processors[end - 1]);
    begin = end;
  }
  return text;
}

}  // namespace scaletrain
