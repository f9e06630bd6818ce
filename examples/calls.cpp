// Calls functions and objects of workers, with many calls at once on several workers.
//   calls [numbers] [workers]
#include <cstdio>
#include <cstdlib>
#include <miniray/miniray.hpp>
#include <string>
#include <vector>

namespace {

class Total {
 public:
  explicit Total(double start) : total_(start) {}
  void add(double number) { total_ += number; }
  [[nodiscard]] double value() const { return total_; }

 private:
  double total_;
};

double square(double x) { return x * x; }

}  // namespace

int main(int argc, char** argv) {
  const int numbers = argc > 1 ? std::atoi(argv[1]) : 1000;
  const int count = argc > 2 ? std::atoi(argv[2]) : 4;
  if (numbers < 1 || count < 1) {
    std::fprintf(stderr, "usage: calls [numbers] [workers]\n");
    return EXIT_FAILURE;
  }

  // Register before the workers start: they have what this program has at that time.
  miniray::registry().add("square", square);
  miniray::registry().add_class<Total, double>("Total").method("add", &Total::add).method("value", &Total::value);

  std::vector<miniray::Worker> workers;
  for (int i = 0; i < count; ++i) workers.emplace_back(miniray::serve_calls);
  std::vector<miniray::Caller> callers;
  for (miniray::Worker& worker : workers) callers.emplace_back(worker);

  // Start all calls before waiting for the first result.
  std::vector<miniray::CallFuture<double>> squares;
  for (int i = 0; i < numbers; ++i)
    squares.push_back(callers[static_cast<std::size_t>(i % count)].call_async(square, i));
  double sum = 0;
  for (const double each : miniray::when_all(squares).get()) sum += each;

  // Create an object that lives in its worker.
  miniray::Caller& first = callers.front();
  first.create("total", "Total", 0.0);
  for (int i = 0; i < numbers; ++i) first.call<void>("total.add", square(i));
  const auto total = first.call<double>("total.value");

  // A lambda without captures needs no registration: the worker runs the same program.
  const double half = first.call([](double x) { return x / 2; }, total);

  try {
    first.call("square", "three");
  } catch (const miniray::CallError& error) {
    std::printf("%s\n", error.message().c_str());  // square takes (double), and argument 1 is a string: "three"
  }
  std::printf("The sum of %d squares is %.0f, and %.0f one after the other.\n", numbers, sum, total);
  return sum == total && 2 * half == total ? EXIT_SUCCESS : EXIT_FAILURE;
}
