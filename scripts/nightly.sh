#!/usr/bin/env bash
# nightly.sh [HOURS]: the net behind the gate, hours of it. Everything that .ci/run tests and all that it leaves out: clang-tidy on every
# file, every test, layouts for 50 steps, all unit tests under the sanitizers, five minutes of each fuzz target, planted errors, the
# soaks (for so many hours at least; default 1). The first failure ends it.
source "$(dirname "$0")/common.sh"
cd "$root"
hours=${1:-1}
is_number "$hours" || refuse "$hours"
[ $# -le 1 ] || refuse "$2"
install "${sanitizer_packages[@]}"
say "formatter"
scripts/format.sh --check
say "a test for every fault, trap and finding"
scripts/coverage.sh
say "layers include what lies below them"
scripts/layers.sh
say "no word that a better one has replaced"
scripts/words.sh
say "kernels for every GPU that is supported: none keeps anything in local memory"
cmake --preset release -DSCALETRAIN_BUILD_TESTS=ON -DSCALETRAIN_CUDA_ARCHITECTURES="80-real;90-real;100" >/dev/null
say "every test, layouts for 50 steps, memory refused at 32 moments of each process, every kernel's cases in every type"
SCALETRAIN_SOAK_STEPS=50 SCALETRAIN_MEMORY_TRIES=32 SCALETRAIN_PARITY_ALL=1 scripts/test.sh
say "each source compiled by itself, as who works on it does"
cmake --preset dev -DSCALETRAIN_BUILD_TESTS=ON >/dev/null
cmake --build --preset dev
say "clang-tidy on every file"
scripts/tidy.sh all
say "address and undefined-behaviour sanitizers"
# With the checks that double the compile time (null, alignment, vptr), which the gate leaves out.
cmake --preset asan-all >/dev/null
cmake --build --preset asan-all
SCALETRAIN_SANITIZED_ALL=1 ctest --preset asan-all --no-tests=error -j2
say "thread sanitizer"
cmake --preset tsan >/dev/null
cmake --build --preset tsan-all
ctest --preset tsan-all --no-tests=error -j2
say "fuzz targets"
scripts/fuzz.sh 300
say "errors in every switch of training, planted one by one"
scripts/planted-errors.sh
say "soaks"
scripts/soak.sh "$hours"
