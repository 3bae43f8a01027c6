#!/usr/bin/env bash
# Scripts tell how they are used, and refuse what they do not know, before they install, build or start anything: each runs in a copy of
# the folder of scripts that holds nothing to build, with no program but those that print and read.
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -r "$source/scripts" "$folder/scripts"
mkdir "$folder/bin"
for program in bash basename cat dirname env grep head sed; do ln -s "$(command -v "$program")" "$folder/bin/$program"; done
cd "$folder"
failures=0

# expect CODE WORDS COMMAND...: WORDS are in what it says.
expect() {
  local code=0 wanted=$1 words=$2
  shift 2
  env -u SLURM_JOB_ID PATH="$folder/bin" "$@" >said 2>&1 || code=$?
  if [ "$code" -ne "$wanted" ] || ! grep -qF -- "$words" said; then
    echo "$*: expected exit code $wanted and \"$words\"; the exit code was $code and the output:"
    sed 's/^/    /' said
    failures=$((failures + 1))
  fi
}

for script in scripts/*.sh scripts/slurm/testbed.sh scripts/slurm/train.sbatch; do
  name=$(basename "$script")
  if [ "$name" = common.sh ]; then continue; fi
  expect 0 "$name" bash "$script" --help
  expect 0 "$name" bash "$script" -h
  # ctest has options that nobody else knows.
  if [ "$name" = test.sh ] || [ "$name" = testbed.sh ] || [ "$name" = train.sbatch ]; then continue; fi
  expect 2 "$name: unknown argument --hepl" bash "$script" --hepl
done
expect 2 'soak.sh: unknown argument two' bash scripts/soak.sh two
expect 2 'soak.sh: unknown argument 2' bash scripts/soak.sh 1 2
expect 2 'fuzz.sh: unknown argument nothing' bash scripts/fuzz.sh 1 nothing
expect 2 'testbed.sh start FOLDER' bash scripts/slurm/testbed.sh --hepl

expect 2 'submit it: sbatch --nodes=4 scripts/slurm/train.sbatch my.yaml' bash scripts/slurm/train.sbatch my.yaml
expect 2 'scaletrain run my.yaml --set train.steps=1' bash scripts/slurm/train.sbatch my.yaml --set train.steps=1
expect 0 'SCALETRAIN_STALLS' bash scripts/slurm/train.sbatch --help

# What the quickstart trains on, where these programs say this.
gpu_where() {
  printf '#!/bin/sh\n%s\n' "$1" >bin/nvidia-smi
  printf '#!/bin/sh\necho "Cuda compilation tools, release %s"\n' "$2" >bin/nvcc
  chmod +x bin/nvidia-smi bin/nvcc
}
chosen=(bash -c 'source scripts/common.sh; echo "it is <$(gpu_to_train_on)>"')
expect 0 'it is <>' "${chosen[@]}"
gpu_where 'echo 9.0; echo 8.0' '13.0, V13.0.88'
expect 0 'it is <90>' "${chosen[@]}"
gpu_where 'echo 12.0' '20.1'
expect 0 'it is <120>' "${chosen[@]}"
gpu_where 'echo 7.5' '13.0'
expect 0 'training on processors: the GPU is of sm_75, and sm_80 is the oldest that is supported' "${chosen[@]}"
expect 0 'it is <>' "${chosen[@]}"
gpu_where 'echo 9.0' '12.4'
expect 0 'training on processors: to train on the GPU, install the CUDA 13 toolkit and run this again' "${chosen[@]}"
gpu_where 'echo "NVIDIA-SMI has failed because it could not communicate with the driver."; exit 9' '13.0'
expect 0 'training on processors: nvidia-smi says: NVIDIA-SMI has failed because' "${chosen[@]}"
expect 0 'it is <>' "${chosen[@]}"

# What the quickstart builds and runs there and elsewhere: all packages are installed, cmake and what it builds say how they are called.
program() {
  printf '#!/bin/bash\n%s\n' "$2" >"bin/$1"
  chmod +x "bin/$1"
}
program dpkg-query 'echo install ok installed'
program uname 'echo x86_64'
# shellcheck disable=SC2016 # of the program
program cmake 'if [ "$1" = --preset ]; then
  mkdir -p build/release/bin
  printf "#!/bin/bash\necho \"scaletrain \$*\"\n" >build/release/bin/scaletrain
  chmod +x build/release/bin/scaletrain
fi
echo "cmake $*" >&2'
for tool in mkdir chmod; do ln -s "$(command -v "$tool")" "bin/$tool"; done
mkdir -p build/quickstart-data build/cudnn-frontend/include
touch build/cudnn-frontend/include/cudnn_frontend.h
gpu_where 'echo 9.0' '13.0'
expect 0 'cmake --preset release -DSCALETRAIN_BUILD_TESTS=OFF -DSCALETRAIN_CUDA=ON -DSCALETRAIN_CUDA_ARCHITECTURES=90-real' \
  bash scripts/quickstart.sh
expect 0 'cmake --build --preset release --target scaletrain scaletrain-cuda' bash scripts/quickstart.sh
expect 0 'scaletrain run configs/quickstart.yaml --set parallel.data=1 --set parallel.tensor=1 --set parallel.pipeline=1' \
  bash scripts/quickstart.sh
rm bin/nvidia-smi bin/nvcc
expect 0 'cmake --build --preset release --target scaletrain' bash scripts/quickstart.sh
if grep -qE 'scaletrain-cuda|DSCALETRAIN_CUDA|parallel.data' said; then
  echo 'the quickstart builds for a GPU where there is none'
  failures=$((failures + 1))
fi

exit $((failures > 0))
