"""Writes the Parquet files that tests/unit/data/parquet_test.cpp reads, by pyarrow (26.0.1 wrote those that are here):

    python3 tests/golden/parquet/make_parquet.py

The test knows how document i reads, so that there is nothing else to compare with.
"""

import pathlib

import pyarrow
import pyarrow.parquet

HERE = pathlib.Path(__file__).parent
ROWS = 100
PER_GROUP = 17  # the last group is shorter


def document(i):
    return f"row {i}: " + "läuft " * (i % 5) + "\n" * (i % 3)


def write(name, columns, **options):
    options = {"row_group_size": PER_GROUP, "write_page_checksum": True, "compression": "zstd"} | options
    pyarrow.parquet.write_table(pyarrow.table(columns), HERE / f"{name}.parquet", **options)


def main():
    texts = [document(i) for i in range(ROWS)]
    others = {
        "id": pyarrow.array(range(ROWS), pyarrow.int64()),
        "tags": pyarrow.array([["a"] * (i % 3) for i in range(ROWS)], pyarrow.list_(pyarrow.string())),
        "meta": pyarrow.array([{"text": "not this one"}] * ROWS),
    }
    write("plain", {**others, "text": pyarrow.array(texts)})
    write(
        "kinds",
        {
            "large": pyarrow.array(texts, pyarrow.large_string()),
            "raw": pyarrow.array([t.encode() for t in texts], pyarrow.binary()),
            "few": pyarrow.array([document(i % 3) for i in range(ROWS)]).dictionary_encode(),
        },
        compression="snappy",
        data_page_size=64,
        data_page_version="2.0",
    )
    required = pyarrow.schema([pyarrow.field("text", pyarrow.string(), nullable=False)])
    table = pyarrow.table({"text": texts}, schema=required)
    pyarrow.parquet.write_table(table, HERE / "required.parquet", row_group_size=PER_GROUP, compression="gzip")
    # Nulls, empty texts, and a NUL within one.
    odd = [None if i % 7 == 0 else "" if i % 7 == 1 else "a\0b" if i == 2 else document(i) for i in range(ROWS)]
    write("nulls", {"text": pyarrow.array(odd, pyarrow.string())}, data_page_size=64, compression="none")
    # Several megabytes of text in little: a dictionary, and numbers that come again.
    many = pyarrow.array([document(i % 50) + "x" * 60 for i in range(50_000)])
    write("many", {"text": many}, row_group_size=20_000, write_statistics=False)
    write("none", {"text": pyarrow.array([], pyarrow.string())})


main()
