#!/usr/bin/env bash
# gpu-check.sh [PART]...: tests and measures a machine's GPU by the bundle that this script lies in (gpu-bundle.sh), which needs CUDA 13
# there and nothing else. All parts, or those that are named:
#   parity    every operation on the GPU against float64, in fp32, bf16 and fp16, and linear maps in tf32
#   nccl      what one GPU can show of NCCL: a group of one rank, which sends to itself; absent where the machine has no libnccl.so.2
#   training  the trainer on the GPU against that on the processor, saved and resumed to the bit
#   program   the program: a run whose worker is killed twice ends with the losses of one that nobody disturbs
#   ranks     the program with two ranks that share the GPU (data 2 at ZeRO 3, tensor 2, pipeline 2): the losses of one rank
#   speed     steps of GPT-2 124M, GPT-2 1558M and a Llama of 1.5B in bf16; of the first beside PyTorch's where python3 has it
# GPU_CHECK_STEPS: how many steps the killed run has (2000; fewer for a GPU that the host carries out). Writes gpu-check.json and logs beside
# itself; exits 0 if all is well. CUDA's libraries are those of the system, or of a Python installation that has them.
set -euo pipefail
all=(parity nccl training program ranks speed)
parts=()
for word in "$@"; do
  case "$word" in
    -h | --help)
      sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    parity | nccl | training | program | ranks | speed) parts+=("$word") ;;
    *)
      echo "gpu-check.sh: unknown argument $word; --help tells what there is" >&2
      exit 2
      ;;
  esac
done
[ ${#parts[@]} -gt 0 ] || parts=("${all[@]}")
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
# What a Python installation has beside it: cuDNN and NCCL, each in a folder of its own.
python_libraries() {
  local folder
  for folder in "$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null)"/nvidia/{cudnn,nccl}/lib; do
    if [ -d "$folder" ]; then printf ':%s' "$folder"; fi
  done
}
cuda=$(cuda_libraries)
[ -n "$cuda" ] || { echo "gpu-check.sh: libcublasLt.so.13 is nowhere: install CUDA 13" >&2; exit 1; }
root=$PWD
logs=$root/gpu-check-logs
rm -rf "$logs"
mkdir "$logs"

# A test program; skipped tests are failures here.
run_test() {
  "$root/bin/$1" "${@:2}" >>"$logs/$part.log" 2>&1 || return 1
  if grep -q 'MESSAGE: skipped: run.device' "$logs/$part.log"; then return 1; fi
}
check_parity() { run_test test_backend --test-case='the_gpu_of_this_machine*'; }
check_nccl() {
  run_test test_backend --test-case='nccl_of_this_machine*' || return 1
  if grep -q 'MESSAGE: skipped: NCCL' "$logs/nccl.log"; then result=absent; fi
}
check_training() { run_test test_train_gpu && run_test test_gpu; }

# Losses by step, of steps that were made again the last time.
losses_of() {
  sed -n 's/.*"kind":"step","step":\([0-9]*\),.*"loss":\([^,]*\),.*/\1 \2/p' "$1" | awk '{ loss[$1] = $2 } END { for (s in loss) print s, loss[s] }' | sort -n
}
# Ends a run's worker when it has told of a step.
kill_worker_at() {
  local folder=$1 step=$2 tries
  for tries in $(seq 2000); do
    grep -q "\"step\":$step," "$folder/metrics.jsonl" 2>/dev/null && break
    sleep 0.05
  done
  kill -KILL "$(sed -n 's/^worker \([0-9]*\) started.*/\1/p' "$folder.log" | tail -n 1)"
}
# write_config FOLDER: config.yaml and its text.
write_config() {
  mkdir "$1"
  seq 200000 | awk '{ print "the", $1 % 97, "th of", $1 % 13, "lines" }' | head -c 400000 >"$1/text.txt"
  cat >"$1/config.yaml" <<'CONFIG'
run: {name: gpu-check, directory: undisturbed, device: cuda}
model: {preset: tiny-gpt2, context: 32, vocab: auto}
data:
  cache: cache
  tokenizer: {type: bytes}
  train: [{path: text.txt}]
train: {steps: 1, global_batch: 4, micro_batch: 2, optimizer: {learning_rate: 1e-3}, lr_schedule: {warmup: 5}}
checkpoint: {every: 8, keep: 3}
CONFIG
}
check_program() {
  local folder=$logs/program steps=${GPU_CHECK_STEPS:-2000} name kills
  write_config "$folder"
  for name in undisturbed killed; do
    "$root/bin/scaletrain" run "$folder/config.yaml" --set "run.directory=$folder/$name" --set "train.steps=$steps" >"$folder/$name.log" 2>&1 &
    if [ "$name" = killed ]; then
      kill_worker_at "$folder/$name" $((steps / 4))
      kill_worker_at "$folder/$name" $((steps * 3 / 4))
    fi
    wait $! || return 1
    losses_of "$folder/$name/metrics.jsonl" >"$folder/$name.losses"
  done
  kills=$(grep -c '^worker .* started' "$folder/killed.log")
  echo "workers of the disturbed run: $kills" >>"$logs/program.log"
  [ "$kills" -eq 3 ] && [ "$(wc -l <"$folder/undisturbed.losses")" -eq "$steps" ] && cmp "$folder"/{undisturbed,killed}.losses >>"$logs/program.log"
}

# train_ranks NAME SETTING: twenty steps on the first GPU, whose losses go to NAME.losses.
train_ranks() {
  local gpu=${CUDA_VISIBLE_DEVICES:-0}
  CUDA_VISIBLE_DEVICES=${gpu%%,*} timeout 60 "$root/bin/scaletrain" run "$folder/config.yaml" --set "run.directory=$folder/$1" --set train.steps=20 \
    --set precision.compute=fp32 --set train.lr_schedule.warmup=10 --set supervise.max_restarts=0 --set "$2" >"$folder/$1.log" 2>&1 || return 1
  losses_of "$folder/$1/metrics.jsonl" >"$folder/$1.losses"
  [ "$(wc -l <"$folder/$1.losses")" -eq 20 ]
}
# In fp32, at this rate and warm-up, layouts are held to 1e-5 of each other, whatever computes them.
check_ranks() {
  local folder=$logs/ranks name
  write_config "$folder"
  train_ranks one 'parallel.data=1' && train_ranks data 'parallel={data: 2, zero: 3}' && train_ranks tensor 'parallel.tensor=2' &&
    train_ranks pipeline 'parallel.pipeline=2' || return 1
  for name in data tensor pipeline; do
    grep -q '^notice: 2 ranks share 1 GPU' "$folder/$name.log" || return 1
    paste "$folder/one.losses" "$folder/$name.losses" | awk -v name="$name" '
      { far = ($2 > $4 ? $2 - $4 : $4 - $2) / $2; if (!(far <= most)) most = far }
      END { printf "%s: at most %.1e from one rank\n", name, most; exit !(NR == 20 && most <= 1e-5) }' >>"$logs/ranks.log" || return 1
  done
}

measure() {
  "$root/bin/bench_training" --device cuda --rounds 3 --json "$logs/$1.json" --case "$1,1024,bf16" "${@:2}" | tee -a "$logs/speed.log"
}
check_speed() {
  local torch=()
  if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    torch=(--python python3 --torch-script "$root/torch_training.py")
  fi
  # Large models as they are trained: several micro-batches share an update.
  measure gpt2-124m --samples 32 "${torch[@]}" && measure gpt2-1558m --samples 16 --micro-batches 4 && measure llama-1.5b --samples 8 --micro-batches 4
}

export LD_LIBRARY_PATH=$root/lib:$cuda$(python_libraries)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true)
echo "gpu-check, $(date -u +%FT%TZ): ${gpu:-no GPU that nvidia-smi knows}"
code=0
lines=()
json=
for part in "${parts[@]}"; do
  began=$SECONDS
  result=passed
  "check_$part" || result=failed
  [ "$result" != failed ] || code=1
  lines+=("$(printf '%-10s %-8s %s s' "$part" "$result" $((SECONDS - began)))")
  json+="$(printf ', "%s": {"result": "%s", "seconds": %d}' "$part" "$result" $((SECONDS - began)))"
done
for file in "$logs"/*.json; do
  if [ -e "$file" ]; then json+=", \"$(basename "$file" .json)\": $(cat "$file")"; fi
done
printf '{"date": "%s", "gpu": "%s"%s}\n' "$(date -u +%FT%TZ)" "$gpu" "$json" >gpu-check.json
printf '%-10s %-8s %s\n' part result time
printf '%s\n' "${lines[@]}"
if [ "$code" -ne 0 ]; then echo "what failed is told in $logs"; fi
exit "$code"
