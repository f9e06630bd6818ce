#include "group/links.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.hpp"
#include "miniray/error.hpp"
#include "wire/utf8.hpp"

namespace miniray {
namespace {

Value head_of(const GroupLinks::Parcel& parcel) {
  return List{parcel.number,
              static_cast<std::int64_t>(parcel.call.kind),
              name_of(parcel.call.dtype),
              static_cast<std::int64_t>(parcel.call.op),
              parcel.call.root,
              parcel.call.bytes};
}

GroupLinks::Parcel parse(Message message) {
  GroupLinks::Parcel parcel{0, {}, std::move(message.buffers)};
  message.buffers.clear();
  message.places.clear();
  const Value head = decode(message);
  const auto number_up_to = [&](std::size_t at, std::int64_t most) {
    const std::int64_t number = head.at(at).integer();
    if (number < 0 || number > most) throw ValueError("field " + std::to_string(at) + " is out of range");
    return number;
  };
  parcel.number = head.at(0).unsigned_integer();
  parcel.call.kind =
      static_cast<GroupCall::Kind>(number_up_to(1, static_cast<std::int64_t>(GroupCall::Kind::reduce_scatter)));
  if (!parse_dtype(head.at(2).string(), parcel.call.dtype)) throw ValueError("there is no such dtype");
  parcel.call.op = static_cast<ReduceOp>(number_up_to(3, static_cast<std::int64_t>(ReduceOp::max)));
  parcel.call.root = static_cast<std::int32_t>(std::clamp<std::int64_t>(head.at(4).integer(), -1, INT32_MAX));
  parcel.call.bytes = head.at(5).unsigned_integer();
  return parcel;
}

}  // namespace

// A reset comes from a host that is alive. Other errors mean silence.
std::string GroupLinks::ended_how(const Channel& channel) const {
  const int error = channel.end_error();
  if (error == 0 || error == ECONNRESET || error == EPIPE) return " has died";
  return " cannot be reached: its host did not answer for " + std::to_string(unreachable_ms_ / 1000) +
         " s (check the host and the network)";
}

void GroupLinks::read(Lifeline& line) {
  try {
    while (std::optional<Message> message = line.channel.try_receive()) {
      const Value news = decode(*message);
      const Value* const left = news.find("left");
      // Each is news once. So a rank that never stops sending does not keep this one here.
      if (left != nullptr ? line.left_after.has_value() : std::exchange(line.told, true))
        throw ProtocolError("a rank sent the same news twice");
      if (left != nullptr) {
        line.left_after = static_cast<std::uint32_t>(left->unsigned_integer());
        continue;
      }
      Told told{to_utf8_line(news["broken"].string()), static_cast<std::uint32_t>(news["call"].unsigned_integer())};
      if (told.reason.empty()) throw ProtocolError("a rank says that the group is broken, and not why");
      if (!told_) told_ = std::move(told);
    }
  } catch (const EndOfStream&) {
    line.ended_until = Deadline::in_ms(limits::group_ended_rank_ms);
  } catch (const Error&) {  // it does not keep to the protocol, so it no longer counts as a rank of this group
    line.channel.close();
    line.ended_until = Deadline::in_ms(0);
  }
}

std::optional<GroupLinks::Fault> GroupLinks::look(std::uint32_t call) {
  watched_.clear();
  for (const Lifeline& line : lifelines_)
    watched_.push_back({line.ended_until ? -1 : line.channel.fileno(), POLLIN, 0});
  (void)system::poll_many(watched_, 0);
  for (std::size_t i = 0; i < lifelines_.size(); ++i)
    if (watched_[i].fd >= 0 && watched_[i].revents != 0) read(lifelines_[i]);
  // If the rank that sent the news is in a later call, all ranks have done their part in this one.
  if (told_ && told_->call <= call) return Fault{0, "", told_->reason};
  for (const Lifeline& line : lifelines_) {
    if (line.left_after && *line.left_after < call) return Fault{line.rank, " has left the group"};
    if (!line.left_after && line.ended_until && line.ended_until->passed())
      return Fault{line.rank, ended_how(line.channel)};
  }
  for (const DataLine& line : data_)  // the lifeline to the same rank should have told the reason
    if (line.ended_until && line.ended_until->passed())
      for (const Lifeline& other : lifelines_)
        if (other.channel.peer() == line.channel.peer()) return Fault{other.rank, ended_how(line.channel)};
  return std::nullopt;
}

void GroupLinks::send_news(const Value& news) {
  const Message message = encode(news);
  for (Lifeline& line : lifelines_) {
    try {
      if (!line.ended_until) (void)line.channel.send_some(message);
    } catch (const Error&) {  // that rank has ended
    }
  }
}

void GroupLinks::tell(const std::string& reason, std::uint32_t call) {
  if (!told_)
    send_news({{"broken", to_utf8(reason)}, {"call", call}});  // if another rank has told this one, it has told all
}

void GroupLinks::leave(std::uint32_t calls) { send_news({{"left", calls}}); }

GroupLinks::DataLine& GroupLinks::line_to(std::size_t node) {
  const auto found = std::ranges::find(data_, node, &DataLine::node);
  MINIRAY_CHECK(found != data_.end(), node, data_.size());
  return *found;
}

void GroupLinks::send(std::size_t node, const Parcel& parcel) {
  DataLine& line = line_to(node);
  const Value head = head_of(parcel);
  Message message = encode(head);
  message.buffers = parcel.pieces;
  try {
    if (!line.ended_until) (void)line.channel.send_some(message);
  } catch (const EndOfStream&) {
    line.ended_until = Deadline::in_ms(limits::group_ended_rank_ms);
  }
}

bool GroupLinks::advance() {
  bool complete = true;
  for (DataLine& line : data_) {
    try {
      if (!line.ended_until && line.channel.has_unsent()) (void)line.channel.flush_some();
      if (!line.arrived && !line.ended_until) line.arrived = line.channel.try_receive();
    } catch (const EndOfStream&) {
      line.ended_until = Deadline::in_ms(limits::group_ended_rank_ms);
    } catch (const Error&) {  // it sent no frame, or one that is too large
      line.channel.close();
      line.ended_until = Deadline::in_ms(0);
    }
    complete = complete && line.arrived && (line.ended_until || !line.channel.has_unsent());
  }
  return complete;
}

void GroupLinks::wait(int timeout_ms) {
  watched_.clear();
  for (const DataLine& line : data_) {
    if (line.ended_until) continue;
    const bool unsent = line.channel.has_unsent();
    const auto events = static_cast<short>((line.arrived ? 0 : POLLIN) | (unsent ? POLLOUT : 0));
    if (events != 0) watched_.push_back({line.channel.fileno(), events, 0});
  }
  for (const Lifeline& line : lifelines_)
    if (!line.ended_until && !line.left_after) watched_.push_back({line.channel.fileno(), POLLIN, 0});
  (void)system::poll_many(watched_, timeout_ms);
}

std::vector<std::size_t> GroupLinks::missing() const {
  std::vector<std::size_t> nodes;
  for (const DataLine& line : data_)
    if (!line.arrived) nodes.push_back(line.node);
  return nodes;
}

GroupLinks::Parcel GroupLinks::take(std::size_t node) {
  DataLine& line = line_to(node);
  MINIRAY_CHECK(line.arrived.has_value(), node);
  Message message = std::move(*line.arrived);
  line.arrived.reset();
  try {
    return parse(std::move(message));
  } catch (const ValueError& error) {
    throw ProtocolError(std::string("a parcel of a group is malformed: ") + error.what());
  }
}

}  // namespace miniray
