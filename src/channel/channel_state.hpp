// The inside of a Channel: one socket, what has come in, what could not yet go out, and the shared memory beside it.
#pragma once

#include <atomic>
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
#include "channel/shared_memory.hpp"
#include "channel/spin.hpp"
#include "miniray/channel.hpp"
#include "wire/frame.hpp"

namespace miniray {

class WaitSet;

class Channel::State {
 public:
  State(Fd socket, ChannelOptions options);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  enum class Patience : std::uint8_t { wait, none };
  bool send(const Message& message, Patience patience);
  bool flush(Patience patience);
  std::optional<Message> receive(const ReceiveOptions& options, Patience patience);
  bool ready();
  bool was_dropped(std::int64_t call);
  void pump();
  void put_back(Message message);
  void discard_received();
  /// Whether the peer is gone without its socket having told.
  void look_around();
  void end();
  void close();
  void check_invariants() const;
  [[nodiscard]] std::uint64_t arrived() const { return inbox_.arrived(); }
  [[nodiscard]] bool has_unsent() const { return !outbox_.empty(); }
  [[nodiscard]] bool inbox_is_full() const { return inbox_.bytes() >= options.inbox_bytes_max; }
  [[nodiscard]] const Message* newest() const { return inbox_.newest(); }
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] int end_error() const { return end_error_; }

  ChannelOptions options;
  Fd socket;
  RecentMessages sent, received;

  // Where a wait_any keeps this channel. See wait_any.cpp.
  struct WaitLink {
    std::atomic<WaitSet*> set = nullptr;
    std::size_t position = 0;
    std::uint64_t stamp = 0;
    bool listed = false;  // in the set's list of channels that need a look whatever the kernel says
  } wait;
  Lane looked_for = Lane::messages;
  [[nodiscard]] bool has_message() const { return !inbox_.empty(looked_for) || reader_.holds_back() || ended_; }

 private:
  // Refuses a second thread, a signal handler's re-entry, and a process that merely inherited the object.
  class InUse {
   public:
    explicit InUse(State& state);
    InUse(const InUse&) = delete;
    InUse& operator=(const InUse&) = delete;
    ~InUse();

   private:
    State& state_;
  };
  // What is still to be written of a frame: pieces of memory, the first of them partly done.
  struct Outgoing {
    Outgoing() { pieces.reserve(4); }
    std::vector<iovec> pieces;
    std::size_t piece = 0;
    std::vector<int> descriptors;  // go with the first byte
    bool begun = false;

    void append(const void* data, std::size_t size);
    [[nodiscard]] bool done() const { return piece == pieces.size(); }
    [[nodiscard]] std::span<const iovec> rest() const { return std::span(pieces).subspan(piece); }
    void wrote(std::size_t bytes);
  };

  struct Placement {
    std::vector<BufferEntry> entries;
    std::vector<SlotWriter::Shared> shared;  // slots that are new to the peer
    std::string announcement;                // the frames that tell it of them, and of those that are gone
  };

  Placement place_buffers(const Message& message);
  void undo_placement(Placement& placement);
  bool write_some(Outgoing& outgoing);  // false if the kernel takes no more
  bool write(Outgoing& outgoing, Patience patience);
  void keep_rest(const Outgoing& outgoing);
  void drop_outbox();
  bool flush_outbox(Patience patience);
  void flush_if_possible();
  void share_ring(Patience patience);
  bool send_through_ring(const Placement& placement, const Outgoing& outgoing);
  [[nodiscard]] bool socket_is_there();
  void ring_bell();
  void wait_for_room();
  void give_up();
  system::Transfer read_once(system::Block block);
  bool fill(system::Block block);  // false if nothing came
  void absorb_frames();
  bool absorb_ring();  // false if nothing was there
  bool spin();         // true if something came
  void absorb(Frame frame);
  [[nodiscard]] Buffer buffer_at(const BufferEntry& entry);
  void wait_for_more(const Deadline& deadline);
  void notice_gone_peer();
  void require_front_fits(const ReceiveOptions& asked) const;
  Message take_front(Lane lane);
  void interrupted();
  [[noreturn]] void fail_closed();
  [[noreturn]] void fail_ended(const char* operation) const;

  bool is_local_;   // a Unix-domain socket: descriptors may come
  bool may_share_;  // and we may send some
  std::atomic<bool> in_use_ = false;
  std::uint64_t generation_;
  FrameReader reader_;
  std::vector<Fd> arrived_descriptors_;
  SlotReader slots_in_;
  SlotWriter slots_out_;
  std::optional<RingReader> ring_in_;
  std::optional<RingWriter> ring_out_;
  std::int64_t socket_seen_ns_ = 0;
  std::uint64_t small_frames_ = 0;    // sent, ever
  std::uint64_t written_bytes_ = 0;   // to the socket, ever
  std::uint64_t absorbed_bytes_ = 0;  // of frames from the socket
  Inbox inbox_;
  KeptBuffers kept_;
  std::set<std::int64_t> dropped_;  // calls that the peer has taken back
  std::int64_t looked_for_drops_ns_ = 0;
  bool ended_ = false;      // nothing more will come from the socket
  bool peer_gone_ = false;  // which its socket has not told
  int end_error_ = 0;       // and why, if not in good order
  bool discards_ = false;   // nobody will ask for what comes
  std::string prefix_;      // of the frame that is being sent; a member, so that its memory is used again
  std::string outbox_;      // copied rest of a frame that a call could not finish
  std::size_t outbox_written_ = 0;
  std::vector<Fd> outbox_descriptors_;
  Spin spin_;
};

}  // namespace miniray
