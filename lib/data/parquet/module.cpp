// The module for Parquet (parquet_module.h): the only source that knows Apache Arrow's headers.
#include <parquet/api/reader.h>
#include <parquet/exception.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <utility>

#include "data/parquet/parquet_module.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& file, const std::string& problem) {
  throw InputError(file.string() + ": " + problem);
}

[[noreturn]] void refuse_damaged(const fs::path& file, const std::exception& error) {
  std::string problem = error.what();
  while (!problem.empty() && problem.back() == '\n') problem.pop_back();
  refuse(file, "the Parquet file cannot be read (" + problem + "); restore the file");
}

// What the library says of a file that it cannot read.
template <class Work>
auto guarded(const fs::path& file, Work work) {
  try {
    return work();
  } catch (const InputError&) {
    throw;
  } catch (const parquet::ParquetException& error) {
    refuse_damaged(file, error);
  } catch (const std::ios_base::failure& error) {
    refuse_damaged(file, error);
  }
}

std::string quoted(const std::string& name) {
  return '"' + name + '"';
}

// "; there are "id", "body": name ...".
std::string columns_text(const parquet::SchemaDescriptor& schema) {
  constexpr int most = 12;
  const parquet::schema::GroupNode& root = *schema.group_node();
  std::string names;
  for (int i = 0; i < std::min(root.field_count(), most); ++i)
    names += (names.empty() ? "" : ", ") + quoted(root.field(i)->name());
  if (root.field_count() > most) names += " ...";
  return names.empty() ? "; it has no column at all" : "; it has " + names + ": name one of them as the field";
}

bool is_text(const parquet::ColumnDescriptor& column) {
  if (column.physical_type() != parquet::Type::BYTE_ARRAY || column.max_repetition_level() > 0) return false;
  const auto& type = column.logical_type();
  return type == nullptr || type->is_none() || type->is_string() || type->is_JSON() || type->is_enum();
}

// The number of the column among all, which may be nested; InputError: there is none.
int find_column(const fs::path& file, const parquet::SchemaDescriptor& schema, const std::string& name) {
  const parquet::schema::GroupNode& root = *schema.group_node();
  if (root.FieldIndex(name) < 0) refuse(file, "there is no column " + quoted(name) + columns_text(schema));
  for (int i = 0; i < schema.num_columns(); ++i) {
    const parquet::ColumnDescriptor& column = *schema.Column(i);
    if (column.path()->ToDotVector() != std::vector<std::string>{name}) continue;
    if (is_text(column)) return i;
    refuse(file, "the column " + quoted(name) + " holds no text but " + parquet::TypeToString(column.physical_type()) +
                     columns_text(schema));
  }
  refuse(file, "the column " + quoted(name) + " is nested, and text is expected" + columns_text(schema));
}

class OpenParquetColumn final : public ParquetColumn {
 public:
  OpenParquetColumn(const fs::path& file, const std::string& column) : file_(file) {
    guarded(file_, [&] {
      parquet::ReaderProperties properties = parquet::default_reader_properties();
      properties.enable_buffered_stream();  // else a whole column chunk is read at once
      properties.set_buffer_size(kBufferBytes);
      properties.set_page_checksum_verification(true);
      reader_ = parquet::ParquetFileReader::OpenFile(file_.string(), false, properties);
      column_ = find_column(file_, *reader_->metadata()->schema(), column);
    });
  }

  std::int64_t num_rows() const override { return reader_->metadata()->num_rows(); }

  void read(std::int64_t first, const Use& use) override {
    std::int64_t row = 0;
    for (int group = 0; group < reader_->metadata()->num_row_groups(); ++group) {
      const std::int64_t rows = guarded(file_, [&] { return reader_->metadata()->RowGroup(group)->num_rows(); });
      if (row + rows > first && !read_group(group, {row, row + rows}, std::max(first, row), use)) return;
      row += rows;
    }
  }

 private:
  static constexpr std::int64_t kBufferBytes = 1 << 20;
  static constexpr std::size_t kValues = 256;  // at once

  struct Rows {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };

  // Of the group that has these rows, those from `first` on.
  bool read_group(int group, const Rows& all, std::int64_t first, const Use& use) {
    const auto column = guarded(file_, [&] { return reader_->RowGroup(group)->Column(column_); });
    auto& values = static_cast<parquet::ByteArrayReader&>(*column);
    if (first > all.begin) guarded(file_, [&] { values.Skip(first - all.begin); });
    const std::int16_t defined = values.descr()->max_definition_level();
    std::array<parquet::ByteArray, kValues> texts;
    std::array<std::int16_t, kValues> levels{};
    std::int64_t row = first;
    while (guarded(file_, [&] { return values.HasNext(); })) {
      std::int64_t read = 0;
      const std::int64_t rows =
          guarded(file_, [&] { return values.ReadBatch(kValues, levels.data(), nullptr, texts.data(), &read); });
      if (rows == 0 && read == 0) refuse(file_, "the Parquet file ends within a row group; restore the file");
      std::int64_t next = 0;
      for (std::int64_t i = 0; i < rows; ++i, ++row) {
        const bool is_null = defined > 0 && levels[static_cast<std::size_t>(i)] < defined;
        if (!is_null && next == read) refuse(file_, "the Parquet file has fewer values than rows; restore the file");
        const parquet::ByteArray text = is_null ? parquet::ByteArray() : texts[static_cast<std::size_t>(next++)];
        if (!use(row, is_null, {reinterpret_cast<const char*>(text.ptr), text.len})) return false;
      }
    }
    if (row != all.end)
      refuse(file_, "the Parquet file has " + std::to_string(row - all.begin) + " values in a row group of " +
                        std::to_string(all.end - all.begin) + " rows; restore the file");
    return true;
  }

  fs::path file_;
  std::unique_ptr<parquet::ParquetFileReader> reader_;
  int column_ = 0;
};

std::unique_ptr<ParquetColumn> open_column(const fs::path& file, const std::string& column) {
  return std::make_unique<OpenParquetColumn>(file, column);
}

}  // namespace
}  // namespace scaletrain

extern "C" const scaletrain::ParquetModuleEntry* scaletrain_parquet_module() {
  static const scaletrain::ParquetModuleEntry entry{SCALETRAIN_PARQUET_INTERFACE, scaletrain::open_column};
  return &entry;
}
