// A part of the check: the software on the nodes must be the same.
#include <algorithm>
#include <map>
#include <set>

#include "collective/examination.hpp"

namespace miniray {
namespace {

std::string text_of(const Value& value) { return value.is_null() ? "none" : value.string(); }

class SoftwareCheck {
 public:
  explicit SoftwareCheck(Examination& examination) : exam_(examination) {}

  void run() { compare_all(); }

 private:
  // A version, or null, of each node that has told of it.
  [[nodiscard]] std::map<std::size_t, Value> versions_of(const char* what) const {
    std::map<std::size_t, Value> versions;
    for (std::size_t i = 0; i < exam_.languages.size(); ++i)
      if (const Value* version = exam_.languages[i].find(what)) versions[i] = *version;
    return versions;
  }

  // Of those that some node has; the local part of a version ("+cpu") is no part of what pip is told.
  [[nodiscard]] std::string newest_torch() const {
    std::string newest;
    for (const auto& [node, version] : versions_of("torch"))
      if (!version.is_null()) newest = std::max(newest, version.string().substr(0, version.string().find('+')));
    return newest;
  }

  static std::string up_to_minor(const std::string& version) {
    const std::size_t first = version.find('.');
    return version.substr(0, version.find('.', first == std::string::npos ? 0 : first + 1));
  }

  // "3.11.2 on node1, node3; 3.12.1 on node2".
  [[nodiscard]] std::string who_has_which(const std::map<std::size_t, Value>& versions) const {
    std::map<std::string, std::string> having;
    for (const auto& [node, version] : versions) {
      std::string& names = having[text_of(version)];
      names += (names.empty() ? "" : ", ") + exam_.name(node);
    }
    std::string text;
    for (const auto& [version, names] : having) text += (text.empty() ? "" : "; ") + version + " on " + names;
    return text;
  }

  void compare_all() {
    compare("python", "Python", true,
            "Use the same on all: NodeConfig(python_bin=...) or `miniray doctor --python ...` says which");
    compare("torch", "torch", false,
            "Install the same on all nodes, e.g. `python -m pip install torch==" + newest_torch() + "`");
    compare("nccl", "NCCL", false, "Install the same build of torch on all nodes; NCCL comes with it");
    compare("cuda", "torch's CUDA", false, "Install the same build of torch on all nodes");
    for (const auto& [node, error] : versions_of("torch_error"))
      if (!error.is_null())
        exam_.problem(
            exam_.name(node), "version", "torch is there, and cannot be imported: " + error.string(),
            "See `" + exam_.languages[node]["executable"].string() + " -c 'import torch'` on " + exam_.name(node));
  }

  void compare(const char* key, const char* called, bool patch_may_differ, const std::string& cure) {
    const std::map<std::size_t, Value> versions = versions_of(key);
    std::set<std::string> all, minors;
    for (const auto& [node, version] : versions) {
      all.insert(text_of(version));
      minors.insert(up_to_minor(text_of(version)));
    }
    if (all.size() < 2) return;
    if (std::string_view(key) == "torch" && all.contains("none")) {
      for (const auto& [node, version] : versions)
        if (version.is_null())
          exam_.problem(
              exam_.name(node), "version", "torch is missing, and the other nodes have it: " + who_has_which(versions),
              "On " + exam_.name(node) + ": " + exam_.languages[node]["executable"].string() + " -m pip install torch");
      all.erase("none");
      if (all.size() < 2) return;
    }
    const std::string what = std::string("versions of ") + called + " differ: " + who_has_which(versions);
    if (patch_may_differ && minors.size() == 1)
      exam_.warning("all", "version", what, cure);
    else
      exam_.problem("all", "version", what, cure);
  }

  Examination& exam_;
};

}  // namespace

void check_software(Examination& examination) { SoftwareCheck(examination).run(); }

}  // namespace miniray
