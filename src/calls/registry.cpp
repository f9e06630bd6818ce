#include "miniray/registry.hpp"

#include "miniray/error.hpp"

namespace miniray {
namespace {

template <class Entries>
std::string list_names(const Entries& entries) {
  std::string names;
  for (const auto& entry : entries) names += (names.empty() ? "" : ", ") + entry.first;
  return names.empty() ? "none" : names;
}

}  // namespace

Registry& registry() {
  static Registry of_the_program;
  return of_the_program;
}

const CallableFunction& Registry::function(std::string_view name) const {
  if (const auto found = functions_.find(name); found != functions_.end()) return found->second;
  throw UsageError("there is no function " + Value(name).text() +
                   " here; those that are registered: " + list_names(functions_));
}

const CallableClass& Registry::object_class(std::string_view name) const {
  if (const auto found = classes_.find(name); found != classes_.end()) return found->second;
  throw UsageError("there is no class " + Value(name).text() +
                   " here; those that are registered: " + list_names(classes_));
}

std::vector<std::string> Registry::names() const {
  std::vector<std::string> names;
  for (const auto& entry : functions_) names.push_back(entry.first);
  for (const auto& entry : classes_) names.push_back(entry.first);
  return names;
}

void Registry::note_address(const std::string& name, FunctionAddress address) {
  std::erase_if(addresses_, [&](const auto& entry) { return entry.second == name; });
  if (address != nullptr) addresses_.emplace_back(address, name);
}

const std::string& Registry::name_of(FunctionAddress address) const {
  for (const auto& [known, name] : addresses_)
    if (known == address) return name;
  throw UsageError(
      "this function is not registered, so workers do not know it by a name. Add it before the workers start, with "
      "miniray::registry().add(\"name\", function), or pass miniray::fn<function>, which needs no name; registered: " +
      list_names(functions_));
}

void Registry::require_name(std::string_view name) {
  if (name.empty()) throw UsageError("a function or class that is called from afar needs a name");
}

namespace detail {

void wrong_count(std::string_view name, std::size_t wanted, std::size_t given) {
  const std::string count = wanted == 0 ? "no" : std::to_string(wanted);
  throw UsageError(std::string(name) + " takes " + count + (wanted == 1 ? " argument" : " arguments") + ", and " +
                   std::to_string(given) + (given == 1 ? " was given" : " were given"));
}

void wrong_argument(std::string_view name, const std::string& signature, std::size_t position,
                    const std::exception& why) {
  const std::string takes = std::string(name) + " takes " + signature + ", and ";
  const std::string which = "argument " + std::to_string(position + 1);
  if (const auto* mismatch = dynamic_cast<const Mismatch*>(&why))
    throw UsageError(takes + (mismatch->place().empty() ? "" : mismatch->place() + " of ") + which + " " +
                     mismatch->found());
  throw UsageError(takes + which + " cannot be converted: " + why.what());
}

}  // namespace detail
}  // namespace miniray
