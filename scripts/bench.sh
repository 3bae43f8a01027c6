#!/usr/bin/env bash
# bench.sh [STEPS [THREADS [MICRO-BATCH]]]: measures the kernels, whole training steps (of so many, by so many threads) and what
# parallelism costs on this machine. Never part of the tests: machines differ and are noisy.
source "$(dirname "$0")/common.sh"
cd "$root"
for argument in "$@"; do is_number "$argument" || refuse "$argument"; done
[ $# -le 3 ] || refuse "$4"
install "${build_packages[@]}" "${test_packages[@]}"
cmake --preset release -DSCALETRAIN_BUILD_TESTS=ON >/dev/null
cmake --build --preset release --target bench_kernels bench_training bench_parallel bench_checkpoint bench_manifest
say "kernels against the matrix-product ceiling of the same run"
build/release/bin/bench_kernels
say "GPT-2 124M, T=1024, fp32"
build/release/bin/bench_training "$@"
say "parallelism: ranks as processes over Gloo, one thread each (bars: data 1.7 x, memory within 3 %)"
build/release/bin/bench_parallel
say "checkpoints in the background (bars: held up for 10 % of a step, write at 80 % of the disk's sequential speed)"
build/release/bin/bench_checkpoint
say "the manifest of a checkpoint of 65,536 ranks (about a minute, 3.1 GiB)"
build/release/bin/bench_manifest
