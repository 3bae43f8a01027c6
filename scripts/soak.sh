#!/usr/bin/env bash
# The long forms of the process tests: every layout as real processes over Gloo for 50 steps. Arguments go to ctest.
source "$(dirname "$0")/common.sh"
cd "$root"
install "${build_packages[@]}" "${test_packages[@]}"
cmake --preset release -DSCALETRAIN_BUILD_TESTS=ON >/dev/null
cmake --build --preset release
say "layouts as real processes, 50 steps each"
SCALETRAIN_SOAK_STEPS=50 ctest --preset release --no-tests=error -R '^layouts$' --timeout 3600 "$@"
