// The fuzzers, as functions that a program without libFuzzer calls. CMake makes the file that defines them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

using Fuzzer = int (*)(const std::uint8_t* data, std::size_t size);
/// Returns all fuzzers by name.
const std::map<std::string, Fuzzer>& all_fuzzers();
