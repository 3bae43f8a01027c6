#!/usr/bin/env bash
# gpu-bundle.sh: builds what gpu-check.sh runs, for machines that have a GPU and CUDA 13 but neither network nor our other libraries.
# Writes build/gpu-bundle/ (bin, lib, golden, gpu-check.sh) and gpu-bundle.tar.gz of it, and says how large they are. CUDA's own libraries
# stay out: that machine's are used. Fails where the packed file is larger than 60 MiB, which is what has to be carried there.
# SCALETRAIN_CUDA_ARCHITECTURES chooses the GPUs to build for, as CMake names them (80-real;90-real;100).
source "$(dirname "$0")/common.sh"
cd "$root"
[ $# -eq 0 ] || refuse "$1"
install "${build_packages[@]}" "${test_packages[@]}"
fetch_cudnn_frontend
cmake --preset release -DSCALETRAIN_BUILD_TESTS=ON -DSCALETRAIN_CUDA=ON \
  -DSCALETRAIN_CUDA_ARCHITECTURES="${SCALETRAIN_CUDA_ARCHITECTURES:-80-real;90-real;100}" >/dev/null
cmake --build --preset release --target test_backend test_equivalence_gpu test_golden_gpu test_gpu test_train_gpu \
  bench_training scaletrain scaletrain-cuda

bundle=build/gpu-bundle
rm -rf "$bundle"
mkdir -p "$bundle/bin" "$bundle/lib" "$bundle/golden"
cp build/release/bin/{test_backend,test_equivalence_gpu,test_golden_gpu,test_gpu,test_train_gpu,bench_training,scaletrain} \
  build/release/bin/libscaletrain-cuda.so "$bundle/bin/"
strip "$bundle/bin/"*
cp scripts/gpu-check.sh tests/bench/torch_training.py "$bundle/"
for model in tests/golden/*/expected.safetensors; do cp -r "$(dirname "$model")" "$bundle/golden/"; done
# Every library but the kernel's interface, the C library and CUDA.
ldd "$bundle/bin/"* | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*|libcublasLt|libcuda|libcudart)\.so' |
  xargs -I{} cp -L {} "$bundle/lib/"
# The C library is that machine's: gpu-check.sh says so where it is older than what these ask for.
find "$bundle/bin" "$bundle/lib" -type f -exec readelf --version-info --wide {} + | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1 |
  sed 's/^GLIBC_//' >"$bundle/glibc"
tar -C build -czf "$bundle.tar.gz" gpu-bundle
du -sh "$bundle" "$bundle.tar.gz" | awk '{ print $2 ": " $1 }'
echo "needs glibc $(cat "$bundle/glibc")"
most=60
if [ "$(stat -c %s "$bundle.tar.gz")" -gt $((most << 20)) ]; then
  echo "gpu-bundle.sh: $bundle.tar.gz is larger than $most MiB; the largest in it, unpacked:" >&2
  find "$bundle" -type f -printf '%s %P\n' | sort -rn | sed 3q >&2
  exit 1
fi
