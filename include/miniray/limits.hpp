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
// A body grows with what has arrived, so that a length alone never takes memory.
inline constexpr std::size_t body_growth_bytes = 1 * mib;

// A list of at least this many floats, or of as many ints, travels as one buffer.
inline constexpr std::size_t packed_list_elements_min = 32;
// Longer byte strings travel beside the body instead of inside it.
inline constexpr std::size_t bytes_in_body_max = 4 * kib;

// Received and not yet asked for, in one channel.
inline constexpr std::uint64_t inbox_bytes_max = 4 * gib;
// One read from a socket brings at most this much that has no final place yet.
inline constexpr std::size_t staging_bytes = 64 * kib;
// Copying a body of this size is cheaper than giving the kernel one more piece to gather.
inline constexpr std::size_t copied_body_bytes_max = 4 * kib;
// What a channel has left to write goes out as fast as the peer takes it: a wait for many channels tries this often.
inline constexpr int unsent_slice_ms = 1;
// Before each call a worker looks whether it was taken back, but not more often than this.
inline constexpr std::int64_t dropped_look_ns = 50'000;

// Memory of large received buffers that a channel keeps for the next ones.
inline constexpr std::size_t recycled_buffer_bytes_min = 256 * kib;
inline constexpr std::size_t recycled_bytes_max = 256 * mib;

// Shared memory, for each direction of a channel.
inline constexpr std::uint64_t shared_buffer_bytes_min = 64 * kib;
inline constexpr std::uint64_t shared_memory_bytes_max = 512 * mib;
inline constexpr std::size_t shared_slots_max = 64;
// Descriptors that go with one message, and that one read takes.
inline constexpr std::size_t descriptors_per_message_max = 16;

// Small frames pass the kernel by, through a ring for each direction, once a channel has sent a few. A peer that has
// shown no sign of life for so long is rung for whatever it says, so that its death is noticed.
inline constexpr std::size_t ring_bytes = 64 * kib;
inline constexpr std::size_t ring_frame_bytes_max = 16 * kib;
inline constexpr std::uint64_t ring_after_frames = 8;
inline constexpr std::int64_t ring_silence_ns = 1'000'000;
// A sender that uses the ring looks this often whether its socket is still open.
inline constexpr std::int64_t socket_look_ns = 20'000;

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
// A process that was killed is gone within this time, unless its host cannot be reached.
inline constexpr int kill_wait_ms = 1000;
// How often a wait for workers to end looks whether another thread is in a hurry.
inline constexpr int urgency_slice_ms = 20;

// Workers on other machines. A host that does not answer for so long is taken to be gone.
inline constexpr int unreachable_ms = 20'000;
inline constexpr int unreachable_min_ms = 1000;
inline constexpr int unreachable_max_ms = 1'000'000'000;
// Within that time so many signs of life are asked for: of a TCP connection by the kernel, many, so that a lossy link
// is not taken for a dead one; and of a cluster's servers.
inline constexpr int keepalive_probes = 9;
inline constexpr int heartbeats = 4;
// To reach a server and be let in. The server is as patient with those who connect.
inline constexpr int connect_timeout_ms = 10'000;
inline constexpr int hello_timeout_ms = 10'000;
// Connections to a server that have not yet proved anything; the oldest goes when one more comes.
inline constexpr std::size_t newcomers_max = 4096;
// Connections that the kernel holds for a server, and those that it takes before it goes on with the others.
inline constexpr int accept_backlog = 4096;
inline constexpr int accepts_per_turn = 64;
// How often a server looks around while somebody's time is running out.
inline constexpr int busy_turn_ms = 50;
// How many workers a coordinator connects to at once, with two connections each; ssh's tunnels hold 128.
inline constexpr std::size_t connects_at_once = 60;
inline constexpr std::size_t request_bytes_max = 1 * mib;
inline constexpr std::size_t refusal_bytes_max = 16 * kib;
// A worker's output is read in pieces of this size, a few more when it has ended; a longer line is shown in pieces.
inline constexpr std::size_t output_read_bytes = 64 * kib;
inline constexpr int output_last_reads_max = 64;
inline constexpr std::size_t output_line_bytes_max = 64 * kib;
// A worker whose coordinator is gone has this long to notice by itself.
inline constexpr int orphan_grace_ms = 3000;
// How long a server waits for a coordinator to take what a worker said last.
inline constexpr int linger_ms = 30'000;

// Clusters. To bring up all nodes, imports included; and what goes along to a node.
inline constexpr int start_timeout_ms = 300'000;
inline constexpr int ssh_connect_timeout_ms = 10'000;
// Once a node has failed, the others have this long to fail too, and to be named; ssh gives up before.
inline constexpr int failing_nodes_ms = ssh_connect_timeout_ms + 2000;
// How often a launch looks at its nodes, and a server whether the port of the one that it replaces is free.
inline constexpr int launch_look_ms = 200;
inline constexpr int port_look_ms = 50;
// What is kept of a node's complaints while it is launched.
inline constexpr std::size_t complaint_bytes_max = 16 * kib;
// When progress is shown first and again: on a terminal, and in lines elsewhere; and how many nodes are named there.
inline constexpr int progress_first_ms = 500;
inline constexpr int progress_again_ms = 200;
inline constexpr int progress_line_first_ms = 3000;
inline constexpr int progress_line_again_ms = 10'000;
inline constexpr std::size_t progress_names_max = 4;
inline constexpr std::uint64_t code_bytes_max = 64 * mib;
inline constexpr std::size_t code_files_max = 10'000;
// A folder in a node's cache that was not used for so long goes.
inline constexpr int cache_unused_days_max = 30;
// What a process that prints for others writes at once: a pipe that has room surely takes it.
inline constexpr std::size_t print_bytes_max = 4 * kib;
// Of a node: how many GPUs a worker may have, and how many workers may share one.
inline constexpr int gpus_per_worker_max = 1024;
inline constexpr int workers_per_gpu_max = 1024;
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
inline constexpr int world_size_max = 1'000'000;
// How often a group looks whether its ranks are ready, and whether one that ended has left room for another.
inline constexpr int group_look_ms = 200;
inline constexpr int room_look_ms = 50;
// Of a host that is lost, the kernel gives up each connection at its next probe, which come every tenth of
// unreachable_ms.
inline constexpr int failing_hosts_ms = 3000;
// One node dials another on a port: without an answer in this time, a firewall is in the way. A node dials this many at
// a time.
inline constexpr int dial_timeout_ms = 3000;
inline constexpr std::size_t dials_max = 128;
inline constexpr std::size_t dial_token_bytes_max = 64;
// A probe has this long to answer: a driver may be slow to wake, a name server silent. Where a check asks for torch, it
// may be on a slow disk.
inline constexpr int probe_answer_ms = 60'000;
inline constexpr int language_answer_ms = 300'000;
// What a check finds fault with: clocks that differ by more, names that take longer to look up, a machine with less.
inline constexpr int clock_difference_max_ms = 500;
inline constexpr int slow_lookup_ms = 2000;
inline constexpr std::uint64_t checked_shared_memory_bytes_min = 512 * mib;
inline constexpr std::uint64_t checked_open_files_min = 4096;
inline constexpr std::size_t checked_ports_max = 64;
// A process that was asked what it is doing has this long to say.
inline constexpr int stack_wait_ms = 1000;
inline constexpr int stack_look_ms = 10;
// In the text of a group's error: stacks, lines of each, and characters of each rank that noticed.
inline constexpr std::size_t group_stacks_max = 8;
inline constexpr std::size_t group_stack_lines_max = 20;
inline constexpr std::size_t group_notice_chars_max = 200;

// Pools. A worker has so much work ahead of it, in tasks that are shorter than this; one that has waited behind another
// for as long as its lease is taken back.
inline constexpr int task_ahead_below_ms = 20;
inline constexpr int work_ahead_ms = 3;
inline constexpr int tasks_ahead_max = 64;
inline constexpr int task_lease_ms = 200;
// What a reply takes through a network at most, before a lease is over.
inline constexpr int reply_on_its_way_ms = 1000;
// How often a pool looks at workers that end, or that have tasks ahead.
inline constexpr int pool_look_ms = 50;
// A worker that asks for the same definitions more often than this never has enough. It is told anew of functions
// beyond the latest ones.
inline constexpr int definition_tries_max = 10'000;
inline constexpr std::size_t functions_known_max = 256;
// While every worker has more than one task, what they have to say is heard together, once in so long at most.
inline constexpr int rest_us = 500;
inline constexpr int rest_min_us = 20;  // a shorter one is not worth it
// map() aims at chunks of this length, once it knows how long an item takes; and at no more items than this.
inline constexpr int chunk_ms = 4;
inline constexpr std::size_t chunk_items_max = 4096;
inline constexpr std::size_t first_chunk_items_max = 64;
// Of an iterator that may have no end: how many items are together, and how many chunks for each worker are on their
// way or wait to be taken.
inline constexpr std::size_t lazy_chunk_items_max = 512;
inline constexpr std::size_t lazy_chunks_max = 4;
// Of how many functions a pool knows what an item of theirs takes.
inline constexpr std::size_t means_max = 4096;
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
// What is told of a check that failed.
inline constexpr std::size_t check_report_bytes_max = 4096;
inline constexpr int check_value_chars_max = 256;
inline constexpr int crash_frames_max = 64;
inline constexpr std::size_t crash_handler_stack_bytes = 64 * kib;
inline constexpr std::size_t output_tail_bytes = 4 * kib;

// Messages as people see them, in traces and errors.
inline constexpr std::size_t text_string_chars_max = 120;
inline constexpr std::size_t text_elements_max = 16;

// Python. Names of methods that a worker keeps in their parts; names of what was forgotten there, for errors.
inline constexpr std::size_t method_names_max = 1000;
inline constexpr std::size_t forgotten_names_max = 100;
// Closures hold values of globals, which may be large: those that nobody uses are few.
inline constexpr std::size_t open_closures_min = 8;
inline constexpr std::size_t argument_closures_max = 8;
// Where the script's state is looked for: how deep, in how many objects, in how many elements of one.
inline constexpr std::size_t script_depth_max = 8;
inline constexpr std::size_t script_objects_max = 10'000;
inline constexpr std::size_t script_elements_max = 1000;
// What cannot be pickled is searched for this deep; and this much of a pickle shows that there is one.
inline constexpr std::size_t unpicklable_depth_max = 20;
inline constexpr std::size_t pickle_sample_bytes = 1 * mib;
// Memory that a worker sets aside, to be able to say that it has none left.
inline constexpr std::size_t memory_reserve_bytes = 1 * mib;
// Values and tables as people see them.
inline constexpr std::size_t shown_value_chars_max = 60;
inline constexpr std::size_t shown_rows_max = 24;
// Notebooks. One read of a worker's output takes more than a pipe holds; a line that lacks its end is shown after this.
inline constexpr std::size_t notebook_read_bytes = 1 * mib;
inline constexpr int notebook_unfinished_ms = 100;
// A map's progress is shown this often: on a terminal, and in lines elsewhere.
inline constexpr int map_progress_ms = 100;
inline constexpr int map_progress_line_ms = 10'000;

}  // namespace miniray::limits
