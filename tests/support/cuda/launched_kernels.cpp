#include "support/cuda/launched_kernels.h"

#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>

#include "base/error.h"

namespace scaletrain::cuda {

namespace {

// What lies how far into the program's file.
template <class Entry>
Entry entry_at(const std::string& file, std::uint64_t at) {
  Entry entry;
  SCALETRAIN_CHECK_LE(at + sizeof entry, file.size());
  std::memcpy(&entry, file.data() + at, sizeof entry);
  return entry;
}

// By their addresses in the file. Kernels are local to their sources: the dynamic symbols lack them.
std::map<std::uint64_t, std::string> functions_of_program() {
  std::ifstream stream("/proc/self/exe", std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(stream), {}};
  const auto header = entry_at<ElfW(Ehdr)>(file, 0);
  std::map<std::uint64_t, std::string> functions;
  const auto section = [&](std::uint64_t index) {
    return entry_at<ElfW(Shdr)>(file, header.e_shoff + index * header.e_shentsize);
  };
  for (std::uint64_t i = 0; i < header.e_shnum; ++i) {
    const auto table = section(i);
    if (table.sh_type != SHT_SYMTAB) continue;
    const auto names = section(table.sh_link);
    for (std::uint64_t at = 0; at < table.sh_size; at += sizeof(ElfW(Sym))) {
      const auto symbol = entry_at<ElfW(Sym)>(file, table.sh_offset + at);
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_value != 0)
        functions.emplace(symbol.st_value, file.data() + names.sh_offset + symbol.st_name);
    }
  }
  return functions;
}

// How far from its addresses in the file the program lies in memory.
std::uint64_t place_of_program() {
  std::uint64_t place = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* of_first, std::size_t, void* found) {
        *static_cast<std::uint64_t*>(found) = of_first->dlpi_addr;
        return 1;
      },
      &place);
  return place;
}

std::string demangled(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status),
                                                    &std::free);
  return name ? name.get() : symbol;
}

}  // namespace

std::vector<std::string> names_of_kernels_that_ran() {
  const std::map<std::uint64_t, std::string> functions = functions_of_program();
  const std::uint64_t place = place_of_program();
  std::vector<std::string> names;
  for (const void* kernel : kernels_that_ran()) {
    const auto found = functions.find(reinterpret_cast<std::uint64_t>(kernel) - place);
    if (found != functions.end()) names.push_back(demangled(found->second));
  }
  return names;
}

}  // namespace scaletrain::cuda
