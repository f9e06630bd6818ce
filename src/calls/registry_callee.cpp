#include "calls/registry_callee.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <utility>

#include "base/error_text.hpp"
#include "base/throw_stack.hpp"
#include "calls/memory_limit.hpp"
#include "cluster/program.hpp"
#include "miniray/calls.hpp"
#include "miniray/error.hpp"
#include "miniray/typed_function.hpp"

namespace miniray {
namespace {

/// Thrown when a call needs more memory than its memory_bytes.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

CallFailure failure_now(std::string stack) {
  try {
    throw;
  } catch (const OutOfMemory& error) {
    return {out_of_memory_type, error.what(), ""};
  } catch (const std::exception& error) {
    return {type_name(error), error.what(), std::move(stack)};
  } catch (...) {
    return {"an exception", "it does not derive from std::exception", std::move(stack)};
  }
}

template <class Names>
std::string joined(const Names& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text.empty() ? "none" : text;
}

bool is_pickle(const Value& value) { return value.kind() == Value::Kind::map && value.find("pickle") != nullptr; }

List& arguments_in(CallOrder& order, const std::string& name) {
  if (is_pickle(order.arguments))
    throw UsageError(name +
                     " is C++, and an argument is a pickle, which only Python can read: pass plain data (numbers, " +
                     "strings, bytes, lists, dicts, arrays)");
  if (order.arguments.kind() != Value::Kind::list)
    throw UsageError("the arguments of a call are a list, not " + order.arguments.text());
  return order.arguments.list();
}

void require_no_keywords(const CallOrder& order, const std::string& name) {
  if (order.keywords.is_null()) return;
  if (order.keywords.kind() != Value::Kind::map)
    throw UsageError("the keyword arguments of a call are a map, not " + order.keywords.text());
  if (!order.keywords.map().empty()) throw UsageError(name + " takes no keyword arguments");
}

const std::string& class_name_in(const Value& function) {
  if (function.kind() == Value::Kind::string) return function.string();
  const Value* const name = function.kind() == Value::Kind::map ? function.find("name") : nullptr;
  if (name == nullptr || name->kind() != Value::Kind::string)
    throw UsageError(
        "a C++ worker cannot take a class by value: register it there with registry().add_class, and "
        "say its name");
  return name->string();
}

std::string unsendable_result(const Error& error) { return "the result cannot be sent: " + std::string(error.what()); }

// Results that cannot be sent become failures of their own, so that the others arrive.
Value with_unsendable_as_failures(Value body) {
  List& values = body.list()[0].list();
  List& failures = body.list()[1].list();
  for (std::size_t i = 0; i < values.size(); ++i) {
    try {
      (void)encode(values[i]);
    } catch (const Unsendable& error) {
      values[i] = Value();
      failures.push_back(Value::list({i, error_body({"miniray::Unsendable", unsendable_result(error), ""})}));
    }
  }
  std::ranges::sort(failures, {}, [](const Value& failed) { return failed.at(0).integer(); });
  return body;
}

void send_result(const OwedReply& owed, ReplyVerb verb, Value body) {
  try {
    try {
      Message reply = reply_message(verb, body, owed.codec());
      return owed.send(reply);
    } catch (const Unsendable&) {
      if (verb != ReplyVerb::values) throw;
    }
    const Value rest = with_unsendable_as_failures(std::move(body));
    Message reply = reply_message(verb, rest, owed.codec());
    owed.send(reply);
  } catch (const Unsendable& error) {
    owed.send_error({"miniray::Unsendable", unsendable_result(error), ""});
  }
}

}  // namespace

void RegistryCallee::carry_out(const Message& call, const OwedReply& reply) {
  ReplyVerb verb = ReplyVerb::value;
  Value result;
  try {
    CallOrder order = parse_call(call);
    if (order.verb == CallVerb::map) verb = ReplyVerb::values;
    result = result_of(order);
  } catch (const ThrowProbe&) {  // never: it notes where an exception was thrown
  } catch (...) {
    return reply.send_error(failure_now(last_throw_stack()));
  }
  if (verb == ReplyVerb::value && !reply.wants_value()) result = {};
  if (reply.is_wanted()) send_result(reply, verb, std::move(result));
}

Value RegistryCallee::result_of(CallOrder& order) {
  switch (order.verb) {
    case CallVerb::call: {
      const std::string& name = name_in(order);
      List& arguments = arguments_in(order, name);
      require_no_keywords(order, name);
      if (!order.memory_bytes.is_null()) return call_within(order.memory_bytes, name, std::move(arguments));
      return this->call(name, std::move(arguments));
    }
    case CallVerb::map:
      return map(order);
    case CallVerb::create:
      create(order);
      break;
    case CallVerb::forget:
      forget(name_in(order));
      break;
    case CallVerb::environment:
      for (const auto& [variable, value] : order.name.map())
        setenv(variable.string().c_str(), value.string().c_str(), 1);
      break;
    case CallVerb::define:
      define(order);
      break;
    case CallVerb::plain:  // a C++ worker never sends pickles
      break;
  }
  return {};
}

// Pools call functions by number. If the name is unknown, the call of the function reports that, not its definition.
void RegistryCallee::define(const CallOrder& order) {
  const Value* const name = order.function.kind() == Value::Kind::map ? order.function.find("name") : nullptr;
  if (order.name.kind() == Value::Kind::integer && name != nullptr && name->kind() == Value::Kind::string) {
    numbers_.insert_or_assign(order.name.integer(), name->string());
    return;
  }
  refuse_function();
}

void RegistryCallee::refuse_function() const {
  throw UsageError(
      "a C++ worker cannot take a function from its caller. Call one that its program registered, by its name: " +
      joined(functions_.names()));
}

const std::string& RegistryCallee::name_in(const CallOrder& order) const {
  if (order.name.kind() == Value::Kind::string) return order.name.string();
  const auto known = numbers_.find(order.name.integer());
  if (known == numbers_.end()) refuse_function();
  return known->second;
}

Value RegistryCallee::call(std::string_view name, List arguments) const {
  if (functions_.has_function(name)) return functions_.function(name)(name, std::move(arguments));
  if (detail::is_typed_name(name)) return detail::typed_function(name)(detail::spoken_name(name), std::move(arguments));
  const std::size_t dot = name.rfind('.');
  const std::string_view object_name = name.substr(0, dot);
  const auto object = objects_.find(object_name);
  if (object == objects_.end()) no_such_function(name, dot == std::string_view::npos ? "" : object_name);
  const auto& methods = object->second.of->methods;
  const auto method = dot == std::string_view::npos ? methods.end() : methods.find(name.substr(dot + 1));
  if (method == methods.end()) {
    std::string known;
    for (const auto& entry : methods) known += (known.empty() ? "" : ", ") + entry.first;
    throw UsageError("the object " + std::string(object_name) + " has no method of that name: " + Value(name).text() +
                     "; it has " + (known.empty() ? "none" : known));
  }
  return method->second(object->second.object.get(), name, std::move(arguments));
}

Value RegistryCallee::call_within(const Value& memory_bytes, std::string_view name, List arguments) const {
  if (memory_bytes.kind() != Value::Kind::integer || memory_bytes.integer() < 1)
    throw UsageError("memory_bytes is an integer above 0, not " + memory_bytes.text());
  const auto bytes = static_cast<std::uint64_t>(memory_bytes.integer());
  const MemoryLimit limit(bytes);
  try {
    return call(name, std::move(arguments));
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(MemoryLimit::explain(bytes));
  }
}

Value RegistryCallee::map(CallOrder& order) const {
  const std::string& name = name_in(order);
  List& items = arguments_in(order, name);
  List values(items.size());
  ItemFailures failures;
  for (std::size_t i = 0; i < items.size(); ++i) {
    try {
      List arguments = order.star ? std::move(items[i]).list() : List();
      if (!order.star) arguments.push_back(std::move(items[i]));
      values[i] = call(name, std::move(arguments));
    } catch (const ThrowProbe&) {
    } catch (...) {  // making a stack readable takes long, and the caller shows the first failure
      failures.emplace_back(i, failure_now(failures.empty() ? last_throw_stack() : ""));
    }
  }
  return values_body(std::move(values), failures);
}

void RegistryCallee::create(CallOrder& order) {
  const std::string& name = name_in(order);
  const std::string& class_name = class_name_in(order.function);
  const CallableClass& of = functions_.object_class(class_name);
  List& arguments = arguments_in(order, class_name);
  require_no_keywords(order, class_name);
  objects_.insert_or_assign(name, Object{of.construct(class_name, std::move(arguments)), &of});
}

void RegistryCallee::forget(const std::string& name) {
  if (objects_.erase(name) == 0)
    throw UsageError("there is no object " + Value(name).text() + " here; there are: " + object_names());
}

std::string RegistryCallee::object_names() const {
  std::vector<std::string> names;
  for (const auto& entry : objects_) names.push_back(entry.first);
  return joined(names);
}

void RegistryCallee::no_such_function(std::string_view name, std::string_view object) const {
  const std::string cure = runs_inside_init()
                               ? ". On a node, main() goes no further than miniray::init: call registry().add before it"
                               : ". A worker has what was registered when it started: call registry().add before that";
  try {
    if (object.empty()) (void)functions_.function(name);
  } catch (const UsageError& error) {
    throw UsageError(error.what() + cure);
  }
  throw UsageError("there is no function " + Value(name).text() + " here, and no object " + Value(object).text() +
                   "; registered: " + joined(functions_.names()) + "; objects: " + object_names() + cure);
}

void answer_calls(Handle& handle, Registry& functions) {
  auto callee = std::make_shared<RegistryCallee>(functions);
  handle.set_call_server(
      [callee](Handle& called, const Message& call) { answer_call(called.channel(), call, *callee); });
}

void serve_calls(Handle& handle) {
  answer_calls(handle);
  const Value message = handle.recv();  // throws when the coordinator has closed
  throw UsageError("serve_calls only answers calls, and was sent a message: " + message.text() +
                   ". Write a work function that calls answer_calls(handle) and takes messages with handle.recv()");
}

}  // namespace miniray
