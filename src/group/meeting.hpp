// How the ranks of a group on several machines meet. Each rank listens, tells the coordinator where, learns from it
// where the others are, and connects to them. The protocol is in docs/collectives.md.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/fd.hpp"
#include "group/links.hpp"
#include "group/segment.hpp"
#include "miniray/handle.hpp"
#include "miniray/value.hpp"

namespace miniray {

// The only keys of the messages between the coordinator and a rank that joins, in the order of these messages.
inline constexpr const char* invitation_key = "miniray.group";   // to the rank
inline constexpr const char* place_key = "miniray.group.place";  // to the coordinator
inline constexpr const char* map_key = "miniray.group.map";      // to the rank
inline constexpr const char* report_key = "miniray.group.report";
inline constexpr const char* verdict_key = "miniray.group.verdict";  // to the rank, instead of the map if that fails

/// What a rank has when it has met the others.
struct Met {
  Fd memory;  ///< which it shares with the ranks of its machine
  GroupNodes nodes;
  GroupLinks links;
};

/// Meets the other ranks. Throws GroupBroken, which says why, if some of them cannot meet; all ranks, and
/// create_group(), throw then.
[[nodiscard]] Met meet(Handle& handle, const Value& invitation, std::size_t rank,
                       const std::vector<GroupMember>& members, const std::function<void()>& on_interrupt);

}  // namespace miniray
