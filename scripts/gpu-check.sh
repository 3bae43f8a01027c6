#!/usr/bin/env bash
# gpu-check.sh [PART]...: tests and measures a machine's GPU by the bundle that this script lies in (gpu-bundle.sh), which needs CUDA 13
# there and nothing else. All parts, or those that are named:
#   parity    every operation on the GPU against float64, in fp32, bf16 and fp16, and linear maps in tf32
#   nccl      what one GPU can show of NCCL: a group of one rank, which sends to itself; absent where the machine has no libnccl.so.2
#   training  the trainer on the GPU against that on the processor, saved and resumed to the bit
#   program   the program: a run whose worker is killed twice ends with the losses of one that nobody disturbs
#   ranks     the program with two ranks that share the GPU (data 2 at ZeRO 3, tensor 2, pipeline 2): the losses of one rank
#   speed     steps of GPT-2 124M, GPT-2 1558M and a Llama of 1.5B in bf16; of the first beside PyTorch's where python3 has it
# GPU_CHECK_SECONDS: what all of them may take together (480). A part that hangs is killed in time for those after it: "timed out".
# GPU_CHECK_STEPS: how many steps the killed run has (2000; fewer for a GPU that the host carries out).
# Writes gpu-check.json and logs beside itself; exits 0 if all is well. CUDA's libraries are those of the system, of LD_LIBRARY_PATH or of a
# Python installation that has them.
set -euo pipefail
# What each part may take of eight minutes, in seconds; what it leaves goes to those after it. parity computes everything on the
# processors as well, in float64 (54 s beside an H100); training, program and ranks took 6 to 15 s there.
declare -A share=([parity]=160 [nccl]=30 [training]=50 [program]=50 [ranks]=50 [speed]=140)
all=(parity nccl training program ranks speed)
refuse() {
  echo "gpu-check.sh: $1" >&2
  exit 2
}
parts=()
for word in "$@"; do
  case "$word" in
    -h | --help)
      sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    *)
      [ -n "${share[$word]:-}" ] || refuse "unknown argument $word; --help tells what there is"
      parts+=("$word")
      ;;
  esac
done
[ ${#parts[@]} -gt 0 ] || parts=("${all[@]}")
budget=${GPU_CHECK_SECONDS:-480}
steps=${GPU_CHECK_STEPS:-2000}
[[ $budget =~ ^[1-9][0-9]{0,5}$ ]] || refuse "GPU_CHECK_SECONDS is $budget: a number of seconds from 1 on is needed"
[[ $steps =~ ^[1-9][0-9]{0,8}$ && $steps -ge 8 ]] || refuse "GPU_CHECK_STEPS is $steps: a number of steps from 8 on is needed"
cd "$(dirname "$0")"
[ -x bin/test_backend ] || refuse "there is no bin/test_backend beside this script: run it from the bundle that scripts/gpu-bundle.sh makes"

# The first folder that has cuBLASLt of CUDA 13.
cuda_libraries() {
  local folder folders
  IFS=: read -r -a folders <<<"${LD_LIBRARY_PATH:-}"
  for folder in "${folders[@]}" /usr/local/cuda/lib64 /usr/local/cuda-13*/lib64 /usr/lib/x86_64-linux-gnu \
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

# Whether a process of this group lives; dead ones that nobody has waited for do not count.
group_lives() {
  cat /proc/[0-9]*/stat 2>/dev/null | awk -v group="$1" '{ sub(/.*\) /, "") } $3 == group && $1 != "Z" { found = 1 } END { exit !found }'
}
# limited SECONDS LOG COMMAND...: runs it, told in LOG, in a process group of its own. Where it takes longer it is killed with all that it
# has started, and the status is 124.
running=
limited() {
  local ends=$((SECONDS + $1)) log=$2 code=0 grace
  shift 2
  set -m
  ("$@") </dev/null >>"$log" 2>&1 &
  running=$!
  set +m
  while kill -0 "$running" 2>/dev/null; do
    if [ "$SECONDS" -ge "$ends" ]; then code=124; break; fi
    sleep 0.1
  done
  # Also what a command that has ended left behind. What a driver does not let go of cannot be waited for.
  {
    kill -KILL -- "-$running" || true
    grace=$((SECONDS + 10))
    while group_lives "$running" && [ "$SECONDS" -lt "$grace" ]; do sleep 0.1; done
    if group_lives "$running"; then
      echo "gpu-check.sh: what was started here does not end, though it was killed" >>"$log"
      code=124
    elif [ "$code" -eq 0 ]; then
      wait "$running" || code=$?
    fi
  } 2>/dev/null
  running=
  return "$code"
}
trap 'if [ -n "$running" ]; then kill -KILL -- "-$running" 2>/dev/null || true; fi' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Of a part: it ends here, and this is why.
failed() {
  echo "$*" >"$logs/$part.reason"
  exit 1
}
absent() {
  echo "$*" >"$logs/$part.reason"
  exit 77
}
# The line of a log that tells most: of those that speak of an error the last, with the values that doctest writes below it; else the last.
telling_line() {
  [ -e "$1" ] || return 0
  tail -c 100000 "$1" | tr -d '\000' | awk '
    /^\[doctest\]/ || !/[^-=[:space:]]/ { next }
    /^ *values: / { if (last == told) told = told $0; next }
    { last = $0 }
    /[Ee]rror|ERROR|skipped: |cannot|could not|refused|terminate called|Killed|dumped/ { told = $0 }
    END { print told != "" ? told : last }' | tr -s '[:space:]' ' ' | sed 's/^ //; s/ $//' | cut -c -400
}

# run_test PROGRAM ARGUMENT...: a test program; skipped tests are failures here.
run_test() {
  local code=0
  echo "running $*"
  "$root/bin/$1" "${@:2}" || code=$?
  [ "$code" -eq 0 ] || failed "$1: exit status $code: $(telling_line "$logs/$part.log")"
  if grep -q 'skipped: run.device' "$logs/$part.log"; then failed "$1: $(grep 'skipped: run.device' "$logs/$part.log" | tail -n 1)"; fi
}
check_parity() { run_test test_backend --test-case='the_gpu_of_this_machine*'; }
check_nccl() {
  run_test test_backend --test-case='nccl_of_this_machine*'
  if grep -q 'skipped: NCCL' "$logs/nccl.log"; then absent "$(sed -n 's/.*skipped: NCCL: //p' "$logs/nccl.log" | tail -n 1)"; fi
}
check_training() { run_test test_train_gpu && run_test test_gpu; }

# Losses by step, of steps that were made again the last time.
losses_of() {
  sed -n 's/.*"kind":"step","step":\([0-9]*\),.*"loss":\([^,]*\),.*/\1 \2/p' "$1" |
    awk '{ loss[$1] = $2 } END { for (s in loss) print s, loss[s] }' | sort -n
}
# kill_worker_at NAME STEP: ends a worker of the run in $folder/NAME when it has told of a step.
kill_worker_at() {
  local worker
  until grep -q "\"step\":$2," "$folder/$1/metrics.jsonl" 2>/dev/null; do
    kill -0 "$agent" 2>/dev/null || return 0
    sleep 0.05
  done
  worker=$(sed -n 's/^worker \([0-9]*\) started.*/\1/p' "$folder/$1.log" | tail -n 1)
  echo "killing worker $worker of $1 at step $2"
  kill -KILL "$worker" || true
}
# write_config: $folder, with config.yaml and its text.
write_config() {
  mkdir "$folder"
  seq 200000 | awk '{ print "the", $1 % 97, "th of", $1 % 13, "lines" }' | head -c 400000 >"$folder/text.txt" || true
  cat >"$folder/config.yaml" <<'CONFIG'
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
# start_run NAME STEPS SETTING...: in $folder, by the process $agent.
start_run() {
  local words=() setting
  for setting in "run.directory=$folder/$1" "train.steps=$2" "${@:3}"; do words+=(--set "$setting"); done
  echo "run $1"
  "$root/bin/scaletrain" run "$folder/config.yaml" "${words[@]}" >"$folder/$1.log" 2>&1 &
  agent=$!
}
# end_run NAME STEPS: waits for it; its losses go to NAME.losses.
end_run() {
  local code=0
  wait "$agent" || code=$?
  [ "$code" -eq 0 ] || failed "run $1: exit status $code: $(telling_line "$folder/$1.log")"
  losses_of "$folder/$1/metrics.jsonl" >"$folder/$1.losses"
  [ "$(wc -l <"$folder/$1.losses")" -eq "$2" ] || failed "run $1 told of $(wc -l <"$folder/$1.losses") steps, not of $2"
}
# expect_starts NAME NUMBER: so many workers have been started in it.
expect_starts() {
  local starts
  starts=$(grep -c '^worker .* started' "$folder/$1.log" || true)
  [ "$starts" -eq "$2" ] || failed "run $1 has started $starts workers, not $2"
}
# same_losses NAME NAME: to the bit.
same_losses() {
  cmp -s "$folder/$1.losses" "$folder/$2.losses" ||
    failed "runs $1 and $2 differ: $(paste "$folder/$1.losses" "$folder/$2.losses" | awk '$2 != $4 { print "step", $1 ":", $2, $4; exit }')"
}
check_program() {
  local folder=$logs/program
  write_config
  start_run undisturbed "$steps"
  end_run undisturbed "$steps"
  start_run killed "$steps"
  kill_worker_at killed $((steps / 4))
  kill_worker_at killed $((steps * 3 / 4))
  end_run killed "$steps"
  expect_starts killed 3
  same_losses undisturbed killed
}

# train_ranks NAME SETTING: twenty steps on the first GPU.
train_ranks() {
  start_run "$1" 20 precision.compute=fp32 train.lr_schedule.warmup=10 supervise.max_restarts=0 "$2"
  end_run "$1" 20
}
# In fp32, at this rate and warm-up, layouts are held to 1e-5 of each other, whatever computes them.
check_ranks() {
  local folder=$logs/ranks gpu=${CUDA_VISIBLE_DEVICES:-0} name
  export CUDA_VISIBLE_DEVICES=${gpu%%,*}
  write_config
  train_ranks one parallel.data=1
  train_ranks data 'parallel={data: 2, zero: 3}'
  train_ranks tensor parallel.tensor=2
  train_ranks pipeline parallel.pipeline=2
  for name in data tensor pipeline; do
    grep -q '^notice: 2 ranks share 1 GPU' "$folder/$name.log" || failed "run $name does not say that its ranks share the GPU"
    paste "$folder/one.losses" "$folder/$name.losses" | awk -v name="$name" '
      { far = ($2 > $4 ? $2 - $4 : $4 - $2) / $2; if (!(far <= most)) most = far }
      END { printf "%s: at most %.1e from one rank\n", name, most; exit !(NR == 20 && most <= 1e-5) }' ||
      failed "$(tail -n 1 "$logs/ranks.log"), where 1e-5 is the bound"
  done
}

measure() {
  "$root/bin/bench_training" --device cuda --rounds 3 --json "$logs/$1.json" --case "$1,1024,bf16" "${@:2}"
}
check_speed() {
  local torch=()
  if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    torch=(--python python3 --torch-script "$root/torch_training.py")
  fi
  # Large models as they are trained: several micro-batches share an update.
  measure gpt2-124m --samples 32 "${torch[@]}" && measure gpt2-1558m --samples 16 --micro-batches 4 &&
    measure llama-1.5b --samples 8 --micro-batches 4
}

# Text within a string of JSON.
json_text() { tr -cd '\040-\176' | sed 's/\\/\\\\/g; s/"/\\"/g'; }

export LD_LIBRARY_PATH=$root/lib:$cuda$(python_libraries)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# A driver in trouble may not answer.
gpu=$(timeout 20 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true)
echo "gpu-check, $(date -u +%FT%TZ): ${gpu:-no GPU that nvidia-smi knows}"
code=0
json=
ends=$((SECONDS + budget))
shares=0
for part in "${parts[@]}"; do shares=$((shares + share[$part])); done
later=$shares
printf '%-10s %-26s %-6s %s\n' part result time reason
for part in "${parts[@]}"; do
  began=$SECONDS
  later=$((later - share[$part]))
  limit=$((ends - SECONDS - later * budget / shares))
  status=0
  reason=
  if [ "$limit" -lt 1 ]; then
    result='not run: no time left'
  else
    limited "$limit" "$logs/$part.log" "check_$part" || status=$?
    if [ -e "$logs/$part.reason" ]; then reason=$(cat "$logs/$part.reason"); fi
    case "$status" in
      0) result=passed ;;
      77) result=absent ;;
      124)
        result='timed out'
        reason="no end within $limit s, GPU_CHECK_SECONDS would give it more; the last that it told: $(telling_line "$logs/$part.log")"
        ;;
      *)
        result=failed
        reason=${reason:-exit status $status: $(telling_line "$logs/$part.log")}
        ;;
    esac
  fi
  case "$result" in passed | absent) ;; *) code=1 ;; esac
  if [ "$result" = failed ] || [ "$result" = 'timed out' ]; then reason+=" ($logs/$part.log)"; fi
  printf '%-10s %-26s %-6s %s\n' "$part" "$result" "$((SECONDS - began)) s" "$reason"
  json+=$(printf ',\n"%s": {"result": "%s", "seconds": %d, "reason": "%s", "log": "%s"}' "$part" "$result" $((SECONDS - began)) \
    "$(json_text <<<"$reason")" "gpu-check-logs/$part.log")
done
for file in "$logs"/*.json; do
  if [ -e "$file" ]; then json+=$(printf ',\n"%s": %s' "$(basename "$file" .json)" "$(cat "$file")"); fi
done
printf '{"date": "%s", "gpu": "%s", "seconds": %d%s}\n' "$(date -u +%FT%TZ)" "$(json_text <<<"$gpu")" "$SECONDS" "$json" >gpu-check.json
exit "$code"
