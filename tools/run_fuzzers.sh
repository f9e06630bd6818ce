#!/bin/sh
# Runs every fuzzer of a build folder for a number of seconds, each with its own corpus.
set -eu
build=$1 seconds=$2
for fuzzer in "$build"/fuzzers/*_fuzz; do
    name=$(basename "$fuzzer")
    mkdir -p "$build/corpus/$name"
    echo "$name: $seconds s"
    if ! "$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$build/" "$build/corpus/$name" >"$build/$name.log" 2>&1; then
        tail -n 60 "$build/$name.log"
        exit 1
    fi
    grep number_of_executed_units "$build/$name.log"
done
