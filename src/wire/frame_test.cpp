#include "wire/frame.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "miniray/error.hpp"

namespace miniray {
namespace {

void feed(FrameReader& reader, std::string_view bytes, std::size_t piece) {
  while (!bytes.empty()) {
    const std::span<std::byte> room = reader.room();
    const std::size_t size = std::min<std::size_t>({room.size(), piece, bytes.size()});
    std::memcpy(room.data(), bytes.data(), size);
    reader.commit(size);
    bytes.remove_prefix(size);
  }
}

std::string frame(const FrameHead& head, std::span<const BufferEntry> entries, const std::string& rest) {
  std::string bytes;
  append_frame_prefix(bytes, head, {}, entries);
  return bytes + rest;
}

}  // namespace

TEST_CASE("a buffer's place is stored as the number in the frame's table") {
  CHECK(BufferPlace().in_stream());
  CHECK(BufferPlace().route() == BufferPlace::Route::stream);
  CHECK(std::bit_cast<std::uint64_t>(BufferPlace()) == 0);
  const auto check = [](BufferPlace place, BufferPlace::Route route, std::uint64_t in_table) {
    CHECK(!place.in_stream());
    CHECK(place.route() == route);
    CHECK(place.number() == 7);
    CHECK(std::bit_cast<std::uint64_t>(place) == in_table);
  };
  check(BufferPlace::slot(7), BufferPlace::Route::slot, 7);
  check(BufferPlace::supplied(7), BufferPlace::Route::supplied, (std::uint64_t{1} << 63) + 7);
  check(BufferPlace::kept(7), BufferPlace::Route::kept, (std::uint64_t{1} << 62) + 7);
}

TEST_CASE("a frame's bytes are those of docs/wire_format.md") {
  FrameHead head;
  head.codec = Codec::json;
  head.buffer_count = 1;
  head.body_bytes = 4;
  const BufferEntry entry{2, {}};
  const std::string expected(
      "MR\x00\x01\x01\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00"
      "\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
      "nullxy",
      38);
  CHECK(frame(head, {&entry, 1}, "nullxy") == expected);
}

TEST_CASE("a call's head comes before its table, and is checked") {
  FrameHead head;
  head.kind = Message::Kind::call;
  head.body_bytes = 1;
  std::string bytes;
  append_frame_prefix(bytes, head, {7, -2, 3}, {});
  const std::string expected(
      "MR\x05\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00"
      "\x07\x00\x00\x00\x00\x00\x00\x00\xfe\xff\xff\xff\xff\xff\xff\xff\x03\x00\x00\x00\x00\x00\x00\x00",
      40);
  CHECK(bytes == expected);
  bytes += 'b';
  for (const std::size_t piece : {1UL, 17UL, 100UL}) {
    FrameReader reader;
    feed(reader, bytes, piece);
    REQUIRE(reader.has_frame());
    const Frame made = reader.take_frame();
    CHECK(made.call.number == 7);
    CHECK(made.call.time_ns == -2);
    CHECK(made.call.verb == 3);
    CHECK(made.body == "b");
    CHECK(made.stream_bytes() == bytes.size());
    CHECK(parse_frame(bytes).call.number == 7);
  }
  bytes[39] = 1;
  FrameReader reader;
  CHECK_THROWS_AS(feed(reader, bytes, bytes.size()), ProtocolError);
  CHECK_THROWS_AS((void)parse_frame(bytes), ProtocolError);
}

TEST_CASE("a frame without buffers is parsed and written at once as it is piece by piece") {
  for (const Message::Kind kind : {Message::Kind::message, Message::Kind::call, Message::Kind::reply}) {
    const Message sent{kind, Codec::json, {-5, 77, 2}, "[1,2]", {}};
    std::string bytes;
    append_frame_prefix(bytes, {.kind = kind, .codec = Codec::json, .body_bytes = 5}, sent.head, {});
    const PlainPrefix prefix(sent);
    CHECK(bytes == std::string_view(reinterpret_cast<const char*>(prefix.bytes().data()), prefix.bytes().size()));
    bytes += sent.body;
    std::optional<Message> got;
    REQUIRE(parse_plain_message(bytes, 1000, got));
    CHECK((got->kind == kind && got->codec == Codec::json && got->body == sent.body));
    CHECK(got->head.number == (has_call_head(kind) ? -5 : 0));
    CHECK_FALSE(parse_plain_message(bytes.substr(0, bytes.size() - 1), 1000, got));
    CHECK_FALSE(parse_plain_message(bytes + "x", 1000, got));
    CHECK_FALSE(parse_plain_message(bytes.substr(0, 20), 1000, got));
    CHECK_THROWS_AS((void)parse_plain_message(bytes, 4, got), MessageTooLarge);
    bytes[0] = 'X';
    CHECK_THROWS_AS((void)parse_plain_message(bytes, 1000, got), ProtocolError);
  }
  std::optional<Message> got;
  CHECK_FALSE(parse_plain_message(frame({.kind = Message::Kind::bell}, {}, ""), 1000, got));
  CHECK_FALSE(parse_plain_message(frame({.kind = Message::Kind::end}, {}, ""), 1000, got));
}

TEST_CASE("frames are parsed from pieces of any size") {
  FrameHead head;
  head.buffer_count = 2;
  head.body_bytes = 200'000;
  const BufferEntry entries[] = {{300'000, {}}, {0, {}}};
  const std::string one = frame(head, entries, std::string(200'000, 'b') + std::string(300'000, 'x'));
  for (const std::size_t piece : {1UL, 7UL, 4096UL, 65'536UL, 1'000'000UL}) {
    FrameReader reader;
    feed(reader, one + one + one.substr(0, 1000), piece);
    for (int i = 0; i < 2; ++i) {
      REQUIRE(reader.has_frame());
      const Frame made = reader.take_frame();
      CHECK(made.body == std::string(200'000, 'b'));
      REQUIRE(made.buffers.size() == 2);
      CHECK(std::memcmp(made.buffers[0].data, std::string(300'000, 'x').data(), 300'000) == 0);
      CHECK(made.buffers[1].size == 0);
    }
    CHECK_FALSE(reader.has_frame());
    CHECK(reader.pending_bytes() == 1000);
    CHECK(reader.announced_bytes() == 500'000);
  }
}

TEST_CASE("bytes that are not a frame are refused, and too large a frame before memory is allocated") {
  const auto refused = [](std::string_view bytes) {
    FrameReader reader;
    feed(reader, bytes, bytes.size());
  };
  CHECK_THROWS_AS(refused("GET / HTTP/1.1\r\n\r\n"), ProtocolError);
  FrameHead head;
  head.body_bytes = limits::body_bytes_max + 1;
  CHECK_THROWS_WITH_AS(refused(frame(head, {}, "")),
                       "the peer announced a message with a body of 1073741825 bytes; the limit is 1073741824",
                       MessageTooLarge);
  head = {};
  head.buffer_count = limits::buffers_max + 1;
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  CHECK_THROWS_AS(refused(bytes), MessageTooLarge);
  head.buffer_count = 2;
  const BufferEntry entries[] = {{UINT64_MAX, {}}, {UINT64_MAX, {}}};
  CHECK_THROWS_AS(refused(frame(head, entries, "")), MessageTooLarge);
  head = {};
  head.kind = static_cast<Message::Kind>(12);
  CHECK_THROWS_AS(refused(frame(head, {}, "")), ProtocolError);
}

TEST_CASE("a frame above the threshold is held back until the threshold is raised") {
  FrameHead head;
  head.body_bytes = 5000;
  FrameReader reader;
  reader.set_hold_above(100);
  feed(reader, frame(head, {}, std::string(5000, 'b')), 1'000'000);
  CHECK(reader.holds_back());
  CHECK_FALSE(reader.has_frame());
  reader.set_hold_above(UINT64_MAX);
  CHECK(reader.has_frame());
}

}  // namespace miniray
