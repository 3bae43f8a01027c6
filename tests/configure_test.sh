#!/usr/bin/env bash
# What CMake says where no program for GPUs will be made, and where tests of them will be missing; and what it refuses.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# says TEXT OPTIONS...: configuring with the options prints the text; refuses: and fails. By Ninja, as the presets do: there may be no make.
configure() { rm -rf "$folder/build"; cmake -G Ninja -S "$root" -B "$folder/build" "$@" 2>&1 | tr '\n' ' ' | tr -s ' '; }
says() {
  local text=$1 output; shift
  output=$(configure "$@") || { echo "CMake fails with $*: $output" >&2; exit 1; }
  [[ $output == *"$text"* ]] || { echo "with $* CMake does not say \"$text\": $output" >&2; exit 1; }
}
refuses() {
  local text=$1 output; shift
  ! output=$(configure "$@") || { echo "CMake does not refuse $*" >&2; exit 1; }
  [[ $output == *"$text"* ]] || { echo "with $* CMake does not say \"$text\": $output" >&2; exit 1; }
}

refuses 'SCALETRAIN_CUDA is ON beside SCALETRAIN_SANITIZE' -DSCALETRAIN_CUDA=ON -DSCALETRAIN_SANITIZE=address
refuses 'expected AUTO, ON or OFF' -DSCALETRAIN_CUDA=YES
says 'Training on GPUs: no, SCALETRAIN_CUDA is OFF' -DSCALETRAIN_CUDA=OFF -DSCALETRAIN_BUILD_TESTS=OFF
says 'Training on GPUs: no, beside sanitizers' -DSCALETRAIN_SANITIZE=address -DSCALETRAIN_BUILD_TESTS=OFF
output=$(configure -DSCALETRAIN_SANITIZE=address -DSCALETRAIN_NCCL_INCLUDE=OFF)
[[ $output == *'Tests of NCCL: none, nccl.h is not there'* || $output == *'Tests of what runs on GPUs: none'* ]] ||
  { echo "CMake does not say that tests of NCCL are missing: $output" >&2; exit 1; }
