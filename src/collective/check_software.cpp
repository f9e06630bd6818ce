// The part of check() that compares the versions of Python, torch, NCCL and CUDA, which must be the same on all nodes.
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
  // Returns the version (null: not installed) by node, of the nodes that reported one.
  [[nodiscard]] std::map<std::size_t, Value> versions_of(const char* what) const {
    std::map<std::size_t, Value> versions;
    for (std::size_t i = 0; i < exam_.languages.size(); ++i)
      if (const Value* version = exam_.languages[i].find(what)) versions[i] = *version;
    return versions;
  }

  // Returns the newest version of torch on any node. The local part of a version ("+cpu") is cut off, because pip does
  // not find it on PyPI.
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

  // Returns "3.11.2 on node1, node3; 3.12.1 on node2".
  [[nodiscard]] std::string versions_text(const std::map<std::size_t, Value>& versions) const {
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
            "Use the same Python on all nodes: set NodeConfig(python_bin=...) or `miniray doctor --python ...`");
    compare("torch", "torch", false,
            "Install the same torch on all nodes, e.g. `python -m pip install torch==" + newest_torch() + "`");
    compare("nccl", "NCCL", false, "Install the same build of torch on all nodes; NCCL is part of it");
    compare("cuda", "torch's CUDA", false, "Install the same build of torch on all nodes");
    for (const auto& [node, error] : versions_of("torch_error"))
      if (!error.is_null())
        exam_.problem(
            exam_.name(node), "version", "torch is installed, but cannot be imported: " + error.string(),
            "Try `" + exam_.languages[node]["executable"].string() + " -c 'import torch'` on " + exam_.name(node));
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
              exam_.name(node), "version", "torch is missing, but other nodes have it: " + versions_text(versions),
              "On " + exam_.name(node) + ": " + exam_.languages[node]["executable"].string() + " -m pip install torch");
      all.erase("none");
      if (all.size() < 2) return;
    }
    const std::string what = std::string("versions of ") + called + " differ: " + versions_text(versions);
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
