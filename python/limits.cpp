// The named limits, for reading.
#include "miniray/limits.hpp"

#include "base/grace.hpp"
#include "interop.hpp"

namespace miniray::python {

void bind_limits(nb::module_& module) {
  nb::object sub = attribute("types", "SimpleNamespace")();
  sub.attr("message_bytes_max") = limits::message_bytes_max;
  sub.attr("body_bytes_max") = limits::body_bytes_max;
  sub.attr("buffers_max") = limits::buffers_max;
  sub.attr("depth_max") = limits::depth_max;
  sub.attr("dimensions_max") = limits::dimensions_max;
  sub.attr("packed_list_elements_min") = limits::packed_list_elements_min;
  sub.attr("bytes_in_body_max") = limits::bytes_in_body_max;
  sub.attr("inbox_bytes_max") = limits::inbox_bytes_max;
  sub.attr("shared_buffer_bytes_min") = limits::shared_buffer_bytes_min;
  sub.attr("shared_memory_bytes_max") = limits::shared_memory_bytes_max;
  sub.attr("shared_slots_max") = limits::shared_slots_max;
  sub.attr("chunk_ms") = limits::chunk_ms;
  sub.attr("chunk_items_max") = limits::chunk_items_max;
  sub.attr("results_bytes_max") = limits::results_bytes_max;
  sub.attr("spin_us") = limits::spin_us;
  sub.attr("means_max") = limits::means_max;
  sub.attr("wait_slice_ms") = limits::wait_slice_ms;
  sub.attr("close_grace_ms") = grace_ms(limits::close_grace_ms);
  sub.attr("interrupt_grace_ms") = limits::interrupt_grace_ms;
  sub.attr("exit_wait_ms") = limits::exit_wait_ms;
  sub.attr("unreachable_ms") = limits::unreachable_ms;
  sub.attr("connect_timeout_ms") = limits::connect_timeout_ms;
  sub.attr("hello_timeout_ms") = limits::hello_timeout_ms;
  sub.attr("newcomers_max") = limits::newcomers_max;
  sub.attr("orphan_grace_ms") = limits::orphan_grace_ms;
  sub.attr("start_timeout_ms") = limits::start_timeout_ms;
  sub.attr("code_bytes_max") = limits::code_bytes_max;
  sub.attr("code_files_max") = limits::code_files_max;
  sub.attr("master_port") = limits::master_port;
  sub.attr("group_timeout_ms") = limits::group_timeout_ms;
  sub.attr("dial_timeout_ms") = limits::dial_timeout_ms;
  sub.attr("events_max") = limits::events_max;
  module.attr("limits") = sub;
}

}  // namespace miniray::python
