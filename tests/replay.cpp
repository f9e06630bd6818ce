// Feeds the inputs of tests/corpus to the fuzzers, without libFuzzer: `replay <corpus folder>`. An input that a fuzzer
// does not like aborts the program, as it does under libFuzzer; the last line names the input. Each file of the corpus
// has the inputs of one fuzzer, one after another: four bytes for the size, little-endian, then the input.
#include "tests/replay.hpp"

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace {

std::vector<std::string> read_inputs(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(stream), {});
  std::vector<std::string> inputs;
  std::string_view rest(bytes);
  while (!rest.empty()) {
    std::uint32_t size = 0;
    if (rest.size() >= sizeof(size)) std::memcpy(&size, rest.data(), sizeof(size));
    if (rest.size() < sizeof(size) || rest.size() - sizeof(size) < size)
      throw std::runtime_error(file.string() + " ends within an input");
    inputs.emplace_back(rest.substr(sizeof(size), size));
    rest.remove_prefix(sizeof(size) + size);
  }
  if (inputs.empty()) throw std::runtime_error(file.string() + " has no inputs: run `make fuzz`, then `make corpus`");
  return inputs;
}

void replay(const std::string& name, Fuzzer fuzzer, const std::vector<std::string>& inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    std::printf("\r%s: input %zu of %zu", name.c_str(), i + 1, inputs.size());
    std::fflush(stdout);
    // A copy of exactly this size, so that a sanitizer sees a read beyond it.
    const std::vector<std::uint8_t> input(inputs[i].begin(), inputs[i].end());
    (void)fuzzer(input.data(), input.size());
  }
  std::printf("\n");
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: %s <folder of the corpus>\n", arguments[0]);
    return 2;
  }
  try {
    for (const auto& [name, fuzzer] : all_fuzzers())
      replay(name, fuzzer, read_inputs(std::filesystem::path(arguments[1]) / (name + ".inputs")));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "\n%s\n", error.what());
    return 1;
  }
}
