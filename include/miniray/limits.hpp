// Every limit and time-out of MiniRay. The name of each ends with its unit. No other file has a number of this kind.
#pragma once

#include <cstddef>
#include <cstdint>

namespace miniray::limits {

inline constexpr std::uint64_t kib = 1024;
inline constexpr std::uint64_t mib = 1024 * kib;
inline constexpr std::uint64_t gib = 1024 * mib;

// Messages. A frame whose head announces more is refused before memory is allocated for it.
inline constexpr std::uint64_t message_bytes_max = 64 * gib;
inline constexpr std::uint64_t body_bytes_max = 1 * gib;
inline constexpr std::size_t body_bytes_expected = 240;  // reserved for each body; most are smaller
inline constexpr std::uint32_t buffers_max = 1U << 20;
inline constexpr std::size_t depth_max = 256;
inline constexpr std::size_t dimensions_max = 64;
// The memory of a body, and of a large buffer, grows in steps as bytes arrive, so that a peer cannot take memory by
// announcing a large length.
inline constexpr std::size_t body_growth_bytes = 1 * mib;
inline constexpr std::size_t buffer_growth_bytes = 4 * mib;

// A list of at least this many elements, all floats or all ints, travels as one buffer.
inline constexpr std::size_t packed_list_elements_min = 32;
// Longer byte strings travel beside the body instead of inside it.
inline constexpr std::size_t bytes_in_body_max = 4 * kib;

// The messages that one channel has received and its user has not, in all lanes; and the descriptors in them. A message
// counts as this many bytes more than it has, and so does each of its buffers.
inline constexpr std::uint64_t inbox_bytes_max = 4 * gib;
inline constexpr std::size_t inbox_descriptors_max = 256;
inline constexpr std::uint64_t inbox_message_bytes = 256;
inline constexpr std::uint64_t inbox_buffer_bytes = 128;
// A receive whose time is over reads at most this often before it returns: the kernel rarely holds more. What a peer
// has sent before it ended is read at most last_reads_max times.
inline constexpr int late_reads_max = 128;
inline constexpr int last_reads_max = 4096;
// A receiver takes at most this much from a ring before it looks at its deadline.
inline constexpr std::size_t ring_turn_bytes = 1 * mib;
// The calls that a peer has dropped and that have not had their turn. If there are more, those with the lowest numbers
// may run all the same.
inline constexpr std::size_t dropped_calls_max = 1U << 20;
// The most descriptors that may have come before the frames that they belong to.
inline constexpr std::size_t early_descriptors_max = 64;
// The most bytes that one read from a socket takes before their final place in memory is known.
inline constexpr std::size_t staging_bytes = 64 * kib;
// Copying a body up to this size is cheaper than giving the kernel one more piece to gather.
inline constexpr std::size_t copied_body_bytes_max = 4 * kib;
// While a channel has unsent bytes, a wait for many channels tries to write them this often.
inline constexpr int unsent_slice_ms = 1;
// Before each call, a worker looks whether the caller has dropped it, but not more often than this.
inline constexpr std::int64_t dropped_look_ns = 50'000;

// Memory of large received buffers that a channel keeps, to use it again for the next ones.
inline constexpr std::size_t recycled_buffer_bytes_min = 256 * kib;
inline constexpr std::size_t recycled_bytes_max = 256 * mib;

// Connections that are sealed. A record has at most sealed_record_bytes, so that the peer opens one while the next is
// sealed. A channel that receives much reads up to sealed_buffer_bytes_max at once. A key encrypts at most
// sealed_records_per_key records, far below the limits of AES-GCM.
inline constexpr std::size_t sealed_record_bytes = 64 * kib;
inline constexpr std::size_t sealed_buffer_bytes_min = 4 * kib;
inline constexpr std::size_t sealed_buffer_bytes_max = 256 * kib;
inline constexpr std::uint64_t sealed_records_per_key = 1U << 20;

// Shared memory, for each direction of a channel.
inline constexpr std::uint64_t shared_buffer_bytes_min = 64 * kib;
inline constexpr std::uint64_t shared_memory_bytes_max = 512 * mib;
inline constexpr std::size_t shared_slots_max = 64;
// Slots that the sender has dropped, but whose arrays the receiver still has.
inline constexpr std::size_t left_slots_max = 4096;
// The most descriptors that go with one message, and that one read takes.
inline constexpr std::size_t descriptors_per_message_max = 16;

// Before it reserves at least this much memory at once, the library asks whether the machine has it.
inline constexpr std::size_t checked_memory_bytes_min = 64 * mib;
// How much of the kernel's table of pages one read takes; each page has a word of 8 bytes.
inline constexpr std::size_t page_words_per_read = 65'536;
// After a secret was used, this much of the stack is overwritten: more than a hash and its callers use.
inline constexpr std::size_t wiped_stack_bytes = 8 * kib;

// Arrays that are made in memory which can be sent without a copy: smaller ones are copied, which is cheaper than
// mapping them. A process keeps this much unused memory for the next arrays.
inline constexpr std::size_t in_place_bytes_min = 256 * kib;
inline constexpr std::size_t in_place_unused_bytes_max = 512 * mib;

// Small frames go through a ring in shared memory, one for each direction, once a channel has sent a few frames. If the
// peer has shown no sign of life for ring_silence_ns, the sender also writes to the socket, so that it notices a death.
inline constexpr std::size_t ring_bytes = 64 * kib;
inline constexpr std::size_t ring_frame_bytes_max = 16 * kib;
inline constexpr std::uint64_t ring_after_frames = 8;
inline constexpr std::int64_t ring_silence_ns = 1'000'000;
// A sender that uses the ring checks this often whether its socket is still open.
inline constexpr std::int64_t socket_look_ns = 20'000;

// How long a receiver spins before it sleeps. MINIRAY_SPIN_US overrides it; 0 turns spinning off.
inline constexpr int spin_us = 50;
// A spinning receiver looks this often before its first system call, and between two yields. If a yield has taken
// longer than others_ran_ns, another process used the core; then the next crowded_waits waits begin with a yield.
inline constexpr int eager_looks = 80;
inline constexpr int looks_per_yield = 20;
inline constexpr std::int64_t others_ran_ns = 10'000;
inline constexpr int crowded_waits = 64;
// While a receiver spins on a ring, it reads from its socket once in this many yields.
inline constexpr int yields_per_read = 4;
// After a sleep as long as this many spins, spinning would not have paid.
inline constexpr int wake_up_worth_spins = 4;
// A blocking wait looks around this often, in case it has missed a wake-up.
inline constexpr int wait_slice_ms = 1000;

// A worker that was told to end has this long before it is killed.
inline constexpr int close_grace_ms = 5000;
// A program that ends by an exception, such as Ctrl-C, does not wait for its workers to finish. A worker that waits for
// a message ends by itself within idle_grace_ms. The others are then interrupted (SIGINT), and killed after
// interrupt_grace_ms.
inline constexpr int idle_grace_ms = 100;
inline constexpr int interrupt_grace_ms = 500;
// If a program closes a pool or a worker this soon after Ctrl-C, it does so because of Ctrl-C, and does not wait.
inline constexpr int interrupt_memory_ms = 2000;
// After its socket has closed, a process has this long to end before an error says that it still runs.
inline constexpr int exit_wait_ms = 2000;
// A killed process is gone within this time, unless its host cannot be reached.
inline constexpr int kill_wait_ms = 1000;
// How often a wait for workers to end checks whether another thread wants them to end faster.
inline constexpr int urgency_slice_ms = 20;

// Workers on other machines. A host that does not answer for unreachable_ms is treated as gone.
inline constexpr int unreachable_ms = 20'000;
inline constexpr int unreachable_min_ms = 1000;
inline constexpr int unreachable_max_ms = 1'000'000'000;
// How many signs of life are requested within that time: on a TCP connection by the kernel (many, so that a lossy link
// does not look dead), and from the servers of a cluster.
inline constexpr int keepalive_probes = 9;
inline constexpr int heartbeats = 4;
// How long a client takes at most to reach a server and be let in, and how long a server waits for a client's request.
inline constexpr int connect_timeout_ms = 10'000;
inline constexpr int hello_timeout_ms = 10'000;
// Connections to a server that have not yet proved that they have the key: of all addresses, and of one address. One
// more closes the oldest of the address that has the most.
inline constexpr std::size_t pending_connections_max = 4096;
inline constexpr std::size_t pending_connections_of_address_max = 2048;
// In each window, a server's log shows at most refusals_logged_of_address_max refusals of one address, and at most
// refusals_logged_max of all addresses. It counts the others separately for up to refusal_addresses_max addresses. At
// the end of the window it names the refusal_summaries_max addresses that were refused most often.
inline constexpr int refusal_window_s = 60;
inline constexpr std::size_t refusals_logged_of_address_max = 10;
inline constexpr std::size_t refusals_logged_max = 200;
inline constexpr std::size_t refusal_addresses_max = 1000;
inline constexpr std::size_t refusal_summaries_max = 20;
// Connections that the kernel holds for a server, and connections that a server accepts before it serves the others.
inline constexpr int accept_backlog = 4096;
inline constexpr int accepts_per_turn = 64;
// How often a server looks around while one of its deadlines is near.
inline constexpr int busy_turn_ms = 50;
// How many workers a coordinator connects to at once. Each takes two connections, and an ssh tunnel holds 128.
inline constexpr std::size_t connects_at_once = 60;
inline constexpr std::size_t request_bytes_max = 1 * mib;
inline constexpr std::size_t refusal_bytes_max = 16 * kib;
// The largest message on a control connection; the largest that is ever sent is a death certificate. A peer that sends
// more than control_turn_bytes_max at once, counted as an inbox counts, would never end: its connection is dropped.
inline constexpr std::uint64_t control_message_bytes_max = 2 * mib;
inline constexpr std::uint64_t control_turn_bytes_max = 16 * mib;
// A server takes at most this many messages of one link before it serves the others.
inline constexpr int supplies_per_turn = 64;
// A server reads a worker's output in pieces of this size, and at most output_last_reads_max of them after the worker
// has ended. It passes a longer line on in pieces.
inline constexpr std::size_t output_read_bytes = 64 * kib;
inline constexpr int output_last_reads_max = 64;
inline constexpr std::size_t output_line_bytes_max = 64 * kib;
// A worker whose coordinator is gone has this long to end by itself.
inline constexpr int orphan_grace_ms = 3000;
// How long a server waits for a coordinator to read the last messages of a worker that has ended.
inline constexpr int linger_ms = 30'000;

// Clusters. How long it may take to bring up all nodes, imports included, and ssh to connect to one.
inline constexpr int start_timeout_ms = 300'000;
inline constexpr int ssh_connect_timeout_ms = 10'000;
// Once a node has failed, the others have this long to fail too, so that the error names them all. ssh fails sooner.
inline constexpr int failing_nodes_ms = ssh_connect_timeout_ms + 2000;
// How often a launch looks at its nodes, and how often a server checks whether the server that it replaces has freed
// the port.
inline constexpr int launch_look_ms = 200;
inline constexpr int port_look_ms = 50;
// The longest line that a node may send, the longest that it gets (the settings, with a list of all files), and how
// much login scripts may print before a node's server is ready.
inline constexpr std::size_t launch_line_bytes_max = 2 * mib;
inline constexpr std::size_t launch_settings_bytes_max = 32 * mib;
inline constexpr std::uint64_t launch_chatter_bytes_max = 16 * mib;
// How much of what a node asked for waits in memory until the node reads it.
inline constexpr std::size_t launch_queue_bytes_max = 1 * mib;
// How much of what a peer sent is shown in an error that quotes it.
inline constexpr std::size_t quoted_bytes_max = 200;
// How many files for the output of workers are open at the same time.
inline constexpr std::size_t output_files_open_max = 64;
// How much is kept of what a node writes to standard error during its launch.
inline constexpr std::size_t complaint_bytes_max = 16 * kib;
// When a launch shows progress first and how often again, on a terminal and elsewhere (in lines), and how many nodes it
// names there.
inline constexpr int progress_first_ms = 500;
inline constexpr int progress_again_ms = 200;
inline constexpr int progress_line_first_ms = 3000;
inline constexpr int progress_line_again_ms = 10'000;
inline constexpr std::size_t progress_names_max = 4;
// The code that is sent to a node.
inline constexpr std::uint64_t code_bytes_max = 64 * mib;
inline constexpr std::size_t code_files_max = 10'000;
// A folder in a node's cache that was not used for this long is removed.
inline constexpr int cache_unused_days_max = 30;
// The most that a process which forwards output writes at once: a pipe that polls as writable takes all of it.
inline constexpr std::size_t print_bytes_max = 4 * kib;
// On one node: how many GPUs a worker may have, and how many workers may share a GPU.
inline constexpr int gpus_per_worker_max = 1024;
inline constexpr int workers_per_gpu_max = 1024;
// How much output of its workers a node's server holds before the workers have to wait.
inline constexpr std::size_t output_queue_bytes_max = 1 * mib;
// Servers that were told to end have this long, in addition to the grace of their workers.
inline constexpr int stop_margin_ms = 2000;

// Groups of ranks that share memory: how much each rank may have on its way at once (twice), which data every rank
// reduces by itself, and how often a rank that waits looks whether another has died.
inline constexpr std::size_t group_area_bytes = 512 * kib;
inline constexpr std::size_t group_small_bytes_max = 16 * kib;
inline constexpr int group_slice_ms = 50;
// A rank that spins looks this often before each yield.
inline constexpr int group_looks_per_yield = 50;
// The text that says why a group is broken.
inline constexpr std::size_t group_reason_bytes_max = 1020;
// Groups on several machines: what is on its way at once between two machines, how long the ranks have to connect to
// each other, and how long a call goes on after a rank on another machine has ended, which may have done its part.
inline constexpr std::size_t group_node_area_bytes = 2 * mib;
inline constexpr int group_link_ms = 15'000;
inline constexpr int group_ended_rank_ms = 500;

// Training groups. Ranks have group_timeout_ms to report that they are ready. After a failure, the others have
// failing_ranks_ms to fail too, so that the cause can be told from its consequences.
inline constexpr int master_port = 29500;
inline constexpr int master_ports_tried = 1000;
inline constexpr int group_timeout_ms = 600'000;
inline constexpr int failing_ranks_ms = 500;
inline constexpr int world_size_max = 1'000'000;
// How often a group checks whether its ranks are ready, and whether a rank that ended has freed its place.
inline constexpr int group_look_ms = 200;
inline constexpr int room_look_ms = 50;
// When a host is lost, the kernel closes each connection to it at that connection's next probe. Probes come every tenth
// of unreachable_ms, so the connections do not fail at the same time.
inline constexpr int failing_hosts_ms = 3000;
// When one node dials another on a port and gets no answer in this time, a firewall is in the way. A node dials this
// many at a time.
inline constexpr int dial_timeout_ms = 3000;
inline constexpr std::size_t dials_max = 128;
inline constexpr std::size_t dial_token_bytes_max = 64;
// A probe has this long to answer, because a driver may be slow to start and a name server slow to answer. A probe that
// imports torch has longer, because torch may be on a slow disk.
inline constexpr int probe_answer_ms = 60'000;
inline constexpr int language_answer_ms = 300'000;
// `miniray doctor` warns about clocks that differ by more, about name lookups that take longer, and about machines that
// have less.
inline constexpr int clock_difference_max_ms = 500;
inline constexpr int clock_rounds = 3;  // how often each clock is read; the quickest answer is the most exact
inline constexpr int slow_lookup_ms = 2000;
inline constexpr std::uint64_t checked_shared_memory_bytes_min = 512 * mib;
inline constexpr std::uint64_t checked_open_files_min = 4096;
inline constexpr std::size_t checked_ports_max = 64;
// A process that was asked for its stack has this long to answer.
inline constexpr int stack_wait_ms = 1000;
inline constexpr int stack_look_ms = 10;
// The text of a group's error has at most this many stacks, lines of each stack, and characters for each rank that only
// noticed the failure of another.
inline constexpr std::size_t group_stacks_max = 8;
inline constexpr std::size_t group_stack_lines_max = 20;
inline constexpr std::size_t group_notice_chars_max = 200;

// Restarts. The defaults of RestartPolicy.
inline constexpr int restarts_max = 3;
inline constexpr int restart_window_ms = 60'000;
inline constexpr int restart_pause_ms = 500;
inline constexpr int restart_pause_max_ms = 30'000;

// Pools. A worker gets tasks ahead, as long as they are shorter than task_ahead_below_ms, until it has work for
// work_ahead_ms. A task that has waited behind another for task_lease_ms is taken back.
inline constexpr int task_ahead_below_ms = 20;
inline constexpr int work_ahead_ms = 3;
inline constexpr int tasks_ahead_max = 64;
inline constexpr int task_lease_ms = 200;
// A reply takes at most this long through a network; a lease ends only after that.
inline constexpr int reply_on_its_way_ms = 1000;
// How often a pool looks at workers that are ending, or that have tasks ahead.
inline constexpr int pool_look_ms = 50;
// A task whose worker asks for definitions more often than this fails, because they never suffice. A worker keeps this
// many functions, the latest ones; older functions are sent again.
inline constexpr int definition_tries_max = 10'000;
inline constexpr std::size_t functions_known_max = 256;
// While every worker has more than one task, the pool sleeps up to this long and then reads all replies together.
inline constexpr int rest_us = 500;
inline constexpr int rest_min_us = 20;  // a shorter sleep is not worth its cost
// Once map() knows how long an item takes, it makes chunks that take chunk_ms, of at most chunk_items_max items. The
// last chunks are shorter, but not shorter than chunk_min_us, because a message has a cost.
inline constexpr int chunk_ms = 4;
inline constexpr int chunk_min_us = 500;
inline constexpr std::size_t chunk_items_max = 4096;
// Before map() knows that, each worker's share is cut into this many chunks, of at most first_chunk_items_max items.
inline constexpr std::size_t first_chunks_per_share = 32;
inline constexpr std::size_t first_chunk_items_max = 64;
// For an iterator that may have no end: how many items a chunk has, and how many chunks for each worker are running or
// have results that were not taken.
inline constexpr std::size_t lazy_chunk_items_max = 512;
inline constexpr std::size_t lazy_chunks_max = 4;
// How much of a function's type is shown in place of a name (typed_function.hpp).
inline constexpr std::size_t spoken_name_bytes_max = 100;
// when_any() of futures that cannot be waited for together waits for each of them in turn, for this long.
inline constexpr int wait_turn_ms = 2;
// A worker that a program gave to a pool, and that has never answered, is reported this long after it got a task.
inline constexpr int silent_worker_ms = 5000;
// For how many functions a pool remembers how long an item takes.
inline constexpr std::size_t means_max = 4096;
// Large arguments that several tasks share: how many of the latest ones a pool compares, and how much a worker keeps.
inline constexpr std::size_t recognised_buffers_max = 16;
inline constexpr std::uint64_t recognised_bytes_max = 256 * mib;
inline constexpr std::uint64_t kept_bytes_max = 1 * gib;
inline constexpr std::size_t kept_buffers_max = 16'384;
// A pool takes at most this many messages of one worker before it looks at the others. A worker that answers that it
// lacks definitions says so in at most unknown_reply_bytes_max.
inline constexpr int replies_per_turn_max = 4096;
inline constexpr std::size_t unknown_reply_bytes_max = 1 * mib;
// What remains of servers that failed, or that will be replaced, has this long to end.
inline constexpr int failed_stop_ms = 1500;
// A pool's attempt to launch a node's server again may take this long. If it fails, the pool tries again after a pause,
// which doubles up to its maximum.
inline constexpr int pool_relaunch_ms = 20'000;
inline constexpr int pool_pause_ms = 500;
inline constexpr int pool_pause_max_ms = 5'000;
// How often a pool looks at a worker that is starting: the interval grows from the first to the second.
inline constexpr int recruit_look_min_ms = 1;
inline constexpr int recruit_look_max_ms = 50;
// The server of a node that came back has already answered once, and has this long to accept another connection.
inline constexpr int new_link_ms = 1000;
// A pool is broken after this many workers in a row have died before they were ready for their first task.
inline constexpr int stillborn_max = 3;
// Results of one map() or imap_unordered() that the caller has not taken.
inline constexpr std::uint64_t results_bytes_max = 1 * gib;
// Python. The thread that delivers a pool's results starts again after an internal error, up to deliveries_max times in
// all. While a pool is being interrupted, a callback may hold that thread up for delivery_ms; then another thread ends
// the workers. After a thread has said that it ends, the pool waits for it no longer than last_steps_ms.
inline constexpr int deliveries_max = 3;
inline constexpr int delivery_ms = 500;
inline constexpr int last_steps_ms = 1000;

// How many events an event log holds in memory; it drops the oldest first.
inline constexpr std::size_t events_max = 10'000;

// How many messages in each direction a death certificate shows, and how much of each.
inline constexpr std::size_t recent_messages = 3;
inline constexpr std::size_t recent_message_bytes = 160;
inline constexpr std::size_t crash_report_bytes_max = 256 * kib;
// The report of a failed check.
inline constexpr std::size_t check_report_bytes_max = 4096;
inline constexpr int check_value_chars_max = 256;
// A crash stack has at most this many innermost and outermost calls, and characters of a line and of a name. Finding
// the names takes at most this long; a longer search is stopped, and the stack has addresses.
inline constexpr int crash_frames_max = 64;
inline constexpr int crash_outer_frames_max = 32;
inline constexpr std::size_t crash_line_bytes_max = 4096;
inline constexpr int crash_name_chars_max = 2000;
inline constexpr int crash_names_ms = 5000;
inline constexpr std::size_t crash_handler_stack_bytes = 64 * kib;
inline constexpr std::size_t output_tail_bytes = 4 * kib;

// Messages as text, in traces and errors.
inline constexpr std::size_t text_string_chars_max = 120;
inline constexpr std::size_t text_elements_max = 16;

// Python. Of the latest long list that arrived, one number in list_anchor_step is kept, at most list_anchors_max of
// them, so that Python keeps the memory for the next list. A number takes 32 bytes and an arena has room for 32,768, so
// each arena has two anchors, and at most 64 MiB are kept.
inline constexpr std::size_t list_anchor_step = 16'384;
inline constexpr std::size_t list_anchors_max = 128;
// How many names of methods a worker keeps split into parts, and how many names of dropped objects it keeps for
// errors.
inline constexpr std::size_t method_names_max = 1000;
inline constexpr std::size_t forgotten_names_max = 100;
// Closures hold values of globals, which may be large, so few unused closures are kept.
inline constexpr std::size_t open_closures_min = 8;
inline constexpr std::size_t argument_closures_max = 8;
// How far the search for the script's state goes: how deep, in how many objects, in how many elements of one.
inline constexpr std::size_t script_depth_max = 8;
inline constexpr std::size_t script_objects_max = 10'000;
inline constexpr std::size_t script_elements_max = 1000;
// The search for an object that cannot be pickled goes this deep; and this much of a pickle shows that it works.
inline constexpr std::size_t unpicklable_depth_max = 20;
inline constexpr std::size_t pickle_sample_bytes = 1 * mib;
// Memory that a worker reserves, so that it can still report that it is out of memory.
inline constexpr std::size_t memory_reserve_bytes = 1 * mib;
// Values and tables as text.
inline constexpr std::size_t shown_value_chars_max = 60;
inline constexpr std::size_t shown_beginning_chars = 40;  // of a value that is longer
inline constexpr std::size_t shown_rows_max = 24;
// Notebooks. One read of a worker's output takes more than a pipe holds. A line without its end is shown after
// notebook_unfinished_ms.
inline constexpr std::size_t notebook_read_bytes = 1 * mib;
inline constexpr int notebook_unfinished_ms = 100;
// How often a map shows its progress: on a terminal, and elsewhere (in lines). The bar has progress_bar_chars, in a
// line of at most progress_columns_max.
inline constexpr int map_progress_ms = 100;
inline constexpr int map_progress_line_ms = 10'000;
inline constexpr int progress_bar_chars = 24;
inline constexpr int progress_columns_max = 1000;

}  // namespace miniray::limits
