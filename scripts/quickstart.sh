#!/usr/bin/env bash
# quickstart.sh: from a fresh Debian 12 machine to a trained model: installs, builds the program, trains on Vim's manual, shows the result.
# On a machine with an NVIDIA driver and the CUDA 13 toolkit it trains on the first GPU, elsewhere on processors.
# May be run again at any time: what is done already is not done again; a finished training is shown again.
source "$(dirname "$0")/common.sh"
cd "$root"
[ $# -eq 0 ] || refuse "$1"
install "${build_packages[@]}" "${quickstart_packages[@]}"

gpu=$(gpu_to_train_on)
options=()
targets=(scaletrain)
if [ -n "$gpu" ]; then
  options=(-DSCALETRAIN_CUDA=ON -DSCALETRAIN_CUDA_ARCHITECTURES="$gpu-real")
  targets+=(scaletrain-cuda)
  fetch_cudnn_frontend
fi

say "building the program"
cmake --preset release -DSCALETRAIN_BUILD_TESTS=OFF "${options[@]}" >/dev/null
cmake --build --preset release --target "${targets[@]}"
scaletrain=build/release/bin/scaletrain

[ -d build/quickstart-data ] || make_quickstart_data build/quickstart-data
settings=()
if [ -n "$gpu" ]; then
  # One rank: eight would share the GPU.
  settings=(--set parallel.data=1 --set parallel.tensor=1 --set parallel.pipeline=1)
elif grep -q avx512_bf16 /proc/cpuinfo && ! grep -q amx_bf16 /proc/cpuinfo; then
  # Little more than half of fp32's time; with AMX nobody has measured it.
  settings=(--set precision.compute=bf16)
fi
say "training on Vim's manual: scaletrain run configs/quickstart.yaml ${settings[*]}"
"$scaletrain" run configs/quickstart.yaml "${settings[@]}"

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
