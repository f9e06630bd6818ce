// A rank's connections to the ranks of other machines. A lifeline to each of them carries news: that the group is
// broken, or that a rank has left; if it ends without such news, that rank has died. The ranks that lead their machines
// also have a line for data between each two of them. Nothing here waits. Input of peers is checked.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/system.hpp"
#include "group/segment.hpp"
#include "miniray/channel.hpp"

namespace miniray {

class GroupLinks {
 public:
  struct Lifeline {
    std::size_t rank;
    Channel channel;
    std::optional<std::uint32_t> left_after;  // the rank has left after this many calls
    std::optional<Deadline> ended_until;      // the rank has ended; its part in the call may be done until then
    bool told = false;                        // the rank has told why the group is broken
  };
  struct DataLine {
    std::size_t node;
    Channel channel;
    std::optional<Message> arrived;
    std::optional<Deadline> ended_until;
  };
  /// What a rank that leads its machine sends to another one: its call, and data.
  struct Parcel {
    std::uint64_t number;  ///< of the exchange
    GroupCall call;
    std::vector<Buffer> pieces;
  };

  GroupLinks(std::vector<Lifeline> lifelines, std::vector<DataLine> data, int unreachable_ms)
      : lifelines_(std::move(lifelines)), data_(std::move(data)), unreachable_ms_(unreachable_ms) {}

  struct Fault {
    std::size_t rank;         ///< which has ended or left; meaningless if there is a reason
    std::string what;         ///< " has died"
    std::string reason = {};  ///< the whole reason, if another rank has told it
  };
  /// Reads the news. Returns why this rank must not wait any longer in its call of this number, if there is a reason.
  [[nodiscard]] std::optional<Fault> look(std::uint32_t call);
  /// Tells all ranks of other machines that the group is broken, which this rank has found in its call of this number;
  /// or that this rank leaves. Does not throw.
  void tell(const std::string& reason, std::uint32_t call);
  void leave(std::uint32_t calls);

  // One parcel goes to every other node, and one comes from each.
  void send(std::size_t node, const Parcel& parcel);
  /// Sends and reads what is possible now. Returns whether every parcel was sent and has come.
  [[nodiscard]] bool advance();
  /// Waits at most this long until advance() may do something, or there may be news.
  void wait(int timeout_ms);
  /// The nodes whose parcel has not come.
  [[nodiscard]] std::vector<std::size_t> missing() const;
  /// Takes the parcel of a node after advance() has returned true. Throws ProtocolError.
  [[nodiscard]] Parcel take(std::size_t node);

 private:
  void read(Lifeline& line);
  void send_news(const Value& news);
  [[nodiscard]] std::string ended_how(const Channel& channel) const;
  [[nodiscard]] DataLine& line_to(std::size_t node);

  std::vector<Lifeline> lifelines_;
  std::vector<DataLine> data_;
  int unreachable_ms_;
  struct Told {
    std::string reason;
    std::uint32_t call;
  };
  std::optional<Told> told_;
  std::vector<pollfd> watched_;
};

}  // namespace miniray
