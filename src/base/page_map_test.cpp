#include "base/page_map.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/system.hpp"

namespace miniray {
namespace {

constexpr std::size_t page_count = 8;

// A private mapping of a file.
class Mapping {
 public:
  Mapping() : file_(system::sealed_memory("miniray-test", bytes())) {
    void* const at = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE, file_.get(), 0);
    REQUIRE(at != MAP_FAILED);
    at_ = static_cast<std::byte*>(at);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { munmap(at_, bytes()); }

  [[nodiscard]] static std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }
  [[nodiscard]] std::span<std::byte> all() const { return {at_, bytes()}; }
  [[nodiscard]] std::span<std::byte> pages(std::size_t first, std::size_t count) const {
    return all().subspan(first * page_bytes(), count * page_bytes());
  }

 private:
  [[nodiscard]] static std::size_t bytes() { return page_count * page_bytes(); }
  Fd file_;
  std::byte* at_ = nullptr;
};

}  // namespace

TEST_CASE("memory that was only read is unwritten") {
  const Mapping mapping;
  CHECK(system::is_unwritten(mapping.all()));  // no page of it is there yet
  for (const std::byte& each : mapping.all()) REQUIRE(*static_cast<const volatile std::byte*>(&each) == std::byte{0});
  CHECK(system::is_unwritten(mapping.all()));
  CHECK(system::is_unwritten({}));
}

TEST_CASE("one written byte shows in every range that has a part of its page, and in no other") {
  const Mapping mapping;
  mapping.pages(3, 1).back() = std::byte{1};
  CHECK_FALSE(system::is_unwritten(mapping.all()));
  CHECK_FALSE(system::is_unwritten(mapping.pages(3, 1).first(1)));
  CHECK_FALSE(system::is_unwritten(mapping.pages(3, 1).last(1)));
  CHECK(system::is_unwritten(mapping.pages(0, 3)));
  CHECK(system::is_unwritten(mapping.pages(4, page_count - 4)));
  CHECK_FALSE(system::is_unwritten(mapping.all().subspan(mapping.page_bytes() - 1, 2 * mapping.page_bytes() + 2)));
}

TEST_CASE("a page that was written to stays written, even with what the file has") {
  const Mapping mapping;
  mapping.all().front() = std::byte{1};
  mapping.all().front() = std::byte{0};
  CHECK_FALSE(system::is_unwritten(mapping.all()));
}

}  // namespace miniray
