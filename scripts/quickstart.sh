#!/usr/bin/env bash
# quickstart.sh: from a fresh Debian 12 machine to a trained model: installs, builds the program, trains on Vim's manual, shows the result.
# May be run again at any time: what is done already is not done again; a finished training is shown again.
source "$(dirname "$0")/common.sh"
cd "$root"
[ $# -eq 0 ] || refuse "$1"
install "${build_packages[@]}" "${quickstart_packages[@]}"

say "building the program"
cmake --preset release -DSCALETRAIN_BUILD_TESTS=OFF >/dev/null
cmake --build --preset release --target scaletrain
scaletrain=build/release/bin/scaletrain

[ -d build/quickstart-data ] || make_quickstart_data build/quickstart-data
# With AVX-512 bf16 it takes little more than half of fp32's time; with AMX nobody has measured it.
precision=()
if grep -q avx512_bf16 /proc/cpuinfo && ! grep -q amx_bf16 /proc/cpuinfo; then precision=(--set precision.compute=bf16); fi
say "training on Vim's manual: scaletrain run configs/quickstart.yaml ${precision[*]}"
"$scaletrain" run configs/quickstart.yaml "${precision[@]}"

say "the held-out loss, in nats per byte"
"$scaletrain" evaluate runs/quickstart

say "a sample, after the prompt \":set\""
"$scaletrain" generate runs/quickstart --prompt ":set" --max-tokens 200 --temperature 0.7 --seed 1

say "the losses of the run: scaletrain plot runs/quickstart"
"$scaletrain" plot runs/quickstart

say "where to look next"
cat <<EOF
  $scaletrain schema                      every config key
  $scaletrain check configs/gpt2-124m.yaml   does a larger run fit, and how long does it take
  $scaletrain checkpoint list runs/quickstart
  runs/quickstart/metrics.jsonl           every step's loss
  README.md                               resuming, data, exit codes
EOF
