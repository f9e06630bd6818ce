// Decides which connection a server closes if too many of them have not proved yet that they have the key: the oldest
// one of the address that has the most. So an address that floods the server displaces its own connections only, and
// clients at other addresses are let in.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace miniray {

class PendingLimits {
 public:
  /// A connection's number. Newer connections have larger numbers.
  using Number = std::uint64_t;

  PendingLimits(std::size_t all_max, std::size_t of_address_max) : all_max_(all_max), of_address_max_(of_address_max) {}

  void add(const std::string& address, Number number);
  /// Does nothing if the connection is not counted (any more).
  void remove(const std::string& address, Number number);
  /// Returns the connection to close before one more of `address` is added; nothing if there is room for it.
  [[nodiscard]] std::optional<Number> surplus(const std::string& address) const;
  /// Returns the oldest connection of the address that has the most; of several such addresses, the one whose oldest
  /// connection is older. Returns nothing if there are no connections.
  [[nodiscard]] std::optional<Number> oldest_of_busiest() const;
  [[nodiscard]] std::size_t count() const { return count_; }

 private:
  using Numbers = std::set<Number>;
  // The order of by_size_: more connections come later, and among as many, older ones come later.
  using Size = std::pair<std::size_t, Number>;
  static Size size_of(const Numbers& numbers) { return {numbers.size(), ~*numbers.begin()}; }

  std::size_t all_max_, of_address_max_, count_ = 0;
  std::map<std::string, Numbers> by_address_;
  std::map<Size, Number> by_size_;  // each address's oldest connection
};

}  // namespace miniray
