#!/usr/bin/env bash
# bench.sh [--with-torch] [--rounds N] [--case MODEL,CONTEXT,PRECISION[,RECOMPUTE]] [kernels|training|parallel|start|checkpoint|manifest]...:
# measures this machine, all of it or the parts that are named; N rounds of training and of starting (5), of training that case alone.
# --with-torch: PyTorch's steps by turns with ours, from a virtual environment that is made in build/ (some gigabytes). Keeps what it prints,
# and training's figures as JSON, in tests/bench/results/, by date, processor (name, family, model), parts and case. Never part of the
# tests: machines differ and are noisy.
source "$(dirname "$0")/common.sh"
cd "$root"
all_parts=(kernels training parallel start checkpoint manifest)
parts=()
rounds=5
torch=()
case=()
while [ $# -gt 0 ]; do
  case $1 in
    --with-torch) torch=(--python build/bench-torch/bin/python --torch-script tests/bench/torch_training.py) ;;
    --rounds)
      if ! is_number "${2-}" || [ "$2" -eq 0 ]; then refuse "$1 ${2-}"; fi
      rounds=$2
      shift
      ;;
    --case)
      [ -n "${2-}" ] || refuse "$1"
      case=(--case "$2")
      shift
      ;;
    *)
      [[ " ${all_parts[*]} " == *" $1 "* ]] || refuse "$1"
      parts+=("$1")
      ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || parts=("${all_parts[@]}")
if [ ${#case[@]} -gt 0 ] && [[ " ${parts[*]} " != *" training "* ]]; then refuse "--case, which is of training"; fi
install "${build_packages[@]}" "${test_packages[@]}"
if [ ${#torch[@]} -gt 0 ]; then
  install python3-venv python3-dev g++
  [ -x build/bench-torch/bin/python ] || python3 -m venv build/bench-torch
  build/bench-torch/bin/python -c 'import torch' 2>/dev/null || build/bench-torch/bin/pip install --quiet torch numpy
fi
cmake --preset release -DSCALETRAIN_BUILD_TESTS=ON >/dev/null
targets=("${parts[@]/#/bench_}")
cmake --build --preset release --target "${targets[@]/bench_start/scaletrain}"

processor=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1 | tr -cs 'a-zA-Z0-9\n' -)
# Virtual machines say "AMD EPYC" of several generations: family and model tell them apart.
generation=$(sed -n 's/^cpu family[^:]*: //p; s/^model[^:a-z]*: //p' /proc/cpuinfo | head -n 2 | paste -sd -)
results=tests/bench/results/$(date -u +%F)-${processor:-unknown}${generation:+-$generation}
[ ${#parts[@]} -eq ${#all_parts[@]} ] || results+=$(printf -- '-%s' "${parts[@]}")
[ ${#case[@]} -eq 0 ] || results+=-${case[1]//,/-}
mkdir -p tests/bench/results

# Seconds from the command to the end of the first step: of the first round, which may find nothing in any cache, and of the others.
measure_start() {
  local round folder lines pid line began seconds=()
  [ -d build/quickstart-data ] || make_quickstart_data build/quickstart-data
  date -u +%F
  echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors"
  folder=$(mktemp -d)
  for round in $(seq "$rounds"); do
    began=${EPOCHREALTIME/./}
    exec {lines}< <(exec build/release/bin/scaletrain run configs/quickstart.yaml --set run.directory="$folder/$round" 2>&1)
    pid=$!
    line=
    until [[ $line == "step 1/"* ]]; do
      read -r -u "$lines" line || { echo "scaletrain run ended before its first step" >&2; exit 1; }
    done
    seconds+=("$(awk -v from="$began" -v to="${EPOCHREALTIME/./}" 'BEGIN { printf "%.2f", (to - from) / 1e6 }')")
    kill "$pid"
    cat <&"$lines" >/dev/null  # until it has ended
    exec {lines}<&-
  done
  rm -rf "$folder"
  echo "  the first round  ${seconds[0]} s"
  [ "$rounds" -gt 1 ] || return 0
  echo "  the others       ${seconds[*]:1} s"
  echo "  their median     $(printf '%s\n' "${seconds[@]:1}" | sort -n | sed -n "$(((rounds + 1) / 2))p") s"
}

run_part() {
  case $1 in
    kernels)
      say "kernels against the ceilings of the same run"
      build/release/bin/bench_kernels
      ;;
    training)
      say "training steps against the matrix-product ceiling of the same run"
      build/release/bin/bench_training --rounds "$rounds" "${case[@]}" "${torch[@]}" --json "$results.json"
      ;;
    parallel)
      say "parallelism: ranks as processes, one thread each"
      build/release/bin/bench_parallel
      ;;
    start)
      say "from the command to the end of the first step: the quickstart's eight ranks"
      measure_start
      ;;
    checkpoint)
      say "checkpoints in the background (bars: held up for 10 % of a step, a step beside one 15 % longer, write at 80 % of the disk's sequential speed)"
      build/release/bin/bench_checkpoint
      ;;
    manifest)
      say "the manifest of a checkpoint of 65,536 ranks (about a minute, 3.1 GiB)"
      build/release/bin/bench_manifest
      ;;
  esac
}
for part in "${parts[@]}"; do run_part "$part"; done 2>&1 | tee "$results.txt"
