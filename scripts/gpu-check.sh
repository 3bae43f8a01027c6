#!/usr/bin/env bash
# gpu-check.sh [parity]: tests a machine's GPU by the bundle that this script lies in (gpu-bundle.sh), which needs CUDA 13 there and nothing
# else: every operation on the GPU against float64, in fp32, bf16 and fp16. Writes gpu-check.json beside itself; exits 0 if all is well.
# CUDA's libraries are those of the system, or of a Python installation that has them.
set -euo pipefail
case "${1-parity}" in
  -h | --help)
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
  parity) ;;
  *)
    echo "gpu-check.sh: unknown argument $1; --help tells what there is" >&2
    exit 2
    ;;
esac
cd "$(dirname "$0")"
if [ ! -x bin/test_backend ]; then
  echo "gpu-check.sh: there is no bin/test_backend beside this script: run it from the bundle that scripts/gpu-bundle.sh makes" >&2
  exit 2
fi

# The first folder that has cuBLASLt of CUDA 13.
cuda_libraries() {
  local folder
  for folder in /usr/local/cuda/lib64 /usr/local/cuda-13*/lib64 /usr/lib/x86_64-linux-gnu \
    "$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null)"/nvidia/cu13/lib; do
    if [ -e "$folder/libcublasLt.so.13" ]; then
      echo "$folder"
      return
    fi
  done
}
cuda=$(cuda_libraries)
[ -n "$cuda" ] || { echo "gpu-check.sh: libcublasLt.so.13 is nowhere: install CUDA 13" >&2; exit 1; }
export LD_LIBRARY_PATH=$PWD/lib:$cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true)
echo "gpu-check, $(date -u +%FT%TZ): ${gpu:-no GPU that nvidia-smi knows}"
log=$(mktemp)
began=$SECONDS
code=0
bin/test_backend --test-case='the_gpu_of_this_machine*' 2>&1 | tee "$log" || code=$?
result=failed
if grep -q 'MESSAGE: skipped' "$log"; then
  result=skipped
  code=1
elif [ "$code" -eq 0 ] && grep -q 'Status: SUCCESS' "$log"; then
  result=passed
fi
printf '{"date": "%s", "gpu": "%s", "parity": {"result": "%s", "seconds": %d, "assertions": %d}}\n' "$(date -u +%FT%TZ)" "$gpu" "$result" \
  $((SECONDS - began)) "$(sed -n 's/^\[doctest\] assertions: *\([0-9]*\) .*/\1/p' "$log" | head -n 1)" >gpu-check.json
rm -f "$log"
printf '%-10s %-8s %s s\n' part result time parity "$result" $((SECONDS - began))
exit "$code"
