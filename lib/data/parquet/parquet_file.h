// Internal to lib/data: Parquet files, where the program was built with the module that reads them.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "data/parquet/parquet_module.h"

namespace scaletrain {

inline constexpr const char* parquet_module_name = "libscaletrain-parquet.so";

// The module lies beside the executable of this process.
bool has_parquet_module();

// Loads the module at the first call. UserError: it is not there, cannot be loaded, or is another program's. InputError
// as of ParquetModuleEntry::open.
std::unique_ptr<ParquetColumn> open_parquet(const std::filesystem::path& file, const std::string& column);

}  // namespace scaletrain
