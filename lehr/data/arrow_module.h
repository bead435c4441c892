// The functions of liblehr_arrow.so, which the program looks up by name: the rows of a table as JSON lines.
#pragma once

#include <cstdint>

/// An open table. At any time, one thread may use it.
struct ArrowTable;

/// A column to read. A table without a column that is required is refused.
struct ArrowColumn {
  const char* name;
  bool required;
};

extern "C" {

/// Opens the Parquet or Arrow file of `descriptor`, which the module closes in any case. Returns null on failure, and
/// sets `problem` to the reason, valid until the thread's next call.
using ArrowOpen =
    ArrowTable*(int descriptor, bool parquet, const ArrowColumn* columns, int64_t num_columns, const char** problem);
ArrowOpen lehr_arrow_open;

/// Sets `lines` and `size` to the next rows, one line of JSON each, valid until the table's next call; `size` is 0 at
/// the end. Returns false on failure, and sets `problem` as ArrowOpen.
using ArrowRead = bool(ArrowTable* table, const char** lines, int64_t* size, const char** problem);
ArrowRead lehr_arrow_read;

/// Closes a table, which may be null.
using ArrowClose = void(ArrowTable* table);
ArrowClose lehr_arrow_close;

}  // extern "C"
