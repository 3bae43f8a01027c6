# Sourced by the other scripts: where the project is, and how its packages are installed. Not to be run by itself.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '\n== %s\n' "$*"; }

# What a script takes stands in the comment that it begins with.
tell_usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }
# refuse ARGUMENT: one that the script does not know. Before anything is installed or built.
refuse() {
  echo "$(basename "$0"): unknown argument $1; --help tells what there is" >&2
  exit 2
}
is_number() { [[ $1 =~ ^[0-9]+$ ]]; }
case " $* " in
  *' -h '* | *' --help '*)
    tell_usage
    exit 0
    ;;
esac

# install PACKAGE...: what is missing, by apt; nothing is asked and nothing is done when all are there.
install() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then return; fi
  command -v apt-get >/dev/null || { echo "these Debian packages are needed: ${missing[*]}" >&2; exit 1; }
  local as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  say "installing ${missing[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# fetch_wheel WHAT WITHOUT PLATFORM HASH PACKAGE==VERSION: unpacks a wheel of PyPI into a folder, whose name it prints; who calls it removes
# that. Fails where it cannot be had, and says what is done WITHOUT it.
fetch_wheel() {
  local what=$1 without=$2 platform=$3 hash=$4 package=$5 wheels
  say "fetching $what" >&2
  if ! python3 -m pip --version >/dev/null 2>&1 && ! (install python3-pip) >&2; then
    echo "there is no pip to fetch them: $without" >&2
    return 1
  fi
  wheels=$(mktemp -d)
  echo "$package --hash=sha256:$hash" >"$wheels/wanted"
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 --implementation cp \
    --abi cp311 --platform "$platform" --require-hashes --dest "$wheels" --requirement "$wheels/wanted" >&2; then
    echo "they cannot be had: $without" >&2
    rm -rf "$wheels"
    return 1
  fi
  python3 -m zipfile -e "$wheels"/*.whl "$wheels"
  echo "$wheels"
}

# Headers of cuDNN's frontend, by which the module for GPUs is built to use cuDNN for attention: a wheel of one version. Without them,
# or where they cannot be had, it is built without.
fetch_cudnn_frontend() {
  local folder=$root/build/cudnn-frontend wheel
  [ ! -e "$folder/include/cudnn_frontend.h" ] || return 0
  [ "$(uname -m)" = x86_64 ] || return 0
  wheel=$(fetch_wheel "the headers of cuDNN's frontend" "attention on GPUs will be our own kernels' alone" manylinux_2_27_x86_64 \
    c6006556017a4d1c914c52a556c71b1267f2d6a0500f742e7b4edef539878df0 nvidia-cudnn-frontend==1.32.0) || return 0
  mkdir -p "$folder"
  mv "$wheel/include" "$folder/include"
  rm -rf "$wheel"
}

# What the module for Parquet is built with: headers and libraries of Apache Arrow, of which Debian has no package: a wheel of one
# version. Without them, or where they cannot be had, Parquet is refused.
fetch_arrow() {
  local folder=$root/build/arrow wheel
  [ ! -e "$folder/lib/libparquet.so.2600" ] || return 0
  [ "$(uname -m)" = x86_64 ] || return 0
  wheel=$(fetch_wheel "Apache Arrow's libraries" "Parquet will be refused" manylinux_2_28_x86_64 \
    39cb0f2418282c24bea6ceda77b03e5a8f0a5766b63a8bf194d4e2a2c423548c pyarrow==26.0.1) || return 0
  rm -rf "$folder"
  mkdir -p "$folder/lib"
  mv "$wheel/pyarrow/include" "$folder/include"
  # Last: it says that all is there.
  mv "$wheel/pyarrow/libarrow.so.2600" "$wheel/pyarrow/libparquet.so.2600" "$folder/lib"
  rm -rf "$wheel"
}

build_packages=(g++ cmake ninja-build pkg-config git ca-certificates libyaml-cpp-dev libcli11-dev nlohmann-json3-dev libspdlog-dev
  libfmt-dev libxxhash-dev libdnnl-dev ocl-icd-opencl-dev libgloo-dev libsodium-dev zlib1g-dev
  libzstd-dev libsentencepiece-dev)
test_packages=(doctest-dev vim-runtime ccache slurm-wlm munge)
check_packages=(clang-format-14 clang-tidy-14)
sanitizer_packages=(clang-14 libclang-rt-14-dev lld-14)  # fuzz targets too
# Real English text for the quickstart: Vim's manual, under Vim's licence (free, compatible with the GPL).
quickstart_packages=(vim-runtime)

# Splits Vim's manual into training and held-out files: every tenth file, in order of names, is held out.
make_quickstart_data() {
  local data=$1 documents index=0 file
  documents=$(dpkg -L vim-runtime | grep -E '/vim/vim[0-9]+/doc$' | head -n 1)
  rm -rf "$data.part"
  mkdir -p "$data.part/train" "$data.part/held-out"
  for file in "$documents"/*.txt; do
    index=$((index + 1))
    if [ $((index % 10)) -eq 0 ]; then cp "$file" "$data.part/held-out/"; else cp "$file" "$data.part/train/"; fi
  done
  rm -rf "$data"
  mv "$data.part" "$data"
}

# "90" of the first GPU, if it can train here; else nothing, and what there is says why not.
gpu_to_train_on() {
  command -v nvidia-smi >/dev/null || return 0
  local capability
  capability=$({ nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>&1 || true; } | head -n 1)
  if ! [[ $capability =~ ^[0-9]+\.[0-9]$ ]]; then
    say "training on processors: nvidia-smi says: ${capability:-nothing}" >&2
  elif [ "${capability/./}" -lt 80 ]; then
    say "training on processors: the GPU is of sm_${capability/./}, and sm_80 is the oldest that is supported" >&2
  elif ! PATH=$PATH:/usr/local/cuda/bin nvcc --version 2>/dev/null | grep -Eq 'release (1[3-9]|[2-9][0-9])'; then
    say "training on processors: to train on the GPU, install the CUDA 13 toolkit and run this again" >&2
  else
    echo "${capability/./}"
  fi
}
