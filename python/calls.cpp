#include "calls.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>

#include "base/clock.hpp"
#include "calls/call_desk.hpp"
#include "calls/call_server.hpp"
#include "calls/memory_limit.hpp"
#include "miniray/error.hpp"
#include "miniray/handle.hpp"
#include "miniray/worker.hpp"
#include "object_builder.hpp"

namespace miniray::python {

namespace {

// Encodes what a packer has found to be plain. An object that occurs twice arrives as two.
std::unique_ptr<EncodedObject> encode_plainly(nb::handle object) {
  std::unique_ptr<EncodedObject> encoded = EncodedObject::exactly(object, Sharing::ignored);
  if (!encoded) throw nb::type_error("an object has changed while it was sent");
  return encoded;
}

}  // namespace

std::unique_ptr<EncodedObject> encode_parts(nb::list parts, PickledParts pickled, const Packer& pack,
                                            nb::object* needs) {
  const auto [begin, end] = pickled;
  const bool one = end == begin + 1;  // items or results of a map, which share nothing with each other
  std::unique_ptr<EncodedObject> encoded =
      EncodedObject::exactly(parts, one ? Sharing::within_items : Sharing::anywhere);
  if (encoded) return encoded;
  const nb::object packed =
      pack(one ? nb::object(parts[begin]) : nb::object(nb::make_tuple(parts[begin], parts[begin + 1])));
  if (packed[0].is_none()) return encode_plainly(parts);
  parts[begin] = packed[0];
  if (needs != nullptr) *needs = packed[1];
  if (!one) parts[begin + 1] = nb::dict();
  return std::make_unique<EncodedObject>(parts, Codec::msgpack);
}

namespace {

constexpr std::array<const char*, 7> call_words{"call", "map", "define", "create", "forget", "environment", "plain"};
constexpr std::array<const char*, 6> reply_words{"value", "values", "pickle", "error", "unknown", "dropped"};

// Runs calls of a worker's functions and objects, by name. miniray/_calls.py has the rare cases.
class PythonCallee : public Callee {
 public:
  explicit PythonCallee(Handle& handle) : handle_(handle) {}

  void carry_out(const Message& call, const OwedReply& reply) override {
    const nb::gil_scoped_acquire gil;
    const nb::object body = decode_object(call);
    const auto verb = static_cast<CallVerb>(call.head.verb);
    nb::object value;
    try {
      value = run(verb, body);
    } catch (nb::python_error& raised) {
      return send_error(reply, raised.value());
    }
    if (PyCoro_CheckExact(value.ptr())) return begin(body[0], value, reply);
    if (verb == CallVerb::map)
      send_values(reply, value);
    else
      send_value(reply, value);
  }

 private:
  nb::object run(CallVerb verb, const nb::object& body) {
    if (verb == CallVerb::call && PyDict_Size(missing_.ptr()) == 0 && PyList_CheckExact(body.ptr()) &&
        PyList_GET_SIZE(body.ptr()) == 3) {
      const nb::object name = body[0], arguments = body[1], keywords = body[2];
      PyObject* const known = PyDict_GetItemWithError(functions_.ptr(), name.ptr());
      const nb::object function = known != nullptr ? nb::borrow(known) : method_of_an_object(name);
      if (function.is_valid() && PyList_CheckExact(arguments.ptr())) {
        const nb::object tuple = nb::steal(PyList_AsTuple(arguments.ptr()));
        PyObject* const named = PyDict_CheckExact(keywords.ptr()) ? keywords.ptr() : nullptr;
        nb::object result = nb::steal(PyObject_Call(function.ptr(), tuple.ptr(), named));
        if (!result.is_valid()) throw nb::python_error();
        return result;
      }
      if (PyErr_Occurred() != nullptr) throw nb::python_error();
    }
    const auto word = static_cast<std::size_t>(verb);
    return serve_(served_, word < call_words.size() ? call_words[word] : "?", body);
  }

  // An async def function was called. Its coroutine is awaited at once, or runs while other calls are taken.
  void begin(const nb::object& name, const nb::object& coroutine, const OwedReply& reply) {
    using namespace nb::literals;
    const auto answer = [this, reply](bool failed, nb::handle outcome) {
      failed ? send_error(reply, outcome) : send_value(reply, outcome);
    };
    const nb::object replies = nb::cpp_function(answer, "failed"_a, "outcome"_a.none());
    const bool goes_on = nb::cast<bool>(begin_(served_, name, coroutine, replies));
    if (!goes_on) return;
    handle_.set_background([this](Handle& waiting, std::optional<double> timeout_s) {
      const nb::gil_scoped_acquire gil;
      return nb::cast<bool>(work_(waiting.fileno(), timeout_s));
    });
  }

  // Returns the method of a name "object.method", or nothing if there is no such object or method.
  nb::object method_of_an_object(const nb::object& name) {
    if (PyErr_Occurred() != nullptr || !PyUnicode_CheckExact(name.ptr())) return {};
    PyObject* parts = PyDict_GetItemWithError(method_names_.ptr(), name.ptr());
    if (parts == nullptr) {
      const nb::object split = name.attr("partition")(".");
      if (nb::len(method_names_) > limits::method_names_max) method_names_.clear();
      method_names_[name] = split;
      parts = PyDict_GetItemWithError(method_names_.ptr(), name.ptr());
    }
    PyObject* const object = PyDict_GetItemWithError(functions_.ptr(), PyTuple_GET_ITEM(parts, 0));
    if (object == nullptr) return {};
    nb::object method = nb::steal(PyObject_GetAttr(object, PyTuple_GET_ITEM(parts, 2)));
    if (!method.is_valid()) PyErr_Clear();
    return method.is_valid() && PyCallable_Check(method.ptr()) != 0 ? method : nb::object();
  }

  void send_value(const OwedReply& reply, nb::handle value) {
    if (!reply.is_wanted()) return;
    if (!reply.wants_value()) value = nb::handle(Py_None);
    try {
      std::unique_ptr<EncodedObject> encoded = EncodedObject::exactly(value, Sharing::anywhere);
      ReplyVerb verb = ReplyVerb::value;
      if (!encoded) {
        const nb::object packed = pack_(value, served_)[0];
        if (!packed.is_none()) verb = ReplyVerb::pickle;
        encoded = packed.is_none() ? encode_plainly(value) : std::make_unique<EncodedObject>(packed, Codec::msgpack);
      }
      send(reply, verb, *encoded);
    } catch (nb::python_error& unsendable) {
      send_error(reply, unsendable.value(), true);
    }
  }

  // Sends the results of a map, and the errors of the items that raised.
  void send_values(const OwedReply& reply, const nb::object& values) {
    if (!reply.is_wanted()) return;
    const auto pack = [this](nb::handle value) { return pack_(value, served_); };
    std::unique_ptr<EncodedObject> encoded;
    try {
      encoded = encode_parts(nb::list(values), of_values, pack);
    } catch (const nb::python_error&) {
      encoded = encode_parts(nb::list(without_unsendable_(served_, values)), of_values, pack);
    }
    send(reply, ReplyVerb::values, *encoded);
  }

  void send_error(const OwedReply& reply, nb::handle error, bool of_the_result = false) {
    if (!reply.is_wanted()) return;
    const nb::object described = describe_error_(served_, error, of_the_result);
    const bool unknown = PyUnicode_CompareWithASCIIString(nb::object(described[0]).ptr(), "unknown") == 0;
    EncodedObject encoded(described[1], Codec::msgpack);
    send(reply, unknown ? ReplyVerb::unknown : ReplyVerb::error, encoded);
  }

  static void send(const OwedReply& reply, ReplyVerb verb, EncodedObject& encoded) {
    encoded.set_kind(Message::Kind::reply, {.verb = static_cast<std::uint8_t>(verb)});
    const nb::gil_scoped_release released;
    reply.send(encoded.message());
  }

  Handle& handle_;
  nb::object served_ = attribute("miniray._calls", "Served")();
  nb::dict functions_ = nb::borrow<nb::dict>(served_.attr("functions"));
  nb::dict missing_ = nb::borrow<nb::dict>(served_.attr("missing"));
  nb::dict method_names_;  // names of methods, and their parts
  nb::object serve_ = attribute("miniray._calls", "serve");
  nb::object begin_ = attribute("miniray._calls", "begin");
  nb::object work_ = attribute("miniray._coroutines", "work");
  nb::object pack_ = attribute("miniray._calls", "pack_reply");
  nb::object without_unsendable_ = attribute("miniray._calls", "without_unsendable");
  nb::object describe_error_ = attribute("miniray._calls", "describe_error");
};

// The desk of a Python worker, kept with its object. Python's lock guards it, and is free while the desk waits.
class PythonDesk : public CallDesk {
 public:
  using CallDesk::CallDesk;

 private:
  void run_waiting(const std::function<void()>& step) override {
    const nb::gil_scoped_release released;
    step();
  }
};

PythonDesk& desk_of(nb::handle worker) {
  static const nb::object* name = new nb::object(nb::steal(PyUnicode_InternFromString("_calls")));
  nb::object desk = nb::steal(PyObject_GetAttr(worker.ptr(), name->ptr()));
  if (!desk.is_valid()) {
    PyErr_Clear();
    desk = nb::cast(new PythonDesk(nb::cast<Worker&>(worker)), nb::rv_policy::take_ownership);
    nb::setattr(worker, *name, desk);
  }
  return nb::cast<PythonDesk&>(desk);
}

void set_call(EncodedObject& encoded, CallVerb verb, std::int64_t number) {
  encoded.set_kind(Message::Kind::call, {number, 0, static_cast<std::uint8_t>(verb)});
}

std::unique_ptr<EncodedObject> encode_for(nb::handle self, nb::list parts, PickledParts pickled) {
  return encode_parts(std::move(parts), pickled,
                      [self](nb::handle value) { return attribute("miniray._calls", "pack_for")(self, value); });
}

std::unique_ptr<EncodedObject> encode_call(nb::handle self, std::int64_t number, const nb::args& arguments,
                                           nb::handle keywords) {
  nb::list parts;
  parts.append(arguments[0]);
  const nb::object rest = nb::steal(PyTuple_GetSlice(arguments.ptr(), 1, static_cast<Py_ssize_t>(arguments.size())));
  parts.append(nb::steal(PySequence_List(rest.ptr())));
  parts.append(keywords);
  std::unique_ptr<EncodedObject> encoded = encode_for(self, std::move(parts), of_call);
  set_call(*encoded, CallVerb::call, number);
  return encoded;
}

// Returns (kind, body).
nb::tuple object_of(const Message& reply) {
  return nb::make_tuple(reply_words[static_cast<std::size_t>(reply_verb(reply))], decode_object(reply));
}

// The class miniray.CallFuture, and the attributes that are set here. It is a Python class because it is a
// concurrent.futures.Future.
struct FutureClass {
  nb::object type = attribute("miniray._call_future", "CallFuture");
  nb::object tell = attribute("miniray._call_future", "_tell");
  nb::object pending = attribute("miniray._call_future", "PENDING");
  nb::object finished = attribute("miniray._call_future", "FINISHED");
  nb::object worker = interned("_worker"), name = interned("_name"), number = interned("_number"),
             reply = interned("_reply"), state = interned("_state"), watchers = interned("_watchers"),
             exception = interned("_exception");

  static nb::object interned(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }
};

const FutureClass& future_class() {
  static const FutureClass* made = new FutureClass;  // never freed: it lives as long as the interpreter
  return *made;
}

void set(nb::handle object, const nb::object& name, nb::handle value) {
  if (PyObject_SetAttr(object.ptr(), name.ptr(), value.ptr()) != 0) throw nb::python_error();
}

nb::object make_future(nb::handle worker, nb::handle name, std::int64_t number) {
  const FutureClass& known = future_class();
  nb::object made = nb::steal(PyType_GenericNew(reinterpret_cast<PyTypeObject*>(known.type.ptr()), nullptr, nullptr));
  if (!made.is_valid()) throw nb::python_error();
  set(made, known.worker, worker);
  set(made, known.name, name);
  set(made, known.number, nb::int_(number));
  set(made, known.reply, nb::none());
  set(made, known.state, known.pending);
  return made;
}

// Gives a CallFuture the outcome of its call.
class FutureSettler : public CallSettler {
 public:
  explicit FutureSettler(nb::object future) : future_(std::move(future)) {}
  void on_reply(const Message& reply) override {
    nb::object read;
    try {
      read = object_of(reply);
    } catch (...) {  // the reply may be anything; the future has to be done all the same
      return on_failure(std::current_exception());
    }
    finish(future_class().reply, read);
  }
  void on_failure(const std::exception_ptr& why) override { finish(future_class().exception, raised_by(why)); }

 private:
  void finish(const nb::object& slot, const nb::object& outcome) {
    const FutureClass& known = future_class();
    set(future_, slot, outcome);
    set(future_, known.state, known.finished);
    if (!nb::getattr(future_, known.watchers).is_none()) known.tell(future_);
  }

  nb::object future_;
};

// Refuses what is not a name. To pass the function itself is the commonest mistake.
void require_name(const char* call, const nb::args& arguments) {
  if (arguments.size() > 0 && PyUnicode_Check(PyTuple_GET_ITEM(arguments.ptr(), 0))) return;
  (void)attribute("miniray._mistakes", "refuse_name")(call, arguments);
}

// In a handler: returns whether the worker was restarted with a policy that makes the call again (retry_calls).
bool may_call_again(nb::handle self) {
  try {
    throw;
  } catch (const WorkerRestarted&) {
  } catch (nb::python_error& raised) {  // raised while the worker was told what the call needs
    if (!raised.matches(attribute("miniray.errors", "WorkerRestarted"))) return false;
  } catch (const Error&) {
    return false;
  }
  return nb::cast<bool>(self.attr("_retries_calls"));
}

nb::object call_remote(nb::handle self, nb::args arguments, nb::kwargs keywords) {
  require_name("call_remote", arguments);
  CallDesk& desk = desk_of(self);
  while (true) {
    try {
      const Message reply = desk.ask(encode_call(self, desk.next_number(), arguments, keywords)->message());
      if (reply_verb(reply) == ReplyVerb::value) return decode_object(reply);
      return attribute("miniray._calls", "value_of")(self, object_of(reply));
    } catch (const std::exception&) {
      if (!may_call_again(self)) throw;
    }
  }
}

// Asks a worker for anything but a call. Returns the reply, or None if none is wanted.
nb::object ask(nb::handle self, const std::string& word, nb::object body, bool wants_reply) {
  const auto found = std::ranges::find(call_words, word);
  const auto verb = static_cast<CallVerb>(found - call_words.begin());
  const std::unique_ptr<EncodedObject> encoded = verb == CallVerb::create
                                                     ? encode_for(self, nb::cast<nb::list>(body), of_create)
                                                     : std::make_unique<EncodedObject>(body, Codec::msgpack);
  if (!wants_reply) {
    set_call(*encoded, verb, 0);
    const nb::gil_scoped_release released;
    nb::cast<Worker&>(self).send(encoded->message());
    return nb::none();
  }
  CallDesk& desk = desk_of(self);
  set_call(*encoded, verb, desk.next_number());
  return object_of(desk.ask(encoded->message()));
}

nb::object call_async(nb::handle self, nb::args arguments, nb::kwargs keywords) {
  require_name("call_async", arguments);
  CallDesk& desk = desk_of(self);
  const std::int64_t number = desk.next_number();
  const std::unique_ptr<EncodedObject> encoded = encode_call(self, number, arguments, keywords);
  nb::object future = make_future(self, arguments[0], number);
  desk.begin(encoded->message(), std::make_shared<FutureSettler>(future), CallDesk::Patience::none);
  return future;
}

}  // namespace

nb::object raised_by(const std::exception_ptr& thrown) {
  try {
    nb::cpp_function([&] { std::rethrow_exception(thrown); })();
  } catch (nb::python_error& raised) {
    return nb::borrow(raised.value());
  }
  return nb::none();
}

// What answers calls is made for the first call: it imports modules, and many workers get no calls.
void answer_calls(Handle& handle) {
  const auto drop = [](PythonCallee* held) {
    const nb::gil_scoped_acquire gil;
    delete held;
  };
  handle.set_call_server([drop, callee = std::shared_ptr<PythonCallee>()](Handle& asked, const Message& call) mutable {
    if (!callee) {
      const nb::gil_scoped_acquire gil;
      callee = std::shared_ptr<PythonCallee>(new PythonCallee(asked), drop);
    }
    answer_call(asked.channel(), call, *callee);
  });
}

namespace {

struct MemoryLimitHandle {
  std::uint64_t more_bytes;
  std::optional<MemoryLimit> limit;
};

}  // namespace

void bind_calls(nb::module_& module, nb::class_<Worker>& worker) {
  using namespace nb::literals;
  nb::class_<MemoryLimitHandle>(module, "_MemoryLimit")
      .def(
          "__init__",
          [](MemoryLimitHandle* self, std::uint64_t more_bytes) {
            new (self) MemoryLimitHandle{more_bytes, {}};
            self->limit.emplace(more_bytes);
          },
          "more_bytes"_a)
      .def(
          "explain",
          [](const MemoryLimitHandle& self, const std::string& why) {
            return MemoryLimit::explain(self.more_bytes, why);
          },
          "why"_a)
      .def("end", [](MemoryLimitHandle& self) { self.limit.reset(); });
  nb::class_<PythonDesk>(module, "_CallDesk");
  worker
      .def("call_async", call_async,
           nb::sig("def call_async(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any"),
           "``call_async(name, *args, **kwargs)``: call_remote without waiting. Many calls may be under way at once; "
           "they "
           "are done in their order.")
      .def("call_remote", call_remote,
           nb::sig("def call_remote(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any"),
           "``call_remote(name, *args, **kwargs)``: call the function that is registered there under this name, wait, "
           "and "
           "return its result. What it raises is raised here, with the remote traceback as its cause.")
      .def("_ask", ask, "verb"_a, "body"_a.none(), "wants_reply"_a = true,
           nb::sig("def _ask(self, verb: str, body: object, wants_reply: bool = True) -> tuple[str, typing.Any]"))
      .def(
          "_wait_for_call",
          [](nb::handle self, std::int64_t number, std::optional<double> timeout) {
            return desk_of(self).wait(number, Deadline::in_seconds(timeout));
          },
          "number"_a, "timeout"_a.none(), "False if the call is not done in time.")
      .def("_take_replies", [](nb::handle self) { desk_of(self).take_replies(); })
      .def("_drop_call", [](nb::handle self, std::int64_t number) { desk_of(self).drop(number); }, "number"_a);
  module.def(
      "_is_plain", [](nb::handle object) { return EncodedObject::exactly(object, Sharing::ignored) != nullptr; },
      "object"_a.none(), "Whether a message can hold the object, and it arrives with the same types.");
  module.def(
      "_wait_for_replies",
      [](const std::vector<Worker*>& workers, std::optional<double> timeout) {
        const nb::gil_scoped_release released;
        wait_for_replies(workers, timeout);
      },
      "workers"_a, "timeout"_a.none());
}

}  // namespace miniray::python
