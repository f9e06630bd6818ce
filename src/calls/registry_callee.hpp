// Runs calls of functions that the program has registered, and of methods of objects that a caller has created.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "calls/call_server.hpp"
#include "miniray/registry.hpp"

namespace miniray {

class RegistryCallee : public Callee {
 public:
  explicit RegistryCallee(const Registry& functions) : functions_(functions) {}

  void carry_out(const Message& call, const OwedReply& reply) override;

 private:
  struct Object {
    std::shared_ptr<void> object;
    const CallableClass* of;
  };

  /// Returns the body of the reply, whose verb is value, or values for a map.
  Value result_of(CallOrder& order);
  Value call(std::string_view name, List arguments) const;
  [[nodiscard]] Value call_within(const Value& memory_bytes, std::string_view name, List arguments) const;
  Value map(CallOrder& order) const;
  void define(const CallOrder& order);
  [[nodiscard]] const std::string& name_in(const CallOrder& order) const;
  [[noreturn]] void refuse_function() const;
  void create(CallOrder& order);
  void forget(const std::string& name);
  [[noreturn]] void no_such_function(std::string_view name, std::string_view object) const;
  [[nodiscard]] std::string object_names() const;

  const Registry& functions_;
  std::map<std::string, Object, std::less<>> objects_;
  std::map<std::int64_t, std::string> numbers_;  // the names of functions that a pool calls by number
};

}  // namespace miniray
