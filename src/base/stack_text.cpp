#include "base/stack_text.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

namespace miniray {
namespace {

using Lines = std::vector<std::string_view>;

Lines split(std::string_view text, char separator) {
  Lines parts;
  while (!text.empty()) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return parts;
}

unsigned number(std::string_view digits) {
  unsigned made = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), made);
  return made;
}

struct Function {
  std::string_view symbol, line, file;
  std::string name = {};  // shown instead of the symbol if there is one
};

// One call of a stack, with the functions that the compiler has inlined there.
struct StackCall {
  unsigned index = 0, times = 1;
  unsigned cycle_begin = 0, cycle_times = 0;  // this call ends a cycle, which began with that call
  bool in_our_library = false;
  std::string_view place;  // "program+0x12ab"
  std::vector<Function> functions;
};

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> starts) {
  return std::ranges::any_of(starts, [text](std::string_view start) { return text.starts_with(start); });
}

// Returns what follows the letters of a mangled name that say where a function is, not what it is called.
std::string_view after_scope_letters(std::string_view symbol) {
  if (!symbol.starts_with("_Z")) return {};
  return symbol.substr(std::min(symbol.find_first_not_of("ZNKL", 2), symbol.size()));
}

// Returns the first argument of a template whose demangled name continues with `text`.
std::string_view template_argument(std::string_view text) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (depth == 0 && (letter == '>' || letter == ',')) return text.substr(0, i);
    if (letter == '(' || letter == '<' || letter == '{') ++depth;
    if (letter == ')' || letter == '>' || letter == '}') --depth;
  }
  return {};
}

// Returns what follows the first of these texts in a name; empty if it has none of them.
std::string_view after_any(std::string_view name, std::initializer_list<std::string_view> texts) {
  for (const std::string_view text : texts)
    if (const std::size_t at = name.find(text); at != std::string_view::npos) return name.substr(at + text.size());
  return {};
}

// Returns the lambda that this function of std::function or of MiniRay calls, which is an argument of its template. It
// is empty if the function is another one, or if it calls something else.
std::string lambda_called_in(const Function& function) {
  if (!starts_with_any(after_scope_letters(function.symbol), {"St17_Function_handler", "7miniray6detail10call_typed"}))
    return {};
  const std::string name = demangle(std::string(function.symbol));
  std::string_view called = name;
  if (const std::string_view signature = after_any(name, {"std::_Function_handler<"}); !signature.empty()) {
    called = signature.substr(template_argument(signature).size());
    called = template_argument(called.substr(std::min(called.size(), called.find_first_not_of(", "))));
  }
  if (const std::string_view own = after_any(
          called,
          {"miniray::detail::call_typed<", "miniray::detail::callable_function<", "miniray::detail::callable_method<"});
      !own.empty())
    called = template_argument(own);
  const bool is_users_lambda = called.find("{lambda(") != std::string_view::npos && !called.starts_with("miniray::");
  return is_users_lambda ? std::string(called) : "";
}

// Returns whether a file is one of the library's sources. Only builds that are no releases have paths of files.
bool is_our_source([[maybe_unused]] std::string_view file) {
#ifdef MINIRAY_SOURCE_FOLDER
  return file.starts_with(MINIRAY_SOURCE_FOLDER) && !file.ends_with("_test.cpp");
#else
  return false;
#endif
}

// A function that was inlined has a name without its scope, but the file in which it is.
bool is_ours(const Function& function) {
  return function.name.empty() &&
         (after_scope_letters(function.symbol).starts_with("7miniray") || is_our_source(function.file) ||
          function.file.find("include/miniray/") != std::string_view::npos);
}

// A compiler inlines a lambda into the function of std::function that calls it. Then the lambda has no name of its own.
void name_inlined_lambdas(std::vector<StackCall>& calls) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].functions.empty()) continue;
    Function& caller = calls[i].functions.back();
    const std::string lambda = lambda_called_in(caller);
    if (lambda.empty()) continue;
    // The last one: lambdas that it calls may be inlined into it.
    const auto inlined = std::ranges::find_if(calls[i].functions.rbegin(), calls[i].functions.rend(),
                                              [](const auto& f) { return f.symbol == "operator()" && !is_ours(f); });
    if (inlined != calls[i].functions.rend()) {
      inlined->name = lambda;
      continue;
    }
    // It has not been inlined if it has a call of its own, or if it was not called yet: its arguments were converted.
    const bool elsewhere =
        std::any_of(calls.begin(), calls.begin() + static_cast<std::ptrdiff_t>(i), [&](const StackCall& call) {
          return !call.functions.empty() &&
                 (demangle(std::string(call.functions.back().symbol)).starts_with(lambda) ||
                  after_scope_letters(call.functions.back().symbol).starts_with("7miniray6detail"));
        });
    if (calls[i].functions.size() == 1 && !elsewhere) caller = {"", "", "", lambda};
  }
}

// An inlined function of the C++ library has a name without its scope, but its file.
bool is_in_standard_invoke(const Function& function) {
  return function.file.find("/c++/") != std::string_view::npos &&
         (function.file.ends_with("/functional") || function.file.ends_with("/invoke.h") ||
          function.file.ends_with("/std_function.h"));
}

// What stands between a caller and a function object.
bool is_plumbing(const Function& function) {
  const std::string_view name = after_scope_letters(function.symbol);
  return starts_with_any(name, {"St17_Function_handler", "St13__invoke_impl", "St8__invoke", "St10__invoke_r",
                                "St6invoke", "St8functionI", "St12__invoke_r", "St17_Function_base"}) ||
         function.symbol.find("4_FUNE") != std::string_view::npos || is_in_standard_invoke(function) ||
         starts_with_any(function.symbol, {"__libc_start", "_start", "__invoke"});
}

bool is_not_users(const Function& function) { return is_ours(function) || is_plumbing(function); }

bool is_of_the_system(const StackCall& call) {
  return starts_with_any(call.place,
                         {"libc.so", "libc-2", "libstdc++.so", "libgcc_s.so", "ld-linux", "libpthread", "linux-vdso"});
}

// The innermost calls of a stack that was taken in raise() or while an exception is thrown say how it was taken.
constexpr std::array<std::string_view, 9> takers{"raise",
                                                 "__GI_raise",
                                                 "gsignal",
                                                 "pthread_kill",
                                                 "__pthread_kill_internal",
                                                 "__pthread_kill_implementation",
                                                 "__cxa_throw",
                                                 "__cxa_rethrow",
                                                 "_ZSt17rethrow_exceptionNSt15__exception_ptr13exception_ptrE"};
constexpr std::ptrdiff_t taking_calls = 10;

void drop_takers(std::vector<StackCall>& calls) {
  const auto end = calls.begin() + std::min<std::ptrdiff_t>(std::ssize(calls), taking_calls);
  const auto is_taker = [](const StackCall& call) {
    return std::ranges::any_of(call.functions, [](const Function& function) {
      return std::ranges::find(takers, function.symbol) != takers.end();
    });
  };
  auto last = calls.begin();
  for (auto call = calls.begin(); call != end; ++call) {
    if (is_taker(*call)) last = call + 1;
  }
  calls.erase(calls.begin(), last);
}

// Drops what called the work function: MiniRay's calls and the program that started the worker.
void drop_callers_of_work(std::vector<StackCall>& calls) {
  const auto runner = std::ranges::find_if(calls, [](const StackCall& call) {
    return std::ranges::any_of(call.functions, [](const Function& function) {
      return after_scope_letters(function.symbol).starts_with("7miniray17run_work_function");
    });
  });
  calls.erase(runner, calls.end());
}

enum class Origin { user, system, ours };

Origin origin_of(const StackCall& call) {
  if (call.in_our_library) return Origin::ours;
  if (!call.functions.empty() && std::ranges::all_of(call.functions, is_not_users)) return Origin::ours;
  return is_of_the_system(call) ? Origin::system : Origin::user;
}

// Drops a call. A cycle that it ended then ends with the call before it.
void drop_after(std::vector<StackCall>& kept, const StackCall& dropped) {
  if (dropped.cycle_times < 2 || kept.empty() || kept.back().index < dropped.cycle_begin) return;
  kept.back().cycle_begin = dropped.cycle_begin;
  kept.back().cycle_times = dropped.cycle_times;
}

// Drops MiniRay's own calls, but not the one that the user's innermost function has made.
void drop_own(std::vector<StackCall>& calls, OwnCalls own) {
  const auto user = std::ranges::find(calls, Origin::user, origin_of);
  if (user == calls.end()) {  // it is all MiniRay's
    if (own == OwnCalls::drop_all) calls.clear();
    return;
  }
  std::vector<StackCall> kept;
  for (auto call = calls.begin(); call != calls.end(); ++call) {
    if (origin_of(*call) == Origin::ours && call + 1 != user)
      drop_after(kept, *call);
    else
      kept.push_back(*call);
  }
  for (StackCall& call : kept) {  // what was inlined around a user's function
    const bool has_users = !std::ranges::all_of(call.functions, is_not_users);
    if (has_users) std::erase_if(call.functions, is_not_users);
  }
  calls = std::move(kept);
}

std::string text_of(const Function& function) {
  std::string text = "  " + (function.name.empty() ? demangle(std::string(function.symbol)) : function.name);
  if (!function.file.empty()) text.append(" at ").append(function.file).append(":").append(function.line);
  return text;
}

// Ends the text's last line, or lines, with how often they follow each other.
void add_times(std::string& text, std::size_t lines, unsigned times) {
  const std::string count = std::to_string(times) + " times\n";
  if (lines == 1) text.pop_back();
  text += lines == 1 ? " ... " + count : "  ... these " + std::to_string(lines) + " lines " + count;
}

// Folds calls of one function from places that look the same: the innermost one may be at another instruction.
void fold_alike(std::vector<StackCall>& calls) {
  std::vector<StackCall> kept;
  for (StackCall& call : calls) {
    const bool alike = !kept.empty() && kept.back().functions.size() == 1 && call.functions.size() == 1 &&
                       kept.back().cycle_times == 0 && call.cycle_times == 0 &&
                       text_of(kept.back().functions[0]) == text_of(call.functions[0]);
    if (alike)
      kept.back().times += call.times;
    else
      kept.push_back(std::move(call));
  }
  calls = std::move(kept);
}

std::string text_of(const std::vector<StackCall>& calls) {
  std::string text;
  for (auto call = calls.begin(); call != calls.end(); ++call) {
    for (const Function& function : call->functions) text += text_of(function) + '\n';
    if (call->functions.empty()) text.append("  ").append(call->place).append("\n");
    const auto lines_of = [](const StackCall& one) { return std::max<std::size_t>(one.functions.size(), 1); };
    if (call->times > 1) add_times(text, lines_of(*call), call->times);
    if (call->cycle_times < 2) continue;
    std::size_t lines = 0;
    for (auto first = calls.begin(); first <= call; ++first)
      lines += first->index < call->cycle_begin ? 0 : lines_of(*first);
    add_times(text, lines, call->cycle_times);
  }
  return text;
}

StackCall read_call(const Lines& fields, std::size_t index) {
  StackCall call;
  call.index = static_cast<unsigned>(index);
  call.times = number(fields[1]);
  call.cycle_begin = call.index + 1 - std::min(number(fields[2]), call.index + 1);
  call.cycle_times = number(fields[3]);
  call.in_our_library = fields[4] == "1";
  call.place = fields[5];
  return call;
}

// A line that is none of ours, because a process wrote garbage, is left out.
std::vector<StackCall> read_calls(const Lines& lines) {
  std::vector<StackCall> calls;
  for (const std::string_view line : lines) {
    const Lines fields = split(line, '\t');
    if (fields.size() == 6 && fields[0] == "call") calls.push_back(read_call(fields, calls.size()));
    if (fields.size() >= 3 && fields[0] == "in" && !calls.empty())
      calls.back().functions.push_back({fields[1], fields[2], fields.size() > 3 ? fields[3] : std::string_view()});
  }
  return calls;
}

// "program(_Z3foov+0x1d) [0x12]", as backtrace_symbols_fd() writes it
std::string readable_address(std::string_view line) {
  const std::size_t open = line.find("(_Z");
  const std::size_t plus = line.find('+', open);
  if (open == std::string_view::npos || plus == std::string_view::npos) return std::string(line);
  const std::string symbol(line.substr(open + 1, plus - open - 1));
  return std::string(line.substr(0, open + 1)) + demangle(symbol) + std::string(line.substr(plus));
}

std::string readable_stack(const Lines& addresses, const Lines& names, OwnCalls own) {
  std::vector<StackCall> calls = read_calls(names);
  if (calls.empty()) {
    std::string text;
    for (const std::string_view line : addresses) text += readable_address(line) + '\n';
    return text;
  }
  name_inlined_lambdas(calls);
  drop_takers(calls);
  if (own != OwnCalls::keep_all) {
    drop_callers_of_work(calls);
    drop_own(calls, own);
  }
  fold_alike(calls);
  return text_of(calls);
}

}  // namespace

std::string demangle(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> made(
      name.starts_with("_Z") ? abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status) : nullptr, &std::free);
  if (made == nullptr) return name;
  const std::string text = made.get();
  return text.substr(0, text.find(" [clone "));  // the compiler's variants of one function
}

std::string readable_stacks(const std::string& text, OwnCalls own) {
  if (text.find("miniray: a bug in MiniRay") != std::string::npos) own = OwnCalls::keep_all;
  std::string readable;
  Lines addresses, names;
  enum class In { other_text, address_lines, name_lines } in = In::other_text;
  const auto finish = [&](bool whole) {
    if (in != In::other_text) readable += readable_stack(addresses, whole ? names : Lines(), own);
    addresses.clear();
    names.clear();
    in = In::other_text;
  };
  for (const std::string_view line : split(text, '\n')) {
    if (line.starts_with(stack_title) && line.ends_with(':')) {
      finish(false);
      readable.append(line).append("\n");
      in = In::address_lines;
    } else if (in != In::other_text && line == stack_ends) {
      finish(true);
    } else if (in != In::other_text && line == names_begin) {
      names.clear();
      in = In::name_lines;
    } else if (in == In::other_text) {
      readable.append(line).append("\n");
    } else {
      (in == In::name_lines ? names : addresses).push_back(line);
    }
  }
  finish(false);
  return readable;
}

bool has_unfinished_stack(std::string_view text) {
  bool unfinished = false;
  for (const std::string_view line : split(text, '\n')) {
    if (line.starts_with(stack_title)) unfinished = true;
    if (line == stack_ends) unfinished = false;
  }
  return unfinished;
}

}  // namespace miniray
