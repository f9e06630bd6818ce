// The coordinator's way into a worker server: connects, proves itself, asks, and takes the answer, without waiting, so
// that many can be on their way at once.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "base/network.hpp"
#include "channel/authentication.hpp"
#include "worker/request.hpp"

namespace miniray {

class Connector {
 public:
  /// `where` is how errors call the server.
  Connector(std::vector<network::Address> addresses, std::string where, const Key& key, const Request& request);

  [[nodiscard]] bool done() const { return answer_.has_value() || failure_; }
  /// The server knows what is wanted, and may be importing it: that takes as long as it takes.
  [[nodiscard]] bool asked() const { return step_ == Step::asking; }
  /// Goes on as far as it can. Refused, or another Error, becomes its failure.
  void advance();
  /// It is not let in.
  void fail(std::exception_ptr failure) { failure_ = std::move(failure); }
  [[nodiscard]] const std::exception_ptr& failure() const { return failure_; }
  [[nodiscard]] int fileno() const { return socket_.get(); }
  [[nodiscard]] short events() const;
  [[nodiscard]] const Value& answer() const { return *answer_; }
  [[nodiscard]] const std::string& where() const { return where_; }
  /// What it was doing, for a time-out's text.
  [[nodiscard]] std::string doing() const;
  /// The connection, to be used by a channel.
  [[nodiscard]] Fd take_socket();

 private:
  enum class Step : std::uint8_t { connecting, proving, asking };
  void go_on();
  void try_next_address();
  void connected();
  void send(std::string_view bytes);
  void flush();
  bool receive(std::string& into, std::size_t wanted);  // false if more must come

  std::vector<network::Address> addresses_;
  std::size_t next_address_ = 0;
  std::string where_;
  Key key_;
  std::string request_;
  int unreachable_ms_;
  Fd socket_;
  Step step_ = Step::connecting;
  std::optional<Handshake> handshake_;
  std::string unsent_, input_;
  std::size_t answer_bytes_ = 0;
  std::optional<Value> answer_;
  std::exception_ptr failure_;
};

/// How long connectors may take.
struct ConnectPatience {
  Deadline deadline;                                             ///< to be let in
  Deadline at_work = Deadline::in_ms(limits::start_timeout_ms);  ///< while a server is at work for one of them
};
/// Takes each of them as far as it can go, without waiting. Returns true when each has its answer or its failure, which
/// is a TimeoutError for those that took too long.
[[nodiscard]] bool advance_all(std::span<Connector* const> connectors, const ConnectPatience& patience);
/// The same, and waits until that returns true.
void connect_all(std::span<Connector* const> connectors, const Deadline& deadline,
                 const std::function<void()>& on_interrupt);

}  // namespace miniray
