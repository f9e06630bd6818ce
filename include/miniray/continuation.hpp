// Futures that are made of others: then(), when_all() and when_any(). They drive what they wait for, as every future
// does: get() of a Future runs the pools and takes the replies that it needs.
//
//   auto sum = miniray::when_all(a, b).then([](const std::tuple<double, double>& both) { ... });
//   std::vector<double> results = miniray::when_all(futures).get(2s);
//   std::size_t first = miniray::when_any(futures).get();    // its position
//
// Any thread may use such a future if any thread may use the futures that it is made of.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "miniray/export.hpp"
#include "miniray/future.hpp"

namespace MINIRAY_API miniray {

/// The inside of a Future. It computes its value in the call that notices that its sources are done.
class PendingLocal : public Pending {
 public:
  enum class Needs : std::uint8_t { all, any };  ///< of its sources
  PendingLocal(std::string text, std::vector<std::shared_ptr<Pending>> sources, Needs needs);
  ~PendingLocal() override;
  /// Has the sources tell it when they are done. To be called once.
  void begin() { listen(); }

  bool wait(std::optional<double> timeout_s) override;
  void look() override;
  void cancel() override;
  [[nodiscard]] std::string describe_wait() const override;
  bool add_sources(std::vector<std::shared_ptr<Pending>>& sources) const override;
  std::shared_ptr<Pending> next_source() override;
  void wait_here(std::optional<double> timeout_s) override;

 protected:
  /// Called once the sources are done, with the position of one that is. It stores the value and returns null; or it
  /// returns a source that it still has to wait for, and is called again then. What it throws is the failure.
  virtual std::shared_ptr<Pending> compute(std::size_t first_done) = 0;
  /// Called once, when the value is there or the failure. It drops what only compute() needs.
  virtual void drop_inputs() = 0;

 private:
  struct Inside;
  enum class NoticedBy : std::uint8_t { waiting, callback, dropped_callback };
  void listen();
  [[nodiscard]] std::vector<std::shared_ptr<Pending>> sources() const;
  [[nodiscard]] bool claim(std::size_t& first_done);
  void advance(NoticedBy how);

  const std::unique_ptr<Inside> inside_;
};

namespace detail {

/// Its value is what `function` returns: itself, or the result of the future that it returns.
template <class Result, class Function>
class PendingFunction : public PendingLocal {
 public:
  PendingFunction(std::string text, std::vector<std::shared_ptr<Pending>> sources, Needs needs, Function compute_value)
      : PendingLocal(std::move(text), std::move(sources), needs), function_(std::move(compute_value)) {}
  [[nodiscard]] void* slot() override { return &value_; }

 protected:
  std::shared_ptr<Pending> compute(std::size_t first_done) override {
    if constexpr (IsFuture<Returned>::value) {
      if (!inner_.valid()) {
        inner_ = (*function_)(first_done);
        return inner_.pending();
      }
      keep([&] { return inner_.get(); });
    } else {
      keep([&]() -> decltype(auto) { return (*function_)(first_done); });
    }
    return nullptr;
  }
  // The futures that it refers to may in turn refer to others, and would be destroyed one inside the other.
  void drop_inputs() override {
    function_.reset();
    inner_ = {};
  }

 private:
  using Returned = std::remove_cvref_t<std::invoke_result_t<Function&, std::size_t>>;
  template <class Produce>
  void keep(Produce produce) {
    if constexpr (std::is_void_v<Result>)
      produce();
    else
      value_.emplace(produce());
  }

  std::optional<Function> function_;
  std::conditional_t<IsFuture<Returned>::value, Returned, char> inner_{};  // the future that the function returned
  std::optional<Stored<Result>> value_;
};

template <class Result, class Function>
[[nodiscard]] Future<Result> make_future(std::string text, std::vector<std::shared_ptr<Pending>> sources,
                                         PendingLocal::Needs needs, Function compute_value) {
  const auto pending = std::make_shared<PendingFunction<Result, Function>>(std::move(text), std::move(sources), needs,
                                                                           std::move(compute_value));
  pending->begin();
  return Future<Result>(pending);
}

// What when_all() has of a future: its result, or nothing that matters.
template <class Result, class Base>
[[nodiscard]] auto result_or_nothing(const FutureOf<Result, Base>& future) {
  if constexpr (std::is_void_v<Result>) {
    future.get();
    return std::monostate();
  } else {
    return future.get();
  }
}

template <class Future>
[[nodiscard]] std::vector<std::shared_ptr<Pending>> insides_of(const std::vector<Future>& futures) {
  std::vector<std::shared_ptr<Pending>> insides;
  insides.reserve(futures.size());
  for (const Future& future : futures) insides.push_back(future.pending());
  return insides;
}

[[noreturn]] void throw_nothing_to_wait_for();

}  // namespace detail

template <class Result, class Base>
template <class Function>
auto FutureOf<Result, Base>::then(Function function) const -> Future<
    typename detail::Unwrapped<std::remove_cvref_t<typename detail::Continued<Function, Result>::type>>::type> {
  using Returned = std::remove_cvref_t<typename detail::Continued<Function, Result>::type>;
  return detail::make_future<typename detail::Unwrapped<Returned>::type>(
      this->pending()->function, {this->pending()}, PendingLocal::Needs::all,
      [future = *this, function = std::move(function)](std::size_t /*first_done*/) mutable -> decltype(auto) {
        if constexpr (std::is_void_v<Result>) {
          future.get();
          return function();
        } else {
          return function(future.get());
        }
      });
}

/// Returns the future of all results, in order; a void result is a std::monostate in the tuple. It is done when all of
/// them are, and if some have failed, it has the failure of the first of those. Throws UsageError if one refers to
/// nothing.
template <class... Results, class... Bases>
[[nodiscard]] auto when_all(const FutureOf<Results, Bases>&... futures) {
  static_assert(sizeof...(futures) > 0, "when_all has nothing to wait for: give it a future");
  using All = std::tuple<std::conditional_t<std::is_void_v<Results>, std::monostate, Results>...>;
  return detail::make_future<All>(
      "when_all", {futures.pending()...}, PendingLocal::Needs::all,
      [=](std::size_t /*first_done*/) { return All{detail::result_or_nothing(futures)...}; });
}
/// The same for futures of one type; their number may be 0. The result is a std::vector, or void.
template <class Result, class Base>
[[nodiscard]] auto when_all(const std::vector<FutureOf<Result, Base>>& futures) {
  using All = std::conditional_t<std::is_void_v<Result>, void, std::vector<detail::Stored<Result>>>;
  return detail::make_future<All>("when_all", detail::insides_of(futures), PendingLocal::Needs::all,
                                  [futures](std::size_t /*first_done*/) {
                                    if constexpr (std::is_void_v<Result>) {
                                      for (const auto& future : futures) future.get();
                                    } else {
                                      All results;
                                      results.reserve(futures.size());
                                      for (const auto& future : futures) results.push_back(future.get());
                                      return results;
                                    }
                                  });
}

/// Returns the future of the position of one that is done, whether it has failed or not: of the first in order, if
/// several are done when that is noticed. The others go on. Waiting for futures of different pools, or for tasks and
/// calls together, takes turns of limits::wait_turn_ms. Throws UsageError if there are none.
template <class... Results, class... Bases>
[[nodiscard]] Future<std::size_t> when_any(const FutureOf<Results, Bases>&... futures) {
  static_assert(sizeof...(futures) > 0, "when_any has nothing to wait for: give it a future");
  return detail::make_future<std::size_t>("when_any", {futures.pending()...}, PendingLocal::Needs::any,
                                          [](std::size_t first_done) { return first_done; });
}
template <class Result, class Base>
[[nodiscard]] Future<std::size_t> when_any(const std::vector<FutureOf<Result, Base>>& futures) {
  if (futures.empty()) detail::throw_nothing_to_wait_for();
  return detail::make_future<std::size_t>("when_any", detail::insides_of(futures), PendingLocal::Needs::any,
                                          [](std::size_t first_done) { return first_done; });
}

}  // namespace miniray
