#include "calls.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "base/clock.hpp"
#include "miniray/error.hpp"
#include "miniray/handle.hpp"
#include "miniray/worker.hpp"
#include "object_builder.hpp"

namespace miniray::python {

std::unique_ptr<EncodedObject> encode_parts(nb::list parts, std::size_t begin, std::size_t end, Message::Kind kind,
                                            const Packer& pack, nb::object* needs) {
  std::unique_ptr<EncodedObject> encoded = EncodedObject::exactly(parts);
  if (!encoded) {
    const bool one = end == begin + 1;
    const nb::object packed =
        pack(one ? nb::object(parts[begin]) : nb::object(nb::make_tuple(parts[begin], parts[begin + 1])));
    parts[begin] = packed[0];
    if (needs != nullptr) *needs = packed[1];
    if (!one)
      parts[begin + 1] = nb::dict();
    else if (PyUnicode_CompareWithASCIIString(nb::object(parts[1]).ptr(), "value") == 0)
      parts[1] = nb::str("pickle");
    encoded = std::make_unique<EncodedObject>(parts, Codec::msgpack);
  }
  encoded->set_kind(kind);
  return encoded;
}

namespace {

// A worker's functions and objects, by name; and how it answers. What is rare is in miniray/_calls.py.
class CallServer {
 public:
  void answer(Handle& handle, const Message& message) {
    const nb::gil_scoped_acquire gil;
    const nb::object asked = decode_object(message);
    if (!nb::isinstance<nb::list>(asked) || nb::len(asked) < 3)
      throw ProtocolError("the coordinator sent a call that is not one");
    const nb::list call = nb::borrow<nb::list>(asked);
    if (!PyLong_CheckExact(nb::object(call[0]).ptr()))
      throw ProtocolError("the coordinator sent a call without a number");
    const nb::object number = call[0];
    const std::int64_t begun = now_ns();
    if (lease_is_over(call, begun) || handle.channel().was_dropped(nb::cast<std::int64_t>(number)))
      return send(handle, list_of(number, "dropped"), 1, 2);
    nb::object value;
    try {
      value = run(call);
    } catch (nb::python_error& raised) {
      return send_error(handle, number, raised, begun);
    }
    if (PyCoro_CheckExact(value.ptr())) return begin(handle, call, value, begun);
    if (PyLong_AsLongLong(number.ptr()) == 0) return;
    if (nb::isinstance<nb::tuple>(value) && is_map(call)) {
      nb::list reply = list_of(number, "values", nb::int_(now_ns() - begun), value[0], value[1]);
      return send_or_say_why(handle, reply, number, begun);
    }
    send_or_say_why(handle, list_of(number, "value", nb::int_(now_ns() - begun), value), number, begun);
  }

 private:
  template <class... Parts>
  static nb::list list_of(Parts&&... parts) {
    nb::list made;
    (made.append(parts), ...);
    return made;
  }

  // A pool's call that was to wait behind another, but not for so long: the pool has taken it back, or will.
  static bool lease_is_over(const nb::list& call, std::int64_t now) {
    const std::size_t size = nb::len(call);
    if (size != (is_map(call) ? 6 : 7)) return false;
    const std::int64_t lease = nb::cast<std::int64_t>(call[size - 1]);
    return lease != 0 && now > lease;
  }

  static bool is_map(const nb::list& call) {
    const nb::object operation = call[1];
    return PyUnicode_Check(operation.ptr()) && PyUnicode_CompareWithASCIIString(operation.ptr(), "map") == 0;
  }

  nb::object run(const nb::list& call) {
    const nb::object operation = call[1];
    const std::size_t size = nb::len(call);
    const bool plain = PyDict_Size(missing_.ptr()) == 0 && PyUnicode_Check(operation.ptr()) &&
                       (size == 5 || (size == 7 && call[5].is_none())) &&
                       PyUnicode_CompareWithASCIIString(operation.ptr(), "call") == 0;
    if (plain) {
      const nb::object name = call[2], arguments = call[3], keywords = call[4];
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
    return serve_(served_, call);
  }

  // An async def function was called: its result is awaited, at once or beside others.
  void begin(Handle& handle, const nb::list& call, const nb::object& coroutine, std::int64_t begun) {
    const nb::object number = call[0];
    using namespace nb::literals;
    const auto answer = [this, &handle, number, begun](bool failed, nb::handle outcome) {
      if (PyLong_AsLongLong(number.ptr()) == 0) return;
      if (failed) return send_described(handle, number, describe_error_(served_, outcome, false), begun);
      send_or_say_why(handle, list_of(number, "value", nb::int_(now_ns() - begun), outcome), number, begun);
    };
    const nb::object reply = nb::cpp_function(answer, "failed"_a, "outcome"_a.none());
    const bool goes_on = nb::cast<bool>(begin_(served_, call[2], coroutine, reply));
    if (!goes_on) return;
    handle.set_background([this](Handle& waiting, std::optional<double> timeout_s) {
      const nb::gil_scoped_acquire gil;
      return nb::cast<bool>(work_(waiting.fileno(), timeout_s));
    });
  }

  // "object.method", if there is such an object here and it has one; what else a name may mean, and errors, are rare.
  nb::object method_of_an_object(const nb::object& name) {
    if (PyErr_Occurred() != nullptr || !PyUnicode_CheckExact(name.ptr())) return {};
    PyObject* parts = PyDict_GetItemWithError(method_names_.ptr(), name.ptr());
    if (parts == nullptr) {
      const nb::object split = name.attr("partition")(".");
      if (nb::len(method_names_) > method_names_max) method_names_.clear();
      method_names_[name] = split;
      parts = PyDict_GetItemWithError(method_names_.ptr(), name.ptr());
    }
    PyObject* const object = PyDict_GetItemWithError(functions_.ptr(), PyTuple_GET_ITEM(parts, 0));
    if (object == nullptr) return {};
    nb::object method = nb::steal(PyObject_GetAttr(object, PyTuple_GET_ITEM(parts, 2)));
    if (!method.is_valid()) PyErr_Clear();
    return method.is_valid() && PyCallable_Check(method.ptr()) != 0 ? method : nb::object();
  }

  void send_or_say_why(Handle& handle, nb::list reply, const nb::object& number, std::int64_t begun) {
    try {
      send(handle, std::move(reply), 3, 4);
    } catch (nb::python_error& unsendable) {
      send_error(handle, number, unsendable, begun, true);
    }
  }

  void send(Handle& handle, nb::list reply, std::size_t begin, std::size_t end) {
    const auto pack = [this](nb::handle value) { return pack_(value, served_); };
    const std::unique_ptr<EncodedObject> encoded =
        encode_parts(std::move(reply), begin, end, Message::Kind::reply, pack);
    const nb::gil_scoped_release released;
    handle.channel().send(encoded->message());
  }

  void send_error(Handle& handle, const nb::object& number, nb::python_error& raised, std::int64_t begun,
                  bool of_the_result = false) {
    send_described(handle, number, describe_error_(served_, raised.value(), of_the_result), begun);
  }

  void send_described(Handle& handle, const nb::object& number, const nb::object& described, std::int64_t begun) {
    if (PyLong_AsLongLong(number.ptr()) == 0) return;
    const nb::object kind = described[0], what = described[1];
    send(handle, list_of(number, kind, nb::int_(now_ns() - begun), what), 3, 4);
  }

  static constexpr std::size_t method_names_max = 1000;
  nb::object served_ = attribute("miniray._calls", "Served")();
  nb::dict functions_ = nb::borrow<nb::dict>(served_.attr("functions"));
  nb::dict missing_ = nb::borrow<nb::dict>(served_.attr("missing"));
  nb::dict method_names_;  // in their parts
  nb::object serve_ = attribute("miniray._calls", "serve");
  nb::object begin_ = attribute("miniray._calls", "begin");
  nb::object work_ = attribute("miniray._coroutines", "work");
  nb::object pack_ = attribute("miniray._calls", "pack_reply");
  nb::object describe_error_ = attribute("miniray._calls", "describe_error");
};

// The calls of one worker that are under way. Kept with the Python object.
struct CallTable {
  std::int64_t last_number = 0;
  nb::dict waiting;
};

CallTable& table_of(nb::handle worker) {
  static const nb::object* name = new nb::object(nb::steal(PyUnicode_InternFromString("_calls")));
  nb::object table = nb::steal(PyObject_GetAttr(worker.ptr(), name->ptr()));
  if (!table.is_valid()) {
    PyErr_Clear();
    table = nb::cast(new CallTable, nb::rv_policy::take_ownership);
    nb::setattr(worker, *name, table);
  }
  return nb::cast<CallTable&>(table);
}

enum class Patience : std::uint8_t { wait, none };

// Without patience, what the kernel does not take at once goes out when somebody waits for a reply. A call that wants
// no reply has the number 0.
std::int64_t send_call(nb::handle self, nb::list parts, std::size_t begin, std::size_t end,
                       Patience patience = Patience::wait, bool wants_reply = true) {
  const std::int64_t number = wants_reply ? ++table_of(self).last_number : 0;
  parts[0] = nb::int_(number);
  const auto pack = [self](nb::handle value) { return attribute("miniray._calls", "pack_for")(self, value); };
  const std::unique_ptr<EncodedObject> encoded = encode_parts(std::move(parts), begin, end, Message::Kind::call, pack);
  Worker& worker = nb::cast<Worker&>(self);
  const nb::gil_scoped_release released;
  if (patience == Patience::wait)
    worker.send(encoded->message());
  else
    (void)worker.send_some(encoded->message());
  return number;
}

std::int64_t begin_call(nb::handle self, nb::handle name, nb::handle arguments, nb::handle keywords,
                        Patience patience) {
  nb::list parts;
  parts.append(nb::none());
  parts.append("call");
  parts.append(name);
  parts.append(nb::steal(PySequence_List(arguments.ptr())));
  parts.append(keywords);
  return send_call(self, std::move(parts), 3, 5, patience);
}

nb::list checked_reply(const Message& message) {
  const nb::object reply = decode_object(message);
  if (!nb::isinstance<nb::list>(reply) || nb::len(reply) < 2)
    throw ProtocolError("the worker sent a reply that cannot be read");
  return nb::borrow<nb::list>(reply);
}

nb::list next_reply(Worker& worker, std::optional<double> timeout) {
  std::optional<Message> message;
  {
    const nb::gil_scoped_release released;
    message = worker.receive({{}, timeout, Lane::calls});
  }
  return checked_reply(*message);
}

nb::object try_reply(Worker& worker) {
  std::optional<Message> message = worker.try_receive({}, Lane::calls);
  if (!message) return nb::none();
  return checked_reply(*message);
}

// miniray.CallFuture, a Python class because it is a concurrent.futures.Future, and what the core sets in its objects.
struct FutureClass {
  nb::object type = attribute("miniray._call_future", "CallFuture");
  nb::object tell = attribute("miniray._call_future", "_tell");
  nb::object pending = attribute("miniray._call_future", "PENDING");
  nb::object finished = attribute("miniray._call_future", "FINISHED");
  nb::object worker = interned("_worker"), name = interned("_name"), number = interned("_number"),
             reply = interned("_reply"), state = interned("_state"), watchers = interned("_watchers");

  static nb::object interned(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }
};

const FutureClass& future_class() {
  static const FutureClass* made = new FutureClass;  // for as long as the interpreter
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

void settle(CallTable& table, const nb::list& reply) {
  const nb::object number = reply[0];
  const nb::object future = nb::borrow(PyDict_GetItemWithError(table.waiting.ptr(), number.ptr()));
  if (!future.is_valid()) return PyErr_Clear();  // it was cancelled
  PyDict_DelItem(table.waiting.ptr(), number.ptr());
  const FutureClass& known = future_class();
  set(future, known.reply, reply);
  set(future, known.state, known.finished);
  if (!nb::getattr(future, known.watchers).is_none()) known.tell(future);
}

nb::object value_in(nb::handle self, const nb::list& reply) {
  const nb::object kind = reply[1];
  if (PyUnicode_Check(kind.ptr()) && nb::len(reply) == 4 && PyUnicode_CompareWithASCIIString(kind.ptr(), "value") == 0)
    return reply[3];
  return attribute("miniray._calls", "value_of")(self, reply);
}

// Functions are called by name: a function itself is the commonest mistake.
void require_name(const char* call, const nb::args& arguments) {
  if (arguments.size() > 0 && PyUnicode_Check(PyTuple_GET_ITEM(arguments.ptr(), 0))) return;
  (void)attribute("miniray._mistakes", "refuse_name")(call, arguments);
}

nb::object call_remote(nb::handle self, nb::args arguments, nb::kwargs keywords) {
  require_name("call_remote", arguments);
  const nb::object rest = nb::steal(PyTuple_GetSlice(arguments.ptr(), 1, static_cast<Py_ssize_t>(arguments.size())));
  const std::int64_t number = begin_call(self, arguments[0], rest, keywords, Patience::wait);
  Worker& worker = nb::cast<Worker&>(self);
  while (true) {
    const nb::list reply = next_reply(worker, {});
    const nb::object answered = reply[0];
    if (PyLong_CheckExact(answered.ptr()) && PyLong_AsLongLong(answered.ptr()) == number) return value_in(self, reply);
    settle(table_of(self), reply);
  }
}

nb::object call_async(nb::handle self, nb::args arguments, nb::kwargs keywords) {
  require_name("call_async", arguments);
  const nb::object rest = nb::steal(PyTuple_GetSlice(arguments.ptr(), 1, static_cast<Py_ssize_t>(arguments.size())));
  const std::int64_t number = begin_call(self, arguments[0], rest, keywords, Patience::none);
  nb::object made = make_future(self, arguments[0], number);
  table_of(self).waiting[nb::int_(number)] = made;
  return made;
}

// Until the call with this number is done, or the time is over: TimeoutError.
void wait_for_call(nb::handle self, const nb::int_& number, std::optional<double> timeout) {
  Worker& worker = nb::cast<Worker&>(self);
  CallTable& table = table_of(self);
  const Deadline deadline = Deadline::in_seconds(timeout);
  while (PyDict_Contains(table.waiting.ptr(), number.ptr()) == 1)
    settle(table, next_reply(worker, deadline.seconds_left()));
}

void settle_replies(nb::handle self) {
  Worker& worker = nb::cast<Worker&>(self);
  while (std::optional<Message> message = worker.try_receive({}, Lane::calls))
    settle(table_of(self), checked_reply(*message));
}

}  // namespace

void answer_calls(Handle& handle) {
  const std::shared_ptr<CallServer> server(new CallServer, [](CallServer* held) {
    const nb::gil_scoped_acquire gil;
    delete held;
  });
  handle.set_call_server([server](Handle& asked, const Message& call) { server->answer(asked, call); });
}

void bind_calls(nb::module_& module, nb::class_<Worker>& worker) {
  using namespace nb::literals;
  nb::class_<CallTable>(module, "_CallTable")
      .def_prop_ro(
          "waiting", [](const CallTable& self) { return self.waiting; },
          nb::for_getter(nb::sig("def waiting(self, /) -> dict[int, typing.Any]")));
  worker
      .def("call_async", call_async,
           nb::sig("def call_async(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any"),
           "``call_async(name, *args, **kwargs)``: call_remote without waiting. Many calls may be under way at once; "
           "they "
           "are done in their order.")
      .def(
          "_settle", [](nb::handle self, const nb::list& reply) { settle(table_of(self), reply); },
          nb::sig("def _settle(self, reply: list[typing.Any]) -> None"))
      .def("call_remote", call_remote,
           nb::sig("def call_remote(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any"),
           "``call_remote(name, *args, **kwargs)``: call the function that is registered there under this name, wait, "
           "and "
           "return its result. What it raises is raised here, with the remote traceback as its cause.")
      .def(
          "_send_call",
          [](nb::handle self, nb::list parts, std::size_t begin, std::size_t end, bool wants_reply) {
            return send_call(self, std::move(parts), begin, end, Patience::wait, wants_reply);
          },
          "parts"_a, "begin"_a, "end"_a, "wants_reply"_a = true,
          nb::sig(
              "def _send_call(self, parts: list[typing.Any], begin: int, end: int, wants_reply: bool = True) -> int"))
      .def("_next_reply", next_reply, "timeout"_a.none(),
           nb::sig("def _next_reply(self, timeout: float | None) -> list[typing.Any]"))
      .def("_wait_for_call", wait_for_call, "number"_a, "timeout"_a.none(),
           nb::sig("def _wait_for_call(self, number: int, timeout: float | None) -> None"))
      .def("_settle_replies", settle_replies, nb::sig("def _settle_replies(self) -> None"))
      .def("_try_reply", try_reply, nb::sig("def _try_reply(self) -> list[typing.Any] | None"))
      .def("_send_drop",
           [](Worker& self, std::int64_t number) {
             Message drop = encode(Value(number));
             drop.kind = Message::Kind::drop;
             (void)self.send_some(drop);
           })
      .def("_call_table", [](nb::handle self) -> CallTable& { return table_of(self); }, nb::rv_policy::reference);
}

}  // namespace miniray::python
