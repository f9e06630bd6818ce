// Answers the calls that come to a worker: finds the function, calls it, and replies with what came of it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "calls/call_format.hpp"
#include "miniray/handle.hpp"
#include "miniray/registry.hpp"

namespace miniray {

class CallServer {
 public:
  explicit CallServer(const Registry& functions) : functions_(functions) {}

  /// Whatever the call does, one reply goes out, unless its number is 0. ProtocolError if it has no number.
  void answer(Channel& channel, const Message& call);

 private:
  struct Object {
    std::shared_ptr<void> object;
    const CallableClass* of;
  };

  Value carry_out(const CallOrder& order, std::int64_t begun_ns);
  Value call(std::string_view name, const List& arguments) const;
  Value map(const CallOrder& order, std::int64_t begun_ns) const;
  void define(const CallOrder& order);
  [[nodiscard]] const std::string& name_in(const CallOrder& order) const;
  [[noreturn]] void refuse_function() const;
  void create(const CallOrder& order);
  void forget(const std::string& name);
  [[noreturn]] void no_such_function(std::string_view name, std::string_view object) const;
  [[nodiscard]] std::string object_names() const;

  const Registry& functions_;
  std::map<std::string, Object, std::less<>> objects_;
  std::map<std::int64_t, std::string> numbers_;  // of functions, as a pool calls them
};

}  // namespace miniray
