// The coordinator's connection to a worker server while it is being made: it connects, proves that it has the key,
// sends a request and receives the answer. It never waits, so that many connections can be made at once.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "base/network.hpp"
#include "channel/authentication.hpp"
#include "worker/request.hpp"

namespace miniray {

/// In the text of a refusal without a reason. A cluster with a tunnel looks for it, and explains it.
inline constexpr std::string_view server_closed = "the server closed the connection";

class Connector {
 public:
  /// Begins to connect to the first address; the others are tried after it. `where` is the server's name in errors.
  /// `encrypt` is that of sealing_for().
  Connector(std::vector<network::Address> addresses, std::string where, const Key& key, const Request& request,
            std::optional<bool> encrypt);

  [[nodiscard]] bool done() const { return answer_.has_value() || failure_; }
  /// Returns whether the request was sent. From then on, the server may be importing the work function, which may take
  /// a long time.
  [[nodiscard]] bool request_sent() const { return step_ == Step::asking; }
  /// Does the next steps that are possible without waiting. It does not throw: if it fails, failure() returns a Refused
  /// or another Error.
  void advance();
  /// Ends the attempt with a failure, and that of the partner.
  void fail(std::exception_ptr failure);
  /// Tells two connectors, neither of which is useful without the other, about each other. Both must stay where they
  /// are until both are done.
  static void pair_up(Connector& one, Connector& other);
  [[nodiscard]] const std::exception_ptr& failure() const { return failure_; }
  [[nodiscard]] int fileno() const { return socket_.get(); }
  [[nodiscard]] short events() const;
  [[nodiscard]] const Value& answer() const { return *answer_; }
  [[nodiscard]] const std::string& where() const { return where_; }
  /// Returns the current step as words, such as "connect to node2:10000", for the text of an error.
  [[nodiscard]] std::string operation() const;
  /// Returns the connected socket, and stops owning it.
  [[nodiscard]] SealedSocket take_socket();

 private:
  enum class Step : std::uint8_t { connecting, proving, asking };
  void advance_or_throw();
  void read_answer();
  void try_next_address();
  [[nodiscard]] std::string closed_text() const;
  void connected();
  void send(std::string_view bytes);
  void flush();
  bool receive(std::string& into, std::size_t wanted);  // returns false if not all bytes have arrived

  std::vector<network::Address> addresses_;
  std::size_t next_address_ = 0;
  std::string where_;
  Key key_;
  std::optional<bool> encrypt_;
  Request::Kind kind_;
  std::string request_;
  int unreachable_ms_;
  Fd socket_;
  Step step_ = Step::connecting;
  std::optional<Handshake> handshake_;
  std::shared_ptr<Seal> seal_;
  std::string unsent_, input_;
  std::size_t answer_bytes_ = 0;
  std::optional<Value> answer_;
  std::exception_ptr failure_;
  Connector* partner_ = nullptr;
};

/// How long connectors may take.
struct ConnectPatience {
  Deadline deadline;                                             ///< until their requests are sent
  Deadline at_work = Deadline::in_ms(limits::start_timeout_ms);  ///< while a server works on a request
};
/// Advances each connector without waiting. Returns true when each has its answer or its failure; a connector that took
/// too long has a TimeoutError.
[[nodiscard]] bool advance_all(std::span<Connector* const> connectors, const ConnectPatience& patience);
/// Waits until advance_all() returns true. Throws what on_interrupt throws.
void connect_all(std::span<Connector* const> connectors, const Deadline& deadline,
                 const std::function<void()>& on_interrupt);

}  // namespace miniray
