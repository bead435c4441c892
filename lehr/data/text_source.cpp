#include "lehr/data/text_source.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <set>

#include "lehr/base/error.h"
#include "lehr/base/open_file.h"
#include "lehr/data/data_folder.h"
#include "lehr/data/rows.h"

namespace lehr::data {
namespace {

/// Returns the extension that determines the kind of content, below .gz or .zst.
std::string inner_extension(const std::filesystem::path& path) {
  const auto outer = path.extension();
  return outer == ".gz" || outer == ".zst" ? path.stem().extension().string() : outer.string();
}

bool is_jsonl(const std::filesystem::path& path) {
  const std::string extension = inner_extension(path);
  return extension == ".jsonl" || extension == ".ndjson" || extension == ".json";
}

/// Returns whether a file of a folder is read.
bool fits(const std::filesystem::path& path, TextKind kind) {
  const std::string extension = inner_extension(path);
  const bool text = extension == ".txt" || extension == ".text";
  const bool rows = (is_jsonl(path) || is_table(path)) && !is_description(path);
  return (text && kind != TextKind::rows) || (rows && kind != TextKind::text);
}

/// Refuses a file whose name says that it holds a table of another kind or an archive. Any other file is read as `kind`
/// says; by_name: as plain text.
void require_readable(const std::filesystem::path& path, TextKind kind) {
  static const std::set<std::string> kTables{".csv", ".tsv", ".feather", ".xlsx"};
  static const std::set<std::string> kArchives{".bz2", ".xz", ".lz4", ".7z", ".zip", ".tar", ".tgz"};
  const std::string outer = path.extension().string(), inner = inner_extension(path);
  require(
      inner == outer || (inner != ".parquet" && inner != ".arrow"),
      "{}: tables are not read from compressed files; unpack it",
      path.string());
  for (const std::string& extension : {outer, inner}) {
    require(
        !kTables.contains(extension),
        "{}: {} files are tables, which are not read; write a Parquet file or JSON lines{} (datasets: "
        "Dataset.to_parquet, Dataset.to_json){}",
        path.string(),
        extension,
        kind == TextKind::rows ? "" : " with a key \"text\"",
        kind == TextKind::rows ? "" : ", or set kind = \"text\" to read the file as plain text");
    require(
        !kArchives.contains(extension),
        "{}: {} files are not read; unpack the file, or compress it with gzip or zstd",
        path.string(),
        extension);
  }
}

/// The files of a folder and its subfolders. Links must stay within it, and each folder is read once, because links
/// between folders could otherwise make an infinite tree.
class FolderWalk {
 public:
  FolderWalk(const std::filesystem::path& root, TextKind kind) : root_(root), kind_(kind) {}

  void collect(const std::filesystem::path& below, std::vector<std::filesystem::path>& files) {
    const std::filesystem::path folder = below.empty() ? root_ : root_ / below;
    if (!seen_.insert(std::filesystem::canonical(folder)).second) {
      return;
    }
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::filesystem::path name = below / entry.path().filename();
      if (entry.path().filename().string().starts_with('.')) {
        continue;
      }
      const bool is_folder = entry.is_directory();
      if (!is_folder && (!fits(entry.path(), kind_) || saved_.leave_out(root_, name))) {
        continue;
      }
      if (entry.is_symlink()) {
        path_beneath(root_, name);
      }
      if (is_folder) {
        collect(name, files);
      } else {
        files.push_back(entry.path());
      }
    }
  }

 private:
  const std::filesystem::path& root_;
  TextKind kind_;
  std::set<std::filesystem::path> seen_;
  SavedTables saved_;
};

/// Returns the names of files of a kind, for messages.
std::string endings_of(TextKind kind) {
  const char* endings = kind == TextKind::rows   ? ".jsonl, .ndjson, .json"
                        : kind == TextKind::text ? ".txt, .text"
                                                 : ".txt, .text, .jsonl, .ndjson, .json";
  return fmt::format(
      "that ends in {} (optionally followed by .gz or .zst){}",
      endings,
      kind == TextKind::text ? "" : ", .parquet or .arrow");
}

std::vector<std::filesystem::path> files_of_folder(const std::filesystem::path& folder, TextKind kind) {
  std::vector<std::filesystem::path> files;
  try {
    FolderWalk(folder, kind).collect({}, files);
  } catch (const std::filesystem::filesystem_error& failure) {
    fail("{}: the folder cannot be read: {}", folder.string(), failure.code().message());
  }
  require(!files.empty(), "{}: the folder has no file {}", folder.string(), endings_of(kind));
  std::sort(files.begin(), files.end());
  require_one_split(folder, files);
  return files;
}

/// Returns the paths that a pattern matches; none if it is the path of a file, or no pattern.
std::vector<std::filesystem::path> matches_of(const std::filesystem::path& pattern) {
  std::error_code unreadable;
  if (pattern.string().find_first_of("*?[") == std::string::npos || std::filesystem::exists(pattern, unreadable)) {
    return {};
  }
  glob_t found{};
  std::vector<std::filesystem::path> matches;
  if (::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
    matches.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  std::sort(matches.begin(), matches.end());
  return matches;
}

/// Returns the files of what is at `path`, which is not a pattern.
std::vector<std::filesystem::path> files_at(const std::filesystem::path& path, TextKind kind) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  require(!error && std::filesystem::exists(status), "{}: no such file or folder", path.string());
  if (std::filesystem::is_directory(status)) {
    return files_of_folder(path, kind);
  }
  require(std::filesystem::is_regular_file(status), "{}: is neither a file nor a folder", path.string());
  if (kind != TextKind::text) {
    require_readable(path, kind);
  }
  return {path};
}

}  // namespace

bool has_rows(const std::filesystem::path& path, TextKind kind) {
  return kind == TextKind::rows || (kind == TextKind::by_name && (is_jsonl(path) || is_table(path)));
}

bool is_there(const std::filesystem::path& path) {
  std::error_code unreadable;
  return std::filesystem::exists(path, unreadable) || !matches_of(path).empty();
}

std::vector<std::filesystem::path> list_files(const TextSource& source) {
  const auto matches = matches_of(source.path);
  if (matches.empty()) {
    return files_at(source.path, source.kind);
  }
  // Several matches are filtered like the files of a folder, not all of which are data. A single match is read whatever
  // its name, and so are several if the pattern names their extension and `kind` says what they hold.
  std::vector<std::filesystem::path> files;
  SavedTables saved;
  const std::string extension = source.path.extension().string();
  const bool names_extension = !extension.empty() && extension.find_first_of("*?[") == std::string::npos;
  const bool any_name = matches.size() == 1 || (names_extension && source.kind != TextKind::by_name);
  for (const auto& match : matches) {
    std::error_code unreadable;
    const bool is_file = std::filesystem::is_regular_file(match, unreadable);
    const auto folder = match.has_parent_path() ? match.parent_path() : std::filesystem::path(".");
    const bool is_data = any_name ? !is_description(match) : fits(match, source.kind);
    if (!is_file || (is_data && !saved.leave_out(folder, match.filename()))) {
      const auto found = files_at(match, source.kind);
      files.insert(files.end(), found.begin(), found.end());
    }
  }
  if (files.empty() && source.kind == TextKind::by_name) {
    for (const auto& match : matches) {
      require_readable(match, source.kind);
    }
  }
  require(
      !files.empty(),
      "{}: matches descriptions and caches of data, or no file {}",
      source.path.string(),
      endings_of(source.kind));
  return files;
}

}  // namespace lehr::data
