#include "miniray/error.hpp"

#include <doctest/doctest.h>
#include <signal.h>

#include <cerrno>
#include <stdexcept>

#include "base/error_text.hpp"

namespace miniray {

TEST_CASE("the error of a system call has the operation and the reason") {
  const SystemError error("open the door", ENOENT);
  CHECK(std::string(error.what()) == "cannot open the door: No such file or directory");
  CHECK(error.error_number() == ENOENT);
}

TEST_CASE("an error of a work function has its remote traceback, if there is one") {
  const WorkerError with("worker 7", "ValueError", "no", "File x, line 3");
  CHECK(std::string(with.what()) ==
        "the work function of worker 7 raised ValueError: no\n\nIn the worker:\nFile x, line 3");
  CHECK(with.worker() == "worker 7");
  CHECK(with.type() == "ValueError");
  CHECK(with.message() == "no");
  CHECK(with.traceback() == "File x, line 3");
  const WorkerError without("worker 7", "ValueError", "no", "");
  CHECK(std::string(without.what()) == "the work function of worker 7 raised ValueError: no");
}

TEST_CASE("a death certificate names the most precise cause") {
  DeathCertificate certificate;
  CHECK(certificate.cause().find("other code in this process took it") != std::string::npos);
  certificate.exit_code = 3;
  CHECK(certificate.cause().find("exited with code 3") != std::string::npos);
  certificate.exit_code = -1;
  certificate.signal = SIGSEGV;
  CHECK(certificate.cause() == "was killed by SIGSEGV (Segmentation fault)");
  certificate.signal = 1000;
  CHECK(certificate.cause() == "was killed by signal 1000");
  certificate.out_of_memory = true;
  CHECK(certificate.cause().find("memory") != std::string::npos);
  certificate.lost = "is unreachable";
  CHECK(certificate.cause() == "is unreachable");
}

TEST_CASE("a death certificate has a paragraph for each thing that is known, and none for the others") {
  DeathCertificate certificate;
  certificate.worker = "worker 7";
  certificate.signal = SIGKILL;
  CHECK(certificate.text() == "worker 7 was killed by SIGKILL (Killed).");
  certificate.peak_bytes = 3 * 1024 * 1024 / 2;
  certificate.stack = "STACK";
  certificate.last_output = "OUTPUT";
  certificate.last_messages = "MESSAGES";
  const std::string text = certificate.text();
  CHECK(text.find("1.5 MiB") < text.find("STACK"));
  CHECK(text.find("STACK") < text.find("OUTPUT"));
  CHECK(text.find("OUTPUT") < text.find("MESSAGES"));
  CHECK(text.find("MESSAGES") != std::string::npos);
}

TEST_CASE("the error of a death has the whole certificate, and a note if there is one") {
  DeathCertificate certificate;
  certificate.worker = "worker 7";
  certificate.exit_code = 1;
  const WorkerDied died(certificate);
  CHECK(std::string(died.what()) == certificate.text());
  CHECK(died.certificate().exit_code == 1);
  CHECK(std::string(WorkerRestarted(certificate, "Another took its place.").what()) ==
        certificate.text() + "\n\nAnother took its place.");
}

TEST_CASE("the text and the type of a stored exception") {
  CHECK(text_of(std::make_exception_ptr(UsageError("a mistake"))) == "a mistake");
  CHECK_THROWS_AS((void)text_of(std::make_exception_ptr(42)), int);  // MiniRay itself throws no int
  CHECK(type_name(std::out_of_range("far")) == "std::out_of_range");
  const UsageError error("a mistake");
  CHECK(type_name(static_cast<const std::exception&>(error)) == "miniray::UsageError");
}

TEST_CASE("numbers in errors have no trailing zeros") {
  CHECK(number_text(60) == "60");
  CHECK(number_text(0.5) == "0.5");
  CHECK(number_text(0) == "0");
}

}  // namespace miniray
