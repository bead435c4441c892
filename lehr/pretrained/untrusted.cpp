#include "lehr/pretrained/untrusted.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "lehr/base/error.h"
#include "lehr/base/open_file.h"
#include "lehr/pretrained/untrusted_text.h"
#include "lehr/state/pickle.h"
#include "lehr/state/weights.h"

namespace lehr::pretrained {

namespace {
namespace fs = std::filesystem;

constexpr int64_t kMostFiles = 100'000;
constexpr int kMostFolders = 32;  // nested

std::string beginning_of(const fs::path& path) {
  const OpenFile file(path);
  std::array<char, 512> bytes{};
  const ssize_t got = ::pread(file.descriptor(), bytes.data(), bytes.size(), 0);
  return {bytes.data(), static_cast<size_t>(std::max<ssize_t>(got, 0))};
}

class Look {
 public:
  Look(const fs::path& folder, const descriptor::ModelFamilies& families) : folder_(folder), families_(families) {}

  UntrustedReport take() {
    walk({}, 0);
    check_as_model();
    std::stable_sort(report_.findings.begin(), report_.findings.end(), [](const Finding& a, const Finding& b) {
      return a.file < b.file;
    });
    return std::move(report_);
  }

 private:
  void add(bool is_danger, const fs::path& file, std::string what) {
    report_.findings.push_back({.danger = is_danger, .file = file.string(), .what = std::move(what)});
  }
  void danger(const fs::path& file, std::string what) { add(true, file, std::move(what)); }
  void note(const fs::path& file, std::string what) { add(false, file, std::move(what)); }

  // Runs `read`; what it refuses is a finding.
  template <class Read>
  void try_to(const fs::path& file, bool is_danger, const Read& read) {
    try {
      read();
    } catch (const Error& error) {
      add(is_danger, file, error.what());
    }
  }

  void walk(const fs::path& below, int depth) {
    if (depth > kMostFolders) {
      danger(below, fmt::format("more than {} nested folders; nothing below is examined", kMostFolders));
      return;
    }
    std::error_code error;
    fs::directory_iterator entries(folder_ / below, error);
    if (error) {
      danger(below, "cannot be read: " + error.message());
      return;
    }
    for (const auto& entry : entries) {
      look_at(below / entry.path().filename(), entry, depth);
      if (report_.num_files > kMostFiles) {
        danger(below, fmt::format("more than {} files; the others are not examined", kMostFiles));
        return;
      }
    }
  }

  void look_at(const fs::path& name, const fs::directory_entry& entry, int depth) {
    std::error_code error;
    const bool is_link = entry.is_symlink(error);
    if (is_link && leads_out(folder_, name)) {
      danger(
          name,
          fmt::format(
              "a link out of the folder, to {}; Lehr does not follow it",
              fs::read_symlink(folder_ / name, error).string()));
      return;
    }
    const fs::file_status status = entry.status(error);  // of a link's target, which is in the folder
    if (fs::is_directory(status)) {
      if (name.filename() == ".git" || name.filename() == ".cache") {
        note(name, "files of git or of the hub, not examined; no model needs them: remove the folder");
      } else if (!is_link) {
        walk(name, depth + 1);
      }
      return;
    }
    if (!fs::is_regular_file(status)) {
      danger(
          name,
          is_link ? "a broken link"
                  : "neither a file nor a folder, but a pipe, socket or device; Lehr does not open it");
      return;
    }
    ++report_.num_files;
    report_.num_bytes += static_cast<int64_t>(entry.file_size(error));
    try_to(name, true, [&] { look_into(name); });
  }

  void look_into(const fs::path& name) {
    const fs::path path = folder_ / name;
    const std::string begin = beginning_of(path);
    const std::string extension = name.extension().string();
    if (state::is_pickle(name, begin)) {
      danger(name, "a pickle, which runs any code when torch.load or pickle reads it; Lehr does not read it");
    } else if (extension == ".py" || extension == ".pyc" || extension == ".ipynb") {
      danger(name, "Python, which other programs run with trust_remote_code; Lehr runs none");
    } else if (
        begin.starts_with("\x7F"
                          "ELF") ||
        begin.starts_with("MZ") || begin.starts_with("#!")) {
      danger(name, "a program; Lehr does not run it");
    } else if (extension == ".safetensors") {
      const state::SafetensorsFile file(path);
      report_.num_tensors += static_cast<int64_t>(file.tensors().size());
    } else if (extension == ".json") {
      look_into_json(path, name);
    } else if (extension == ".jinja") {
      look_into_template(path, name);
    } else if (
        begin.starts_with("PK\x03\x04") || begin.starts_with("\x1F\x8B") || begin.starts_with("\x28\xB5\x2F\xFD")) {
      note(name, "an archive or a compressed file; its content was not examined");
    }
  }

  void look_into_json(const fs::path& path, const fs::path& name) {
    for (const std::string& what : code_in_json(path)) {
      danger(name, what);
    }
    if (name.filename().string().ends_with(".safetensors.index.json")) {
      try_to(name, true, [&] { state::WeightReader reader(path); });
    }
  }

  void look_into_template(const fs::path& path, const fs::path& name) {
    for (const std::string& what : risks_of_template(path)) {
      danger(name, what);
    }
  }

  // The files as Lehr would use them: config, tokenizer, template, adapters.
  void check_as_model() {
    for (const ModelProblem& problem : problems_as_model(folder_, families_)) {
      add(problem.danger, problem.file, problem.what);
    }
  }

  const fs::path& folder_;
  const descriptor::ModelFamilies& families_;
  UntrustedReport report_;
};
}  // namespace

UntrustedReport look_at_untrusted(const fs::path& folder, const descriptor::ModelFamilies& families) {
  std::error_code error;
  require(fs::is_directory(folder, error), "{}: expected a folder", folder.string());
  return Look(folder, families).take();
}

}  // namespace lehr::pretrained
