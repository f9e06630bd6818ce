// Sends any bytes to a launch, as a node that may keep to the protocol at first. The launch must wait, be ready, or
// fail with a text that says why. Nothing else may happen: no exception, no wait, no more memory than the limits allow.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/system.hpp"
#include "channel/authentication.hpp"
#include "launch/node_launch.hpp"
#include "miniray/limits.hpp"
#include "miniray/version.hpp"
#include "worker/pending_connection.hpp"

namespace {

using miniray::NodeLaunch;

// What a server says before the bytes of the fuzzer begin.
const std::array<std::string, 5>& beginnings() {
  static const std::string hello = std::string("miniray-server {\"version\": \"") + miniray::version +
                                   "\", \"protocol\": " + std::to_string(miniray::protocol_version) + "}\n";
  static const std::array<std::string, 5> made{"", "\nWelcome\nminiray-send-program\n", hello,
                                               hello + "miniray-need [\"" + miniray::content_hash("") + "\"]\n",
                                               hello + "miniray-importing {}\n"};
  return made;
}

void drain(int socket) {
  std::array<char, 65536> room;
  while (recv(socket, room.data(), room.size(), MSG_DONTWAIT) > 0) {
  }
}

bool is_plain(std::string_view text) {
  return std::ranges::none_of(text, [](unsigned char c) { return (c < 0x20 && c != '\n' && c != '\t') || c == 0x7F; });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string& beginning = beginnings()[data[0] % beginnings().size()];
  const bool reads = (data[0] & 0x80U) == 0, to_errors = (data[0] & 0x40U) != 0;
  const std::size_t piece = 1 + std::size_t{data[1]} * 16;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 2), size - 2);
  static const miniray::NodeConfig node{.host = "node"};
  static const auto code =
      std::make_shared<const miniray::CodeBundle>(std::vector<miniray::ShippedFile>{{"0/empty.py", "/dev/null"}});
  static const auto program = std::make_shared<const std::string>(100'000, 'p');
  static const miniray::Key key = miniray::Key::from_hex(std::string(64, 'a'), "the fuzzer");

  auto [talk_here, talk_there] = miniray::system::socket_pair();
  auto [errors_here, errors_there] = miniray::system::socket_pair();
  miniray::Attendant::Streams streams{miniray::LineStream(std::move(talk_there)),
                                      miniray::LineStream(std::move(errors_there))};
  NodeLaunch launch(node, {key, miniray::Value(miniray::Map{}), code, program, true});
  const auto check = [&] {
    launch.advance(streams);
    if (reads) drain(talk_here.get());
    if (streams.talk.unwritten_bytes() > 2 * miniray::limits::launch_queue_bytes_max) __builtin_trap();
    if (streams.talk.unread_bytes() > 2 * miniray::limits::launch_line_bytes_max) __builtin_trap();
    if (launch.error_output().size() > miniray::limits::complaint_bytes_max) __builtin_trap();
  };
  (void)miniray::system::write_without_waiting(talk_here.get(), beginning);
  check();
  const int to = to_errors ? errors_here.get() : talk_here.get();
  for (std::size_t at = 0; at < bytes.size() && !launch.settled(); at += piece) {
    const std::string_view next = bytes.substr(at, piece);
    if (miniray::system::write_without_waiting(to, next) < next.size()) break;  // the launch reads so much in one turn
    check();
  }
  if (!launch.settled()) launch.on_command_end(streams, data[1] % 3 == 0 ? -9 : data[1]);
  if (!launch.settled()) __builtin_trap();
  if (launch.stage() == NodeLaunch::Stage::failed && (launch.why().empty() || !is_plain(launch.why())))
    __builtin_trap();
  if (launch.stage() == NodeLaunch::Stage::ready) {
    const std::int64_t port = launch.server()["port"].integer();
    if (port < 0 || port > 65535 || launch.server()["address"].string().find('/') != std::string::npos)
      __builtin_trap();
  }
  return 0;
}
