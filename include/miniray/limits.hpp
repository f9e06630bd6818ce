// Every limit and time-out of MiniRay, with its unit in its name. Nothing else in the code is a magic number.
#pragma once

#include <cstddef>
#include <cstdint>

namespace miniray::limits {

inline constexpr std::uint64_t kib = 1024;
inline constexpr std::uint64_t mib = 1024 * kib;
inline constexpr std::uint64_t gib = 1024 * mib;

// Messages. A frame that says it is larger is refused before anything is allocated for it.
inline constexpr std::uint64_t message_bytes_max = 64 * gib;
inline constexpr std::uint64_t body_bytes_max = 1 * gib;
inline constexpr std::size_t body_bytes_expected = 240;  // room that a message gets at once; most need no more
inline constexpr std::uint32_t buffers_max = 1U << 20;
inline constexpr std::size_t depth_max = 256;
inline constexpr std::size_t dimensions_max = 64;

// A list of at least this many floats, or of as many ints, travels as one buffer.
inline constexpr std::size_t packed_list_elements_min = 32;
// Longer byte strings travel beside the body instead of inside it.
inline constexpr std::size_t bytes_in_body_max = 4 * kib;

// Received and not yet asked for, in one channel.
inline constexpr std::uint64_t inbox_bytes_max = 4 * gib;
// One read from a socket brings at most this much that has no final place yet.
inline constexpr std::size_t staging_bytes = 64 * kib;

// Memory of large received buffers that a channel keeps for the next ones.
inline constexpr std::size_t recycled_buffer_bytes_min = 256 * kib;
inline constexpr std::size_t recycled_bytes_max = 256 * mib;

// Shared memory, for each direction of a channel.
inline constexpr std::uint64_t shared_buffer_bytes_min = 64 * kib;
inline constexpr std::uint64_t shared_memory_bytes_max = 512 * mib;
inline constexpr std::size_t shared_slots_max = 64;

// Small frames pass the kernel by, through a ring for each direction, once a channel has sent a few. A peer that has
// shown no sign of life for so long is rung for whatever it says, so that its death is noticed.
inline constexpr std::size_t ring_bytes = 64 * kib;
inline constexpr std::size_t ring_frame_bytes_max = 16 * kib;
inline constexpr std::uint64_t ring_after_frames = 8;
inline constexpr std::int64_t ring_silence_ns = 1'000'000;

// How long a receiver spins before it sleeps. MINIRAY_SPIN_US overrides it; 0 turns spinning off.
inline constexpr int spin_us = 50;
// A blocking wait looks around this often, should a wake-up have been missed.
inline constexpr int wait_slice_ms = 1000;

// A worker that was told to end has this long before it is killed.
inline constexpr int close_grace_ms = 5000;
// A program that ends by an exception, such as Ctrl-C, does not wait for its workers to finish. One that waits for a
// message ends by itself within the first time; the others are interrupted (SIGINT), and killed after the second.
inline constexpr int idle_grace_ms = 100;
inline constexpr int interrupt_grace_ms = 500;
// What a program drops or ends so soon after Ctrl-C, it drops or ends because of that.
inline constexpr int interrupt_memory_ms = 2000;
// After its socket closed, a process has this long to become a zombie before we say that it still runs.
inline constexpr int exit_wait_ms = 2000;

// Workers on other machines. A host that does not answer for so long is taken to be gone.
inline constexpr int unreachable_ms = 20'000;
// To reach a server and be let in. The server is as patient with those who connect.
inline constexpr int connect_timeout_ms = 10'000;
inline constexpr int hello_timeout_ms = 10'000;
// Connections to a server that have not yet proved anything; the oldest goes when one more comes.
inline constexpr std::size_t newcomers_max = 4096;
// How many workers a coordinator connects to at once, with two connections each; ssh's tunnels hold 128.
inline constexpr std::size_t connects_at_once = 60;
inline constexpr std::size_t request_bytes_max = 1 * mib;
// A worker whose coordinator is gone has this long to notice by itself.
inline constexpr int orphan_grace_ms = 3000;
// How long a server waits for a coordinator to take what a worker said last.
inline constexpr int linger_ms = 30'000;

// Clusters. To bring up all nodes, imports included; and what goes along to a node.
inline constexpr int start_timeout_ms = 300'000;
inline constexpr int ssh_connect_timeout_ms = 10'000;
inline constexpr std::uint64_t code_bytes_max = 64 * mib;
inline constexpr std::size_t code_files_max = 10'000;
// What a node's server may hold of its workers' output before they have to wait.
inline constexpr std::size_t output_queue_bytes_max = 1 * mib;
// Servers that were told to end have so long to do so, beyond the grace of their workers.
inline constexpr int stop_margin_ms = 2000;

// Training groups. Ranks have so long to say that they are ready; after a failure, the others have so long to fail too,
// so that the cause can be told from its consequences.
inline constexpr int master_port = 29500;
inline constexpr int master_ports_tried = 1000;
inline constexpr int group_timeout_ms = 600'000;
inline constexpr int failing_ranks_ms = 500;
// Of a host that is lost, the kernel gives up each connection at its next probe, which come every tenth of
// unreachable_ms.
inline constexpr int failing_hosts_ms = 3000;
// One node dials another on a port: without an answer in this time, a firewall is in the way. A node dials this many at
// a time.
inline constexpr int dial_timeout_ms = 3000;
inline constexpr std::size_t dials_max = 128;
inline constexpr std::size_t checked_ports_max = 64;
// A process that was asked what it is doing has this long to say.
inline constexpr int stack_wait_ms = 1000;

// Pools. A worker has so much work ahead of it, in tasks that are shorter than this; one that has waited behind another
// for as long as its lease is taken back.
inline constexpr int task_ahead_below_ms = 20;
inline constexpr int work_ahead_ms = 3;
inline constexpr int tasks_ahead_max = 64;
inline constexpr int task_lease_ms = 200;
// While every worker has more than one task, what they have to say is heard together, once in so long at most.
inline constexpr int rest_us = 500;
// map() aims at chunks of this length, once it knows how long an item takes; and at no more items than this.
inline constexpr int chunk_ms = 4;
inline constexpr std::size_t chunk_items_max = 4096;
// Large arguments that several tasks have: how many of the last ones are looked at; and what a worker keeps of them.
inline constexpr std::size_t recognised_buffers_max = 16;
inline constexpr std::uint64_t recognised_bytes_max = 256 * mib;
inline constexpr std::uint64_t kept_bytes_max = 1 * gib;
// What is left of servers that failed, or that others are to replace, has this long to end.
inline constexpr int failed_stop_ms = 1500;
// A pool launches a node's server again within this time. If the node cannot be had, the pool tries again after a
// pause, which doubles up to its maximum.
inline constexpr int pool_relaunch_ms = 20'000;
inline constexpr int pool_pause_ms = 500;
inline constexpr int pool_pause_max_ms = 5'000;
// While a worker is on its way to a place in a pool, the pool looks after it this often, at first and at last.
inline constexpr int recruit_look_min_ms = 1;
inline constexpr int recruit_look_max_ms = 50;
// The server of a node that came back has answered already, and has this long to accept another connection.
inline constexpr int new_link_ms = 1000;
// Workers of a pool that die one after another before they are ready for their first task: after so many, the pool is
// broken.
inline constexpr int stillborn_max = 3;
// Results that nobody has taken, of one map() or imap_unordered().
inline constexpr std::uint64_t results_bytes_max = 1 * gib;

// What an event log holds in memory; the oldest go first.
inline constexpr std::size_t events_max = 10'000;

// What a death certificate remembers: messages each way, and how much of each.
inline constexpr std::size_t recent_messages = 3;
inline constexpr std::size_t recent_message_bytes = 160;
inline constexpr std::size_t crash_report_bytes_max = 64 * kib;
inline constexpr std::size_t output_tail_bytes = 4 * kib;

// Messages as people see them, in traces and errors.
inline constexpr std::size_t text_string_chars_max = 120;
inline constexpr std::size_t text_elements_max = 16;

}  // namespace miniray::limits
