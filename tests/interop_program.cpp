// A program in C++ for tests/interop_test.py: on a node of a Python cluster it is the worker server, and by itself it
// has Python workers do what it asks of them.
//   interop_program <python>
#include <cstdio>
#include <cstdlib>
#include <miniray/miniray.hpp>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

class Counter {
 public:
  explicit Counter(int start) : count_(start) {}
  int increment(int by) { return count_ += by; }

 private:
  int count_;
};

double mean(std::span<const double> numbers) {
  if (numbers.empty()) throw std::invalid_argument("the mean of nothing");
  return std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(numbers.size());
}

void offer_functions() {
  miniray::registry()
      .add("square", [](double x) { return x * x; })
      .add("join", [](const std::string& a, const std::vector<std::string>& more) {
        return std::accumulate(more.begin(), more.end(), a);
      });
  miniray::registry().add("mean", mean).add("crash", [] { std::abort(); });
  miniray::registry().add_class<Counter, int>("Counter").method("increment", &Counter::increment);
}

// A rank of a group, whose other ranks may be Python workers: adds up, and sends all that it got.
void add_up(miniray::Handle& handle) {
  miniray::Group group = miniray::Group::join(handle);
  for (;;) {
    const auto count = handle.recv<std::size_t>();
    std::vector<float> numbers(count, static_cast<float>(group.rank() + 1));
    group.all_reduce(std::span(numbers));
    const double mine = numbers.empty() ? 0 : numbers.back();
    std::vector<double> all(static_cast<std::size_t>(group.size()));
    group.all_gather(std::span(&mine, 1), std::span(all));
    handle.send(all);
  }
}

template <class Call>
void print_failure(Call call) {
  try {
    (void)call();
    std::printf("nothing was thrown\n");
  } catch (const miniray::CallError& error) {
    std::printf("%s: %s\n", error.type().c_str(), error.message().c_str());
  } catch (const miniray::WorkerDied& died) {
    std::printf("died with code %d\n", died.certificate().exit_code);
  }
}

void call_python(miniray::Worker& worker) {
  miniray::Caller caller(worker);
  std::printf("%g\n", caller.call<double>("math.sqrt", 2.25));
  auto future = caller.call_async<std::string>("operator.add", "from ", "both");
  std::printf("%s\n", future.get(30).c_str());
  caller.create("counts", "collections.Counter", "abca");
  std::printf("%d\n", caller.call<int>("counts.__getitem__", "a"));
  std::printf("%d\n", caller.call<int>("builtins.int", "ff", miniray::Keywords{{"base", 16}}));
  print_failure([&] { return caller.call<double>("math.sqrt", -1); });
  print_failure([&] { return caller.call<int>("math.sqrt", "four"); });
  print_failure([&] { return caller.call("math.no_such_function"); });
  print_failure([&] { return caller.call("builtins.object"); });
}

void share_out_among_python(miniray::Cluster& cluster) {
  miniray::Pool pool(cluster);
  std::vector<int> numbers(200);
  std::iota(numbers.begin(), numbers.end(), 0);
  const std::vector<int> negative = pool.map<int>("operator.neg", numbers);
  std::printf("%d\n", std::accumulate(negative.begin(), negative.end(), 0));
  print_failure([&] { return pool.submit<double>("math.sqrt", -1).get(30); });
  print_failure([&] { return pool.submit<int>("os._exit", 7).get(30); });
  std::printf("%d\n", pool.submit<int>("operator.add", 1, 2).get(30));
}

}  // namespace

int main(int argc, char** argv) {
  offer_functions();
  miniray::init(argc, argv, {{"miniray.serve_calls", miniray::serve_calls}, {"add_up", add_up}});
  if (argc != 2) {
    std::fprintf(stderr, "usage: interop_program <python>\n");
    return EXIT_FAILURE;
  }
  miniray::ClusterOptions options;
  options.progress = false;
  options.program = miniray::ServerProgram::python(argv[1]);
  miniray::Cluster cluster({{.host = "localhost", .num_workers = 2, .base_port = 0}}, options);
  call_python(cluster.start("miniray.serve_calls")[0]);
  share_out_among_python(cluster);
  return EXIT_SUCCESS;
}
