#!/bin/sh
# Runs the tests of what turns messages into Python objects and back, in an extension module that was built with ASan and
# UBSan: tools/sanitize_python.sh BUILD PYTHON [TEST...]
set -eu
build=$(realpath "$1") python=$(realpath -s "$2")
shift 2
root=$(realpath "$(dirname "$0")/..")
test $# -gt 0 || set -- mutated_messages_test message_types_test mistakes_sending_test channel_pair_test in_place_test

# The package of the source folder, with the other module.
package=$build/package
rm -rf "$package"
mkdir -p "$package/miniray"
for file in "$root"/python/miniray/*.py; do ln -s "$file" "$package/miniray/"; done
for file in "$build"/python/_core.*.so; do ln -s "$file" "$package/miniray/"; done

# The sanitizer has to be loaded before anything else, and needs the C++ library to follow exceptions.
libraries=$(for name in libasan.so libubsan.so libstdc++.so; do realpath "$(${CXX:-c++} -print-file-name=$name)"; done)
tests=$(for test in "$@"; do echo "$root/tests/$test.py"; done)
cd "$root"
# Python allocates by itself, and frees little at its end; so leaks are not looked for.
env LD_PRELOAD="$(echo $libraries)" PYTHONPATH="$package" PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 \
    UBSAN_OPTIONS=print_stacktrace=1 MINIRAY_MUTATIONS="${MINIRAY_MUTATIONS:-20000}" \
    "$python" -m pytest -p no:cacheprovider --timeout=600 $tests
