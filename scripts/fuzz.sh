#!/usr/bin/env bash
# fuzz.sh [--keep] [SECONDS] [TARGET...]: builds the fuzz targets with Clang and runs each for so long (30 s by default) from its
# corpus in tests/fuzz. Fails at the first finding, whose input is left in build/fuzz/findings. --keep: the corpus gains the inputs
# that reach code which it did not reach before.
source "$(dirname "$0")/common.sh"
cd "$root"
keep=
if [ "${1:-}" = --keep ]; then keep=1; shift; fi
seconds=${1:-30}
[ $# -eq 0 ] || shift
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for source in tests/fuzz/*_fuzz.cpp; do
    name=$(basename "$source" _fuzz.cpp)
    targets+=("$name")
  done
fi
is_number "$seconds" || refuse "$seconds"
for target in "${targets[@]}"; do [ -f "tests/fuzz/${target}_fuzz.cpp" ] || refuse "$target"; done

install "${build_packages[@]}" "${test_packages[@]}" "${sanitizer_packages[@]}"
say "building the fuzz targets"
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz
findings=build/fuzz/findings
mkdir -p "$findings"
for target in "${targets[@]}"; do
  say "$target, $seconds s"
  corpus=tests/fuzz/corpus/$target
  found=build/fuzz/found/$target
  mkdir -p "$found"
  # Inputs are of a few KiB; one that takes seconds or hundreds of MiB is a finding as well.
  build/fuzz/bin/fuzz_"$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=256 -max_len=16384 \
    -artifact_prefix="$findings/$target-" -print_final_stats=1 -verbosity=0 -close_fd_mask=1 "$found" "$corpus"
  if [ -n "$keep" ]; then
    build/fuzz/bin/fuzz_"$target" -merge=1 -max_len=4096 -verbosity=0 "$corpus" "$found"
  fi
done
