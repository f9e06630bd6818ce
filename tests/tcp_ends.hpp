// The two ends of a TCP connection over loopback.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>
#include <utility>

namespace miniray {

inline std::pair<int, int> tcp_ends() {
  const auto require = [](int result, const char* what) {
    if (result < 0) throw std::runtime_error(what);
    return result;
  };
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* at = reinterpret_cast<sockaddr*>(&address);
  const int listener = require(socket(AF_INET, SOCK_STREAM, 0), "socket");
  require(bind(listener, at, size), "bind");
  require(listen(listener, 1), "listen");
  require(getsockname(listener, at, &size), "getsockname");
  const int here = require(socket(AF_INET, SOCK_STREAM, 0), "socket");
  require(connect(here, at, size), "connect");
  const int there = require(accept(listener, nullptr, nullptr), "accept");
  close(listener);
  const int on = 1;
  for (const int end : {here, there}) setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return {here, there};
}

}  // namespace miniray
