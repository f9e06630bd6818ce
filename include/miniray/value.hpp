// The content of a message, as a C++ program sees it. A Value is written and read like JSON:
//   worker.send({{"cmd", "multiply"}, {"A", a}});
//   if (msg["cmd"] == "shutdown") ...; auto a = msg["A"].array<double>();
//
// A Value owns what it holds, and copying it copies that; only the bytes of arrays are shared until they are written
// to. A Value that was moved from is null. Any thread may read a Value while no thread changes it.
//
// What a reference or a span refers to lives as long as the Value. Calls on a Value that has no name, such as
// worker.recv()["a"].string(), therefore return objects that own their content.
//
// Other types convert to and from values through Convert (convert.hpp): structs, enums, containers, times, paths.
#pragma once

#include <compare>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "miniray/array.hpp"
#include "miniray/export.hpp"

namespace MINIRAY_API miniray {

class Value;
using List = std::vector<Value>;
/// Entries keep the order in which they were added. A key is null, a bool, a number, a string or bytes. Maps compare as
/// vectors of entries; the Values that hold them compare without regard to the order.
using Map = std::vector<std::pair<Value, Value>>;
/// Raw bytes. Python receives them as bytes, and a std::string as str.
struct Bytes {
  std::string data;
  friend bool operator==(const Bytes&, const Bytes&) = default;
};

template <class T>
struct Convert;  // in convert.hpp
template <class Item>
class ValueIterator;
template <class Container>
class TakenOut;

namespace detail {

/// The types for which Value has a constructor of its own.
template <class T>
concept HeldByValue =
    std::integral<T> || std::same_as<T, float> || std::same_as<T, double> || std::is_pointer_v<T> ||
    std::is_array_v<T> || std::same_as<T, std::nullptr_t> || std::same_as<T, std::string_view> ||
    std::same_as<T, std::string> || std::same_as<T, Bytes> || std::same_as<T, List> || std::same_as<T, Map> ||
    std::same_as<T, Array> || std::same_as<T, TakenOut<List>> || std::same_as<T, TakenOut<Map>>;
/// What names a key: a literal, a std::string, a std::string_view.
template <class T>
concept KeyName = std::convertible_to<const T&, std::string_view> && !std::same_as<T, std::nullptr_t>;
/// Throws UsageError if the pointer is null.
[[nodiscard]] std::string_view name_from(const char* name);
[[nodiscard]] inline std::string_view name_from(std::string_view name) { return name; }

/// What value(key, fallback) returns: a std::string for a literal.
template <class T>
using Fallback = std::conditional_t<std::is_convertible_v<T, std::string_view>, std::string, std::decay_t<T>>;

}  // namespace detail

class Value {
 public:
  enum class Kind : std::uint8_t { null, boolean, integer, unsigned_integer, real, string, bytes, list, map, array };
  /// What stands in braces: anything that converts to a Value, or braces again.
  class Element;

  Value() noexcept = default;
  Value(std::nullptr_t) noexcept {}
  Value(bool boolean) noexcept : kind_(Kind::boolean) { data_.boolean = boolean; }
  template <std::signed_integral T>
  Value(T integer) noexcept : kind_(Kind::integer) {
    data_.integer = integer;  // NOLINT(bugprone-signed-char-misuse): a number, not a character
  }
  /// An unsigned number that fits into int64 is stored as int64, so that equal numbers are equal values.
  template <std::unsigned_integral T>
    requires(!std::same_as<T, bool>)
  Value(T integer) noexcept {
    data_.unsigned_integer = integer;
    kind_ = data_.unsigned_integer <= static_cast<std::uint64_t>(INT64_MAX) ? Kind::integer : Kind::unsigned_integer;
  }
  Value(double real) noexcept : kind_(Kind::real) { data_.real = real; }
  Value(float real) noexcept : Value(static_cast<double>(real)) {}
  /// Throws UsageError if the pointer is null. The value null is nullptr.
  Value(const char* string);
  /// Deleted, because a pointer would otherwise convert to bool.
  template <class T>
    requires(!std::same_as<std::remove_cv_t<T>, char>)
  Value(T* pointer) = delete;
  Value(std::string_view string);
  Value(std::string string);
  Value(Bytes bytes);
  Value(List list);
  Value(Map map);
  Value(Array array);
  /// Braces make a map if every element is a pair whose first part is a string, else a list. So Value{1} is a list of
  /// one number, and Value(1) is a number. Empty braces are null.
  Value(std::initializer_list<Element> elements);
  /// Makes what Convert<T>::to() makes of the object: a map of a struct, an array of a vector of numbers.
  template <class T>
    requires(!std::same_as<std::remove_cvref_t<T>, Value> && !detail::HeldByValue<std::remove_cvref_t<T>> &&
             requires(T&& object) { Convert<std::remove_cvref_t<T>>::to(std::forward<T>(object)); })
  Value(T&& object) : Value(static_cast<Value>(Convert<std::remove_cvref_t<T>>::to(std::forward<T>(object)))) {}
  /// Makes a list, even if every element looks like an entry of a map.
  static Value list(std::initializer_list<Element> elements);

  Value(const Value& other) : data_(other.data_), kind_(other.kind_), added_(other.added_) {
    if (owns()) copy_content();
  }
  Value(Value&& other) noexcept : data_(other.data_), kind_(other.kind_), added_(other.added_) {
    other.kind_ = Kind::null;
  }
  Value& operator=(const Value& other) { return *this = Value(other); }
  Value& operator=(Value&& other) noexcept {
    if (this == &other) return *this;
    const Value old(std::move(*this));  // destroyed last, because `other` may be a part of it
    data_ = other.data_;
    kind_ = std::exchange(other.kind_, Kind::null);
    added_ = other.added_;
    return *this;
  }
  ~Value() {
    if (owns()) destroy_content();
  }

  [[nodiscard]] Kind kind() const noexcept { return kind_; }
  [[nodiscard]] bool is_null() const noexcept { return kind_ == Kind::null; }
  [[nodiscard]] bool is_number() const noexcept { return kind_ >= Kind::integer && kind_ <= Kind::real; }
  [[nodiscard]] bool is_string() const noexcept { return kind_ == Kind::string; }
  [[nodiscard]] bool is_list() const noexcept { return kind_ == Kind::list; }
  [[nodiscard]] bool is_map() const noexcept { return kind_ == Kind::map; }
  [[nodiscard]] bool is_array() const noexcept { return kind_ == Kind::array; }

  // Each of these throws ValueError if the value is of another kind; the text names that kind. A reference is valid for
  // as long as the value lives and is not changed. Calls on a value that has no name return the content itself, or a
  // copy of it if the value is const.
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] std::int64_t integer() const;
  [[nodiscard]] std::uint64_t unsigned_integer() const;
  [[nodiscard]] double real() const;  ///< takes integers too
  [[nodiscard]] const std::string& string() const& MINIRAY_LIFETIMEBOUND;
  [[nodiscard]] std::string string() &&;
  [[nodiscard]] std::string string() const&& { return string(); }
  [[nodiscard]] const std::string& bytes() const& MINIRAY_LIFETIMEBOUND;
  [[nodiscard]] std::string bytes() &&;
  [[nodiscard]] std::string bytes() const&& { return bytes(); }
  [[nodiscard]] const List& list() const& MINIRAY_LIFETIMEBOUND;
  [[nodiscard]] List& list() & MINIRAY_LIFETIMEBOUND;
  [[nodiscard]] TakenOut<List> list() &&;
  [[nodiscard]] TakenOut<List> list() const&&;
  [[nodiscard]] const Map& map() const& MINIRAY_LIFETIMEBOUND;
  [[nodiscard]] Map& map() & MINIRAY_LIFETIMEBOUND;
  [[nodiscard]] TakenOut<Map> map() &&;
  [[nodiscard]] TakenOut<Map> map() const&&;
  [[nodiscard]] const Array& array() const& MINIRAY_LIFETIMEBOUND;
  [[nodiscard]] Array& array() & MINIRAY_LIFETIMEBOUND;
  [[nodiscard]] Array array() &&;
  [[nodiscard]] Array array() const&& { return array(); }
  /// Returns the elements of an array in C order, without copying them. Throws ValueError if they are not of type T.
  template <class T>
  [[nodiscard]] std::span<const T> array() const& MINIRAY_LIFETIMEBOUND {
    return array().template elements<T>();
  }
  /// The same of a value that has no name: the result keeps the elements' memory alive.
  template <class T>
  [[nodiscard]] ArrayElements<std::remove_const_t<T>> array() && {
    return std::move(*this).array().template elements<T>();
  }
  template <class T>
  [[nodiscard]] ArrayElements<std::remove_const_t<T>> array() const&& {
    return Array(array()).template elements<T>();
  }
  /// Returns the elements for writing, as Array::mutable_elements() does: memory that is shared with another Value or
  /// borrowed with Array::view() is copied first.
  template <class T>
      [[nodiscard]] std::span<T> mutable_array() & MINIRAY_LIFETIMEBOUND {
    return array().template mutable_elements<T>();
  }

  /// Converts the value to T, as convert<T>() does (convert.hpp). Throws Mismatch. A T that refers to memory, such as
  /// std::string_view or std::span, refers to this value's, so it cannot be got from a value that has no name.
  template <class T>
  [[nodiscard]] T get() const& MINIRAY_LIFETIMEBOUND;
  template <class T>
      [[nodiscard]] T get() & MINIRAY_LIFETIMEBOUND;
  template <class T>
  [[nodiscard]] T get() &&;
  template <class T>
  [[nodiscard]] T get() const&&;
  /// Converts the value of a key to the type of the fallback. Returns the fallback if the map does not have the key.
  /// Throws Mismatch if the key has a value of another type.
  template <detail::KeyName Name, class T>
  [[nodiscard]] detail::Fallback<T> value(const Name& key, T&& fallback) const;

  /// Returns the value of a key, or the element of a list if the key is an integer. Throws ValueError, which lists the
  /// existing keys, if the map does not have the key, and ValueError if the list is shorter.
  [[nodiscard]] const Value& operator[](const Value& key) const& MINIRAY_LIFETIMEBOUND;
  /// The same for a value that may be changed, except that a key which the map does not have is added with the value
  /// null, so that `map["key"] = 1` works; null becomes a map first. To read a message, keep it in a const Value, or
  /// use at(): a misspelt key is an error then. Reading the null that this call has added is an error, too.
  [[nodiscard]] Value& operator[](const Value& key) & MINIRAY_LIFETIMEBOUND;
  /// The same as of a const value, for a value that has no name.
  [[nodiscard]] Value operator[](const Value& key) &&;
  [[nodiscard]] Value operator[](const Value& key) const&& { return (*this)[key]; }
  template <detail::KeyName Name>
  [[nodiscard]] const Value& operator[](const Name& key) const& MINIRAY_LIFETIMEBOUND {
    return entry(detail::name_from(key));
  }
  template <detail::KeyName Name>
      [[nodiscard]] Value& operator[](const Name& key) & MINIRAY_LIFETIMEBOUND {
    return entry_or_new(detail::name_from(key));
  }
  template <detail::KeyName Name>
  [[nodiscard]] Value operator[](const Name& key) && {
    return std::move(const_cast<Value&>(entry(detail::name_from(key))));
  }
  template <detail::KeyName Name>
  [[nodiscard]] Value operator[](const Name& key) const&& {
    return entry(detail::name_from(key));
  }
  /// Returns the value of a key, which is never added. Throws ValueError if the map does not have it.
  template <detail::KeyName Name>
  [[nodiscard]] const Value& at(const Name& key) const& MINIRAY_LIFETIMEBOUND {
    return entry(detail::name_from(key));
  }
  template <detail::KeyName Name>
  [[nodiscard]] Value at(const Name& key) && {
    return std::move(*this)[key];
  }
  template <detail::KeyName Name>
  [[nodiscard]] Value at(const Name& key) const&& {
    return entry(detail::name_from(key));
  }
  /// Returns an element of a list. Throws ValueError if the list is shorter.
  [[nodiscard]] const Value& at(std::size_t index) const& MINIRAY_LIFETIMEBOUND;
  [[nodiscard]] Value at(std::size_t index) &&;
  [[nodiscard]] Value at(std::size_t index) const&& { return at(index); }
  /// Returns the value of a key, or nullptr if the map does not have the key.
  [[nodiscard]] const Value* find(const Value& key) const& MINIRAY_LIFETIMEBOUND;
  template <detail::KeyName Name>
  [[nodiscard]] const Value* find(const Name& key) const& MINIRAY_LIFETIMEBOUND {
    return find_name(detail::name_from(key));
  }
  /// Deleted, because the pointer would refer to a value that is gone: give the message a name first.
  template <class Key>
  const Value* find(const Key& key) && = delete;
  template <class Key>
  const Value* find(const Key& key) const&& = delete;
  /// Returns whether a map has the key. Throws ValueError if the value is no map.
  template <class Key>
  [[nodiscard]] bool contains(const Key& key) const {
    return find(key) != nullptr;
  }
  /// Appends to a list. Null becomes a list first.
  void push_back(Value element);
  /// Removes a key. Returns false if the map does not have it.
  bool erase(const Value& key);

  /// Returns how many elements a list or an array has, how many entries a map, how many bytes a string or bytes.
  [[nodiscard]] std::size_t size() const;
  /// Returns whether the size is 0. Null is empty.
  [[nodiscard]] bool empty() const { return is_null() || size() == 0; }
  /// The elements of a list, or the values of a map in the order of its entries. Null has none. Throws ValueError if
  /// the value is of another kind.
  [[nodiscard]] ValueIterator<const Value> begin() const& MINIRAY_LIFETIMEBOUND;
  [[nodiscard]] ValueIterator<const Value> end() const& MINIRAY_LIFETIMEBOUND;
  [[nodiscard]] ValueIterator<Value> begin() & MINIRAY_LIFETIMEBOUND;
  [[nodiscard]] ValueIterator<Value> end() & MINIRAY_LIFETIMEBOUND;
  /// Deleted, because the iterator would refer to a value that is gone. A range-for over a value without a name works.
  ValueIterator<const Value> begin() const&& = delete;
  ValueIterator<const Value> end() const&& = delete;
  /// The entries of a map: for (const auto& [key, value] : message.items()).
  [[nodiscard]] const Map& items() const& MINIRAY_LIFETIMEBOUND { return map(); }
  [[nodiscard]] TakenOut<Map> items() &&;
  [[nodiscard]] TakenOut<Map> items() const&&;

  /// Compares bit for bit, so NaN equals itself. An integer never equals a real. The order of a map's entries does not
  /// matter.
  friend bool operator==(const Value& a, const Value& b);
  template <detail::KeyName String>
  friend bool operator==(const Value& a, const String& b) {
    return a.is_string() && *a.data_.string == detail::name_from(b);
  }
  /// A total order that agrees with ==: null, bools, numbers, strings, bytes, lists, maps, arrays. Numbers are ordered
  /// by size; of an integer and a real of the same size, the integer comes first.
  friend std::strong_ordering operator<=>(const Value& a, const Value& b);

  /// Returns JSON for people to read: long strings, long lists and arrays are abridged.
  [[nodiscard]] std::string text() const;
  /// Writes text().
  friend std::ostream& operator<<(std::ostream& stream, const Value& value);
  /// Equal values have equal hashes. std::hash<Value> uses it.
  [[nodiscard]] std::size_t hash() const;

 private:
  friend class Mismatch;  // it says that a null was added
  union Data {
    bool boolean;
    std::int64_t integer = 0;
    std::uint64_t unsigned_integer;
    double real;
    std::string* string;  // also the bytes
    List* list;
    Map* map;
    Array* array;
  };
  [[nodiscard]] bool owns() const noexcept { return kind_ >= Kind::string; }
  void copy_content();
  void destroy_content() noexcept;
  void require(Kind kind, const char* wanted) const;
  [[noreturn]] void refuse(const char* wanted) const;
  [[nodiscard]] const Value* find_name(std::string_view name) const;
  [[nodiscard]] const Value& entry(std::string_view name) const;
  [[nodiscard]] Value& entry_or_new(std::string_view name);

  Data data_{};
  Kind kind_ = Kind::null;
  bool added_ = false;  // this null was added by operator[], and has not been assigned to
};

class Value::Element {
 public:
  Element() = default;
  template <class T>
    requires std::is_convertible_v<T, Value>
  Element(T&& object) : value_(std::forward<T>(object)) {}
  Element(std::initializer_list<Element> elements) : value_(elements) {}

 private:
  friend class Value;
  mutable Value value_;  // moved out, because an initializer_list gives const elements
};

/// The List or Map that was taken out of a value without a name, as in `worker.recv().list()`. While it has no name
/// itself, its elements are moved out of it, so that nothing refers to what is gone: `worker.recv().list()[0]` is a
/// Value, and not a reference.
template <class Container>
class TakenOut : public Container {
 public:
  using Item = typename Container::value_type;

  TakenOut(Container container) noexcept : Container(std::move(container)) {}
  [[nodiscard]] Item& operator[](std::size_t index) & { return Container::operator[](index); }
  [[nodiscard]] const Item& operator[](std::size_t index) const& { return Container::operator[](index); }
  [[nodiscard]] Item operator[](std::size_t index) && { return std::move(Container::operator[](index)); }
  [[nodiscard]] Item& at(std::size_t index) & { return Container::at(index); }
  [[nodiscard]] const Item& at(std::size_t index) const& { return Container::at(index); }
  [[nodiscard]] Item at(std::size_t index) && { return std::move(Container::at(index)); }
  [[nodiscard]] Item& front() & { return Container::front(); }
  [[nodiscard]] const Item& front() const& { return Container::front(); }
  [[nodiscard]] Item front() && { return std::move(Container::front()); }
  [[nodiscard]] Item& back() & { return Container::back(); }
  [[nodiscard]] const Item& back() const& { return Container::back(); }
  [[nodiscard]] Item back() && { return std::move(Container::back()); }
  [[nodiscard]] auto begin() & { return Container::begin(); }
  [[nodiscard]] auto begin() const& { return Container::begin(); }
  void begin() && = delete;
  [[nodiscard]] auto end() & { return Container::end(); }
  [[nodiscard]] auto end() const& { return Container::end(); }
  void end() && = delete;
  [[nodiscard]] Item* data() & { return Container::data(); }
  [[nodiscard]] const Item* data() const& { return Container::data(); }
  void data() && = delete;
};

/// Goes through the elements of a list or the values of a map. It is valid until the value is changed.
template <class Item>
class ValueIterator {
 public:
  using value_type = Value;
  using reference = Item&;
  using pointer = Item*;
  using difference_type = std::ptrdiff_t;
  using iterator_category = std::forward_iterator_tag;
  using Entry = std::conditional_t<std::is_const_v<Item>, const Map::value_type, Map::value_type>;

  ValueIterator() = default;
  explicit ValueIterator(Item* element) : element_(element) {}
  explicit ValueIterator(Entry* entry) : entry_(entry) {}
  [[nodiscard]] Item& operator*() const { return entry_ != nullptr ? entry_->second : *element_; }
  [[nodiscard]] Item* operator->() const { return &**this; }
  ValueIterator& operator++() {
    if (entry_ != nullptr)
      ++entry_;
    else
      ++element_;
    return *this;
  }
  ValueIterator operator++(int) {
    ValueIterator old = *this;
    ++*this;
    return old;
  }
  friend bool operator==(const ValueIterator&, const ValueIterator&) = default;

 private:
  Item* element_ = nullptr;
  Entry* entry_ = nullptr;
};

/// Returns the kind with its article: "a string", "an array".
[[nodiscard]] const char* name_of(Value::Kind kind);

}  // namespace miniray

template <>
struct std::hash<miniray::Value> {
  std::size_t operator()(const miniray::Value& value) const { return value.hash(); }
};
