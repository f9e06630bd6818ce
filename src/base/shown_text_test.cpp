#include "base/shown_text.hpp"

#include <doctest/doctest.h>

#include "miniray/limits.hpp"

namespace miniray {

TEST_CASE("control characters are escaped, and colours only where they are not wanted") {
  struct Case {
    const char *text, *kept, *escaped;
  };
  for (const auto& [text, kept, escaped] : {
           Case{"plain\ttext\nof two lines", "plain\ttext\nof two lines", "plain\ttext\nof two lines"},
           Case{"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80",
                "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
           Case{"\x1b[1;31mred\x1b[m", "\x1b[1;31mred\x1b[m", "\\x1b[1;31mred\\x1b[m"},
           Case{"\x1b[2J\x1b]0;t\x07", "\\x1b[2J\\x1b]0;t\\x07", "\\x1b[2J\\x1b]0;t\\x07"},
           Case{"\x1b[31", "\\x1b[31", "\\x1b[31"},
           Case{"\x1b[31?m", "\\x1b[31?m", "\\x1b[31?m"},
           Case{"\xc2\x9b"
                "2J \xc2\xa0",
                "\\x9b2J \xc2\xa0", "\\x9b2J \xc2\xa0"},
           Case{"\x9b \xff \xed\xa0\x80 \xc0\xaf", "\\x9b \\xff \\xed\\xa0\\x80 \\xc0\\xaf",
                "\\x9b \\xff \\xed\\xa0\\x80 \\xc0\\xaf"},
           Case{"\xe2\x82", "\\xe2\\x82", "\\xe2\\x82"},
           Case{"over\rwritten\r\nlines\r", "over\\x0dwritten\nlines", "over\\x0dwritten\nlines"},
           Case{"\x7f", "\\x7f", "\\x7f"},
       }) {
    CAPTURE(text);
    CHECK(shown(text, Colours::keep) == kept);
    CHECK(shown(text, Colours::escape) == escaped);
  }
  CHECK(shown(std::string_view("a\0b", 3), Colours::keep) == "a\\x00b");
}

TEST_CASE("a text that an error quotes is one short line") {
  CHECK(in_quotes("two\nlines\x1b") == "\"two\\nlines\\x1b\"");
  CHECK(in_quotes(std::string(1000, 'x')) == "\"" + std::string(limits::quoted_bytes_max, 'x') + "...\"");
}

}  // namespace miniray
