// The implementation of Channel: a socket, the inbox of received messages, the outbox of unsent bytes, and shared
// memory. channel_receive.cpp and channel_send.cpp have the two directions.
#pragma once

#include <atomic>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "base/system.hpp"
#include "channel/inbox.hpp"
#include "channel/kept_buffers.hpp"
#include "channel/recent.hpp"
#include "channel/ring.hpp"
#include "channel/seal.hpp"
#include "channel/shared_memory.hpp"
#include "channel/spin.hpp"
#include "miniray/channel.hpp"
#include "wire/frame.hpp"
#include "wire/in_place_memory.hpp"

namespace miniray {

class WaitSet;

class Channel::State {
 public:
  static constexpr const char* class_name = "Channel";
  State(Fd socket, ChannelOptions options);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  enum class Patience : std::uint8_t { wait, none };
  bool send(const Message& message, Patience patience);
  bool flush(Patience patience);
  std::optional<Message> receive(const ReceiveOptions& options, Patience patience);
  bool ready();
  /// The next receive() that finds no message throws this error.
  void postpone(std::exception_ptr error) { postponed_ = std::move(error); }
  bool was_dropped(std::int64_t call);
  void pump();
  void put_back(Message message);
  void discard_received();
  void look_around();
  void end();
  void close();
  void check_invariants() const;
  // Takes the socket out of a channel that was not used, to send it to another process; and puts it back.
  Fd take_socket();
  void restore_socket(Fd taken);
  int fileno();
  [[nodiscard]] bool may_share() const { return may_share_; }
  [[nodiscard]] std::uint64_t arrived() const { return inbox_.arrived(); }
  [[nodiscard]] bool has_unsent() const { return !outbox_.empty() || (options.seal && options.seal->has_unsent()); }
  [[nodiscard]] bool inbox_is_full() const { return inbox_.is_full(options.inbox_bytes_max); }
  [[nodiscard]] const Message* newest() const { return inbox_.newest(); }
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] int end_error() const { return end_error_; }
  [[nodiscard]] bool cut() const { return cut_; }
  /// Throws UsageError in a process that inherited the channel by a fork.
  void require_ours() const;

  ChannelOptions options;
  Fd socket;
  RecentMessages sent, received;

  // The place of this channel in the WaitSet that watches it. See wait_any.cpp.
  struct WaitLink {
    std::atomic<WaitSet*> set = nullptr;
    std::size_t position = 0;
    std::uint64_t stamp = 0;
    bool pending = false;  // in the set's list of channels that it looks at without being told by the kernel
  } wait;
  Lane looked_for = Lane::messages;
  [[nodiscard]] bool has_message() const { return !inbox_.empty(looked_for) || reader_.holds_back() || ended_; }

 private:
  // Held during every call. The constructor throws UsageError in a second thread, in a signal handler that interrupted
  // a call, and in a process that inherited the channel by a fork.
  class InUse {
   public:
    explicit InUse(State& state);
    InUse(const InUse&) = delete;
    InUse& operator=(const InUse&) = delete;
    ~InUse();

   private:
    State& state_;
  };
  // The rest of a frame that is being written: pieces of memory, of which the first may be partly written.
  struct Outgoing {
    Outgoing() { pieces.reserve(4); }
    std::vector<iovec> pieces;
    std::size_t piece = 0;
    std::vector<int> descriptors;  // sent with the first byte
    bool begun = false;

    void append(const void* data, std::size_t size);
    [[nodiscard]] bool done() const { return piece == pieces.size(); }
    [[nodiscard]] std::span<const iovec> rest() const { return std::span(pieces).subspan(piece); }
    void wrote(std::size_t bytes);
  };

  // A descriptor that goes with a frame: a copy of the one of memory made in place, or one that is passed for good.
  struct PassedWithFrame {
    Fd copy;
    InPlaceMemory* memory = nullptr;
    PassedDescriptor* given = nullptr;
    [[nodiscard]] int number() const { return given != nullptr ? given->descriptor.get() : copy.get(); }
    [[nodiscard]] Fd take() { return std::move(given != nullptr ? given->descriptor : copy); }
  };
  struct Placement {
    std::vector<BufferEntry> entries;
    std::vector<SlotWriter::Shared> shared;  // slots that are new to the peer
    std::vector<PassedWithFrame> passed;     // in the order of the entries
    std::string announcement;                // frames that tell the peer about new slots and about dropped ones
    [[nodiscard]] std::size_t descriptors() const { return shared.size() + passed.size(); }
  };

  void check_passed(const Message& message) const;
  [[nodiscard]] BufferPlace place_buffer(const Buffer& buffer, Placement& placement,
                                         std::vector<std::uint32_t>& unshared);
  Placement place_buffers(const Message& message);
  void undo_placement(Placement& placement);
  void keep_descriptors(Placement& placement);
  bool write_some(Outgoing& outgoing);  // returns false if the kernel takes no more
  bool write(Outgoing& outgoing, Patience patience);
  void keep_rest(const Outgoing& outgoing);
  void drop_outbox();
  bool flush_outbox(Patience patience);
  void flush_if_possible();
  void share_ring(Patience patience);
  bool send_through_ring(std::span<const iovec> frame);
  bool send_without_buffers(const Message& message);
  [[nodiscard]] bool socket_is_there(std::int64_t now);
  void ring_bell();
  void wait_for_room();
  void close_broken();
  [[noreturn]] void fail_broken();
  system::Transfer read_once(system::Block block);
  void take_in(std::size_t bytes);
  std::size_t open_next();  // returns how many bytes of a sealed record the reader now has
  void absorb_parsed();
  void send_last_record();
  bool fill(system::Block block);  // returns whether something came
  void absorb_frames();
  void read_rest();
  void require_room_for(Lane lane) const;
  bool absorb_ring();  // returns whether a frame was there
  [[nodiscard]] bool leaves_frames_in_ring() const { return !polled_ && wait.set == nullptr; }
  bool take_from_ring(const ReceiveOptions& asked, std::optional<Message>& message);
  bool ask_for_wake_ups();  // returns whether a frame was there
  bool spin();              // returns whether something came
  void absorb(Frame frame);
  void note_received(const Message& message);
  [[nodiscard]] Buffer buffer_at(const BufferEntry& entry);
  [[nodiscard]] Fd take_descriptor(const char* what);
  void wait_for_more(const Deadline& deadline);
  void notice_gone_peer();
  void require_front_fits(const ReceiveOptions& asked) const;
  void interrupted();
  [[noreturn]] void fail_closed();
  [[noreturn]] void fail_ended(const char* operation) const;

  bool is_local_;   // a Unix-domain socket, which passes descriptors
  bool may_share_;  // is_local_, and options.shared_memory allows it
  std::atomic<bool> in_use_ = false;
  std::atomic<bool> polled_ = false;  // others wait for the socket between calls, so that frames have to wake them
  std::uint64_t generation_;
  FrameReader reader_;
  std::vector<Fd> arrived_descriptors_;
  SlotReader slots_in_;
  SlotWriter slots_out_;
  std::optional<RingReader> ring_in_;
  std::optional<RingWriter> ring_out_;
  std::int64_t socket_seen_ns_ = 0;
  std::uint64_t small_frames_ = 0;    // how many were sent
  std::uint64_t written_bytes_ = 0;   // how many were written to the socket; a record in the ring refers to it
  std::uint64_t absorbed_bytes_ = 0;  // how many bytes of complete frames came from the socket
  Inbox inbox_;
  KeptBuffers kept_;
  std::set<std::int64_t> dropped_;  // calls that the peer has dropped
  std::int64_t looked_for_drops_ns_ = 0;
  std::exception_ptr postponed_;  // what a wait for several channels met; the next receive() throws it
  bool ended_ = false;            // nothing more will come from the socket
  bool peer_gone_ = false;        // peer_is_gone() has said so, and not the socket
  bool cut_ = false;              // a sealed stream ended without its last record
  int end_error_ = 0;             // the errno with which the stream ended; 0 if in good order
  bool sent_away_ = false;        // this end was put into a message
  bool discards_ = false;         // received messages are dropped
  std::string prefix_;            // of the frame that is being sent; a member, so that its memory is used again
  std::string outbox_;            // a copy of the rest of a frame that a call could not finish
  std::size_t outbox_written_ = 0;
  std::vector<Fd> outbox_descriptors_;
  Spin spin_;
};

}  // namespace miniray
