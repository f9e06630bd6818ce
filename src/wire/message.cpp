#include "miniray/message.hpp"

#include "miniray/error.hpp"
#include "wire/json_reader.hpp"
#include "wire/json_writer.hpp"
#include "wire/msgpack_reader.hpp"
#include "wire/msgpack_writer.hpp"
#include "wire/text_writer.hpp"
#include "wire/value_builder.hpp"
#include "wire/value_walk.hpp"

namespace miniray {

const char* name_of(Codec codec) { return codec == Codec::json ? "json" : "msgpack"; }

Codec parse_codec(std::string_view name) {
  if (name == "msgpack") return Codec::msgpack;
  if (name == "json") return Codec::json;
  throw UsageError("unknown codec \"" + std::string(name) + R"("; choose "msgpack" or "json")");
}

Message encode(const Value& value, Codec codec) {
  Message message;
  message.codec = codec;
  // The body of a scalar fits into the string object itself.
  if (value.kind() >= Value::Kind::string) message.body.reserve(limits::body_bytes_expected);
  try {
    if (codec == Codec::json) {
      JsonWriter writer(message);
      walk(value, writer);
    } else {
      MsgpackWriter writer(message);
      walk(value, writer);
    }
  } catch (const UnsendableAt& error) {
    throw Unsendable(error.text());
  }
  return message;
}

Value decode(const Message& message) {
  ValueBuilder builder(message.buffers);
  if (message.codec == Codec::json)
    read_json(message.body, builder);
  else
    read_msgpack(message.body, builder);
  return builder.finish();
}

std::string text_of(Codec codec, std::string_view body) {
  TextWriter writer;
  try {
    if (codec == Codec::json)
      read_json(body, writer);
    else
      read_msgpack(body, writer);
  } catch (const ProtocolError&) {
    // The body is cut short or malformed. The text shows what comes before that.
  }
  return std::move(writer).text();
}

}  // namespace miniray
