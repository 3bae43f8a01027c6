#include "data/parquet/parquet_file.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string_view>

#include "base/error.h"
#include "base/file.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

fs::path module_path() {
  return fs::read_symlink("/proc/self/exe").parent_path() / parquet_module_name;
}

const ParquetModuleEntry& load_parquet_module() {
  const fs::path file = module_path();
  void* const module = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr)
    throw UserError(
        fmt::format("Parquet: {} cannot be loaded ({}): install Apache Arrow's libraries, or build the "
                    "program anew with -DSCALETRAIN_PARQUET=ON",
                    file.string(), ::dlerror()));
  const auto function =
      reinterpret_cast<decltype(&scaletrain_parquet_module)>(::dlsym(module, "scaletrain_parquet_module"));
  if (function == nullptr || std::string_view(function()->interface) != SCALETRAIN_PARQUET_INTERFACE)
    throw UserError(
        fmt::format("Parquet: {} belongs to another version of this program: build and install both "
                    "together",
                    file.string()));
  return *function();
}

}  // namespace

bool has_parquet_module() {
  return is_plain_file(module_path());
}

std::unique_ptr<ParquetColumn> open_parquet(const fs::path& file, const std::string& column) {
  static const ParquetModuleEntry& entry = load_parquet_module();
  return entry.open(file, column);
}

}  // namespace scaletrain
