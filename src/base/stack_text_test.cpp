#include "base/stack_text.hpp"

#include <doctest/doctest.h>

namespace miniray {
namespace {

// A stack as a process writes it.
std::string written(const std::string& names) {
  return "C++ stack at SIGSEGV:\nprogram(+0x12) [0x12]\nnames of the C++ stack:\n" + names + "end of the C++ stack\n";
}

const std::string user_call = "call\t1\t0\t0\t0\tprogram+0x1\nin\t_ZL5crashi\t7\tuser.cpp\n";
const std::string work_call = "call\t1\t0\t0\t0\tprogram+0x2\nin\t_ZL4workRN7miniray6HandleE\t9\tuser.cpp\n";
const std::string runner =
    "call\t1\t0\t0\t0\tprogram+0x3\nin\t_ZN7miniray17run_work_functionERKSt8functionIFvRNS_6HandleEEENS_"
    "7ChannelE\t0\t\n"
    "call\t1\t0\t0\t0\tprogram+0x4\nin\tmain\t0\t\n";

}  // namespace

TEST_CASE("a function has its name, file and line; what called the work function is left out") {
  CHECK(readable_stacks(written(user_call + work_call + runner)) ==
        "C++ stack at SIGSEGV:\n  crash(int) at user.cpp:7\n  work(miniray::Handle&) at user.cpp:9\n");
}

TEST_CASE("without debug information there are names, and without a symbol table the places in the program") {
  CHECK(readable_stacks(written("call\t1\t0\t0\t0\tprogram+0x1\nin\t_ZZ4mainENKUliE_clEi\t0\t\n"
                                "call\t1\t0\t0\t0\tprogram+0x2b\n")) ==
        "C++ stack at SIGSEGV:\n  main::{lambda(int)#1}::operator()(int) const\n  program+0x2b\n");
}

TEST_CASE("repeated calls are folded, and so are calls that take turns") {
  const std::string twice = "call\t60\t0\t0\t0\tprogram+0x1\nin\t_ZL5crashi\t7\tuser.cpp\n";
  CHECK(readable_stacks(written(twice)) == "C++ stack at SIGSEGV:\n  crash(int) at user.cpp:7 ... 60 times\n");
  // The innermost call is at another instruction of the same line.
  CHECK(readable_stacks(written(user_call + twice)) ==
        "C++ stack at SIGSEGV:\n  crash(int) at user.cpp:7 ... 61 times\n");
  const std::string pong = "call\t1\t2\t30\t0\tprogram+0x2\nin\t_ZL4pongi\t8\tuser.cpp\n";
  CHECK(readable_stacks(written(user_call + pong)) ==
        "C++ stack at SIGSEGV:\n  crash(int) at user.cpp:7\n  pong(int) at user.cpp:8\n  ... these 2 lines 30 times\n");
}

TEST_CASE("MiniRay's own calls are left out, but for the one that the user's innermost function has made") {
  const std::string poll = "call\t1\t0\t0\t0\tlibc.so.6+0x1\nin\tpoll\t0\t\n";
  const std::string receive = "call\t1\t0\t0\t0\tprogram+0x5\nin\t_ZN7miniray7Channel7receiveEv\t0\t\n";
  const std::string recv = "call\t1\t0\t0\t0\tprogram+0x6\nin\t_ZN7miniray6Handle4recvEv\t0\t\n";
  const std::string invoke =
      "call\t1\t0\t0\t0\tprogram+0x7\nin\t_ZNSt17_Function_handlerIFvvEPS0_E9_M_invokeERKSt9_Any_data\t0\t\n";
  CHECK(readable_stacks(written(poll + receive + recv + user_call + invoke + receive + work_call)) ==
        "C++ stack at SIGSEGV:\n  poll\n  miniray::Handle::recv()\n  crash(int) at user.cpp:7\n"
        "  work(miniray::Handle&) at user.cpp:9\n");
  // A cycle that goes through MiniRay is a cycle of the user's function.
  const std::string in_a_cycle = "call\t1\t2\t30\t0\tprogram+0x6\nin\t_ZN7miniray6Handle4recvEv\t0\t\n";
  CHECK(readable_stacks(written(user_call + in_a_cycle + work_call)) ==
        "C++ stack at SIGSEGV:\n  crash(int) at user.cpp:7 ... 30 times\n  work(miniray::Handle&) at user.cpp:9\n");
  // A library that is MiniRay's has no user's functions, whatever its symbols say.
  CHECK(readable_stacks(written(user_call + "call\t1\t0\t0\t1\t_core.so+0x1\n" + work_call)) ==
        readable_stacks(written(user_call + work_call)));
}

TEST_CASE("a lambda that was inlined into the code of std::function has its name") {
  const std::string handler =
      "_ZNSt17_Function_handlerIFviEZL4workRN7miniray6HandleEEUliE_E9_M_invokeERKSt9_Any_dataOi";
  const std::string name = "work(miniray::Handle&)::{lambda(int)#1}";
  CHECK(readable_stacks(written("call\t1\t0\t0\t0\tprogram+0x1\nin\t" + handler + "\t0\t\n" + work_call)) ==
        "C++ stack at SIGSEGV:\n  " + name + "\n  work(miniray::Handle&) at user.cpp:9\n");
  CHECK(readable_stacks(written("call\t1\t0\t0\t0\tprogram+0x1\nin\toperator()\t5\tuser.cpp\nin\t" + handler +
                                "\t290\tstd_function.h\n" + work_call)) ==
        "C++ stack at SIGSEGV:\n  " + name + " at user.cpp:5\n  work(miniray::Handle&) at user.cpp:9\n");
  // It has a call of its own here.
  CHECK(readable_stacks(written("call\t1\t0\t0\t0\tprogram+0x1\nin\t_ZZL4workRN7miniray6HandleEENKUliE_clEi\t0\t\n"
                                "call\t1\t0\t0\t0\tprogram+0x2\nin\t" +
                                handler + "\t0\t\n" + work_call)) ==
        "C++ stack at SIGSEGV:\n  " + name + "::operator()(int) const\n  work(miniray::Handle&) at user.cpp:9\n");
}

TEST_CASE("a lambda that was inlined into MiniRay's code that calls it has its name") {
  const std::string typed =
      "_ZN7miniray6detail10call_typedIZZ4mainENKUlvE_clEvEUliE_EENS_5ValueESt17basic_string_viewIcSt11char_traitsIcEESt"
      "6vectorIS4_SaIS4_EE";
  const std::string name = "main::{lambda()#1}::operator()() const::{lambda(int)#1}";
  const std::string inlined =
      "call\t1\t0\t0\t0\tprogram+0x1\nin\toperator()\t5\tuser.cpp\n"
      "in\tcall_with<int>\t9\t/usr/include/miniray/registry.hpp\nin\t" +
      typed + "\t3\t/usr/include/miniray/typed_function.hpp\n";
  CHECK(readable_stacks(written(user_call + inlined + work_call)) ==
        "C++ stack at SIGSEGV:\n  crash(int) at user.cpp:7\n  " + name +
            " at user.cpp:5\n  work(miniray::Handle&) at user.cpp:9\n");
  const std::string caller = "call\t1\t0\t0\t0\tprogram+0x1\nin\t" + typed + "\t0\t\n";
  CHECK(readable_stacks(written(user_call + caller)) ==
        "C++ stack at SIGSEGV:\n  crash(int) at user.cpp:7\n  " + name + "\n");
  // It was not called, because its argument did not convert.
  const std::string argument = "call\t1\t0\t0\t0\tprogram+0x2\nin\t_ZN7miniray6detail8argumentEv\t0\t\n";
  CHECK(readable_stacks(written(argument + caller), OwnCalls::drop_all) == "C++ stack at SIGSEGV:\n");
}

TEST_CASE("a stack of MiniRay alone, and that of a failed check, keep MiniRay's calls") {
  const std::string own = "call\t1\t0\t0\t0\tprogram+0x5\nin\t_ZN7miniray7Channel7receiveEv\t0\t\n";
  CHECK(readable_stacks(written(own)) == "C++ stack at SIGSEGV:\n  miniray::Channel::receive()\n");
  CHECK(readable_stacks(written(user_call + own), OwnCalls::keep_all) ==
        "C++ stack at SIGSEGV:\n  crash(int) at user.cpp:7\n  miniray::Channel::receive()\n");
  const std::string bug = "miniray: a bug in MiniRay 1\n";
  CHECK(readable_stacks(bug + written(user_call + own)) ==
        bug + readable_stacks(written(user_call + own), OwnCalls::keep_all));
}

TEST_CASE("how a stack was taken is left out") {
  const std::string raise = "call\t1\t0\t0\t0\tlibc.so.6+0x9\ncall\t1\t0\t0\t0\tlibc.so.6+0x1\nin\traise\t0\t\n";
  CHECK(readable_stacks(written(raise + user_call)) == readable_stacks(written(user_call)));
  const std::string thrown = "call\t1\t0\t0\t0\tlibgcc_s.so.1+0x9\ncall\t1\t0\t0\t0\tx+0x1\nin\t__cxa_throw\t0\t\n";
  CHECK(readable_stacks(written(thrown + user_call)) == readable_stacks(written(user_call)));
}

TEST_CASE("addresses stand in for names that are missing or cut off, and other text stays") {
  const std::string title = "C++ stack:\n", line = "program(_ZN7miniray6now_nsEv+0x1d) [0x12]\n";
  const std::string readable = title + "program(miniray::now_ns()+0x1d) [0x12]\n";
  CHECK(readable_stacks(title + line) == readable);
  CHECK(readable_stacks(title + line + "end of the C++ stack\n") == readable);
  CHECK(readable_stacks(title + line + "names of the C++ stack:\n" + user_call) == readable);
  // Finding the names has failed in the middle.
  CHECK(readable_stacks(title + line + "names of the C++ stack:\n" + user_call +
                        "names of the C++ stack:\nend of the C++ stack\n") == readable);
  const std::string other = "Fatal Python error\nprogram(main+0x1) [0x12]\n";
  CHECK(readable_stacks(other) == other);
  CHECK(readable_stacks(other + written(user_call)) == other + readable_stacks(written(user_call)));
  CHECK(readable_stacks(written("call\tx\ncall\nin\t\n\t\t\nin\ta\t1\n")) ==
        "C++ stack at SIGSEGV:\nprogram(+0x12) [0x12]\n");
  CHECK(readable_stacks("").empty());
}

TEST_CASE("a stack is unfinished until its last line") {
  CHECK_FALSE(has_unfinished_stack(""));
  CHECK_FALSE(has_unfinished_stack("Current thread 0x1\n"));
  CHECK_FALSE(has_unfinished_stack(written(user_call)));
  CHECK(has_unfinished_stack("C++ stack:\n"));
  CHECK(has_unfinished_stack(written(user_call) + "C++ stack:\nnames of the C++ stack:\n"));
}

TEST_CASE("names are demangled, without what the compiler made of the function") {
  CHECK(demangle("_ZL5crashi") == "crash(int)");
  CHECK(demangle("_ZL5crashi.part.0") == "crash(int)");
  CHECK(demangle("main") == "main");
  CHECK(demangle("_Zzz") == "_Zzz");
}

}  // namespace miniray
