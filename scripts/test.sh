#!/usr/bin/env bash
# test.sh [OPTION OF CTEST]...: installs what building and testing needs, builds everything, runs every test.
source "$(dirname "$0")/common.sh"
cd "$root"
install "${build_packages[@]}" "${test_packages[@]}"
fetch_arrow
[ -d build/quickstart-data ] || { mkdir -p build && make_quickstart_data build/quickstart-data; }

say "building"
cmake --preset release -DSCALETRAIN_BUILD_TESTS=ON >/dev/null
cmake --build --preset release
say "testing"
# Four at a time: the three that wait most of their time, and one that computes.
ctest --preset release --no-tests=error -j4 "$@"
