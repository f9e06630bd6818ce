#include "base/secret.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/system.hpp"
#include "miniray/error.hpp"

namespace miniray {

TEST_CASE("copies of a secret share its bytes, which a forked child does not have") {
  Secret secret(5);
  CHECK(secret.text() == std::string_view("\0\0\0\0\0", 5));
  memcpy(secret.get().data(), "digit", 5);
  const Secret copy = secret;  // NOLINT(performance-unnecessary-copy-initialization)
  CHECK(copy.text() == "digit");
  const unsigned char* const bytes = secret.get().data();
  const pid_t child = fork();
  if (child == 0) {
    try {
      (void)secret.get();
      _exit(1);  // a child that took zeros for the key would let everybody in
    } catch (const UsageError&) {
    }
    _exit(memcmp(bytes, "\0\0\0\0\0", 5) == 0 ? 0 : 2);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(secret.text() == "digit");  // the parent still has it
}

TEST_CASE("a variable is wiped where the program has set it, and gone from the environment") {
  system::set_environment("MINIRAY_TEST_SECRET", "value");
  system::set_environment("MINIRAY_TEST_SECRETLY", "kept");
  const char* const value = std::getenv("MINIRAY_TEST_SECRET");
  wipe_from_environment("MINIRAY_TEST_SECRET");
  CHECK(std::getenv("MINIRAY_TEST_SECRET") == nullptr);
  CHECK(memcmp(value, "\0\0\0\0\0", 5) == 0);  // the C library keeps the entry's memory
  CHECK(std::string(std::getenv("MINIRAY_TEST_SECRETLY")) == "kept");
  system::remove_from_environment("MINIRAY_TEST_SECRETLY");
}

}  // namespace miniray
