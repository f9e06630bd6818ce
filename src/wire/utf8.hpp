// Whether bytes are text. Strings are checked on both sides, so that no peer ever sees a string that is not one.
#pragma once

#include <cstddef>
#include <string_view>

namespace miniray {

[[nodiscard]] bool is_utf8(std::string_view bytes);

}  // namespace miniray
