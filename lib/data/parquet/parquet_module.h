// What the program and its module for Parquet have in common. The module is the one that is linked to Apache Arrow's
// libraries, and is loaded when the first Parquet file is met: nobody else waits for them, or needs them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"

namespace scaletrain {

// A column of text, row by row, in bounded memory: a page of the file at a time, and the column chunk's dictionary.
// InputError, which names the file, for one that is damaged or of which a page is not what its checksum says, where it
// has some.
class ParquetColumn {
 public:
  // False: what follows is not asked for. A null has no text.
  using Use = std::function<bool(std::int64_t row, bool is_null, std::string_view text)>;

  ParquetColumn() = default;
  virtual ~ParquetColumn() = default;
  ParquetColumn(const ParquetColumn&) = delete;
  ParquetColumn& operator=(const ParquetColumn&) = delete;

  virtual std::int64_t num_rows() const = 0;
  // From row `first` on.
  virtual void read(std::int64_t first, const Use& use) = 0;
};

// What the module shows.
struct ParquetModuleEntry {
  const char* interface;  // program and module were built together if they have the same
  // InputError: no Parquet file, or none with a column of text of that name; then the columns that there are stand in
  // it.
  std::unique_ptr<ParquetColumn> (*open)(const std::filesystem::path& file, const std::string& column);
};

}  // namespace scaletrain

extern "C" const scaletrain::ParquetModuleEntry* scaletrain_parquet_module();
