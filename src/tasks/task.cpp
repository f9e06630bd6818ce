#include "tasks/task.hpp"

#include "base/check.hpp"

namespace miniray {

void set_lease(Message& call, std::int64_t until_ns) {
  constexpr std::size_t lease_bytes = 9;
  constexpr char uint_64 = static_cast<char>(0xcf);
  std::string& body = call.body;
  MINIRAY_CHECK(body.size() > lease_bytes && body[body.size() - lease_bytes] == uint_64, body.size());
  for (std::size_t i = 1; i < lease_bytes; ++i) body[body.size() - i] = static_cast<char>(until_ns >> (8 * (i - 1)));
}

}  // namespace miniray
