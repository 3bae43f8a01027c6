#!/usr/bin/env bash
# gpu-check.sh [PART]...: tests and measures a machine's GPU by the bundle that this script lies in (gpu-bundle.sh), which needs CUDA 13
# there and nothing else. All parts, or those that are named:
#   parity    every operation on the GPU against float64, in fp32, bf16 and fp16, and linear maps in tf32
#   goldens   losses, gradients and twenty steps of tiny models of each family against PyTorch in float64; halves against PyTorch's autocast
#   nccl      what one GPU can show of NCCL: a group of one rank, which sends to itself; absent where the machine has no libnccl.so.2
#   training  the trainer on the GPU against that on the processor, saved and resumed to the bit
#   layouts   meshes of up to eight ranks, threads that share the GPU, and on them all that training can be asked for: the losses,
#             gradients and calls of one rank, in fp32, bf16 and fp16
#   program   the program: a run whose worker is killed twice ends with the losses of one that nobody disturbs
#   ranks     the program with two ranks that share the GPU (data 2 at ZeRO 3, tensor 2, pipeline 2): the losses of one rank
#   gpus      the program with two ranks on GPUs of their own (data 2, data 2 at ZeRO 3, tensor 2, pipeline 2): through NCCL the bits of
#             those through the host, also where a worker is killed; absent below two GPUs, or without libnccl.so.2
#   speed     steps of GPT-2 124M, GPT-2 1558M and a Llama of 1.5B in bf16, and beside them, by turns, PyTorch's where python3 has it. On an
#             H100 or H200 (SXM) it fails below 400,000 and 48,000 tokens/s of the first two, and where PyTorch's compiled steps are
#             faster than ours; a model that does not fit is skipped
# GPU_CHECK_SECONDS: what all of them may take together (480). A part that hangs is killed in time for those after it: "timed out".
# GPU_CHECK_STEPS: how many steps the killed runs have, and the others at most (2000; fewer for a GPU that the host carries out).
# Writes gpu-check.txt (the table), gpu-check.json and logs beside itself; exits 0 if all is well. CUDA's libraries are those of the
# system, of LD_LIBRARY_PATH or of a Python installation that has them.
set -euo pipefail
# What each part may take of eight minutes, in seconds; what it leaves goes to those after it. parity computes everything on the
# processors as well, in float64 (54 s beside an H100); training, program and ranks took 6 to 17 s there, and twice
# as many layouts 163 s.
declare -A share=([parity]=150 [goldens]=40 [nccl]=20 [training]=40 [layouts]=150 [program]=40 [ranks]=40 [gpus]=50 [speed]=120)
all=(parity goldens nccl training layouts program ranks gpus speed)
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
[[ $steps =~ ^[1-9][0-9]{0,8}$ && $steps -ge 4 ]] || refuse "GPU_CHECK_STEPS is $steps: a number of steps from 4 on is needed"
cd "$(dirname "$0")"
[ -x bin/test_backend ] || refuse "there is no bin/test_backend beside this script: run it from the bundle that scripts/gpu-bundle.sh makes"
# The C library cannot be carried along.
needed=$(cat glibc 2>/dev/null || true)
present=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/^glibc //' || true)
present_text=${present:+glibc $present}
if [ -n "$needed" ] && [ "$(printf '%s\n' "$needed" "${present:-0}" | sort -V | head -n 1)" != "$needed" ]; then
  echo "gpu-check.sh: this machine has ${present_text:-no glibc}, and the bundle needs $needed: run it in a container of" \
    "Debian 12, Ubuntu 24.04 or later, or build the bundle (scripts/gpu-bundle.sh) on a system as old as this one" >&2
  exit 1
fi

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
    /^(bench_training|scaletrain): |[Ee]rror|ERROR|cannot|could not|refused|terminate called|Killed|dumped/ { told = $0 }
    END { print told != "" ? told : last }' | tr -s '[:space:]' ' ' | sed 's/^ //; s/ $//' | cut -c -400
}

# run_test PROGRAM ARGUMENT...: a test program; skipped tests are failures here.
run_test() {
  local code=0
  echo "running $*"
  "$root/bin/$1" "${@:2}" || code=$?
  [ "$code" -eq 0 ] || failed "$1: exit status $code: $(telling_line "$logs/$part.log")"
  if grep -q 'test cases: *0 ' "$logs/$part.log"; then failed "$1: it has no test of the name ${*:2}"; fi
  if grep -q 'skipped: run.device' "$logs/$part.log"; then
    failed "$1: $(sed -n 's/.*\(skipped: run.device.*\)/\1/p' "$logs/$part.log" | tail -n 1)"
  fi
}
check_parity() { run_test test_backend --test-case='the_gpu_of_this_machine*'; }
check_goldens() { SCALETRAIN_GOLDEN_FOLDER=$root/golden run_test test_golden_gpu; }
check_nccl() {
  run_test test_backend --test-case='nccl_of_this_machine*'
  if grep -q 'skipped: NCCL' "$logs/nccl.log"; then absent "$(sed -n 's/.*skipped: NCCL: //p' "$logs/nccl.log" | tail -n 1)"; fi
}
check_training() { run_test test_train_gpu && run_test test_gpu; }
check_layouts() { run_test test_equivalence_gpu; }

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
  # The last rank's, of several.
  worker=$(sed -n 's/^worker \([0-9]*\) started.*/\1/p; s/^[0-9]* workers started.* \([0-9]*\)$/\1/p' "$folder/$1.log" | tail -n 1)
  echo "killing worker $worker of $1 at step $2"
  kill -KILL "$worker" || true
}
# write_config: $folder, with config.yaml and its text.
write_config() {
  mkdir "$folder"
  seq 200000 | awk '{ print "the", $1 % 97, "th of", $1 % 13, "lines" }' | head -c 400000 >"$folder/text.txt" || true
  # A run that is killed after a quarter of its steps has a checkpoint to go on from.
  cat >"$folder/config.yaml" <<CONFIG
run: {name: gpu-check, directory: undisturbed, device: cuda}
model: {preset: tiny-gpt2, context: 32, vocab: auto}
data:
  cache: cache
  tokenizer: {type: bytes}
  train: [{path: text.txt}]
train: {steps: 4, global_batch: 4, micro_batch: 2, optimizer: {learning_rate: 1e-3}, lr_schedule: {warmup: 2}}
checkpoint: {every: $((steps < 32 ? steps / 4 : 8)), keep: 3}
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
  if [ "$code" -ne 0 ] && grep -q 'libnccl.so.2 is not found' "$folder/$1.log"; then absent 'libnccl.so.2 is not found'; fi
  [ "$code" -eq 0 ] || failed "run $1: exit status $code: $(telling_line "$folder/$1.log")"
  losses_of "$folder/$1/metrics.jsonl" >"$folder/$1.losses"
  [ "$(wc -l <"$folder/$1.losses")" -eq "$2" ] || failed "run $1 told of $(wc -l <"$folder/$1.losses") steps, not of $2"
}
# expect_starts NAME NUMBER: so often its workers have been started.
expect_starts() {
  local starts
  starts=$(grep -cE '^(worker [0-9]+|[0-9]+ workers) started' "$folder/$1.log" || true)
  [ "$starts" -eq "$2" ] || failed "run $1 has started its workers $starts times, not $2"
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

# How many steps show that layouts agree.
few_steps=$((steps < 20 ? steps : 20))
# train_ranks NAME SETTING...
train_ranks() {
  start_run "$1" "$few_steps" "train.lr_schedule.warmup=$((few_steps / 2))" supervise.max_restarts=0 "${@:2}"
  end_run "$1" "$few_steps"
}
# In fp32, at this rate and warm-up, layouts are held to 1e-5 of each other, whatever computes them.
check_ranks() {
  local folder=$logs/ranks gpu=${CUDA_VISIBLE_DEVICES:-0} name
  export CUDA_VISIBLE_DEVICES=${gpu%%,*}
  write_config
  train_ranks one precision.compute=fp32 parallel.data=1
  train_ranks data precision.compute=fp32 'parallel={data: 2, zero: 3}'
  train_ranks tensor precision.compute=fp32 parallel.tensor=2
  train_ranks pipeline precision.compute=fp32 parallel.pipeline=2
  for name in data tensor pipeline; do
    grep -q '^notice: 2 ranks share 1 GPU' "$folder/$name.log" || failed "run $name does not say that its ranks share the GPU"
    paste "$folder/one.losses" "$folder/$name.losses" | awk -v name="$name" -v steps="$few_steps" '
      { far = ($2 > $4 ? $2 - $4 : $4 - $2) / $2; if (!(far <= most)) most = far }
      END { printf "%s: at most %.1e from one rank\n", name, most; exit !(NR == steps && most <= 1e-5) }' ||
      failed "$(tail -n 1 "$logs/ranks.log"), where 1e-5 is the bound"
  done
}

# How many the program sees; a number of samples that so many replicas may have.
visible_gpus() {
  "$root/bin/scaletrain" check "$folder/config.yaml" --json --set parallel.data=auto --set train.micro_batch=1 \
    --set train.global_batch=5040 2>"$folder/gpus.log" | tr -d '[:space:]' | sed -n 's/.*"world":\([0-9]*\).*/\1/p'
}
check_gpus() {
  local folder=$logs/gpus gpus name transport zero='parallel={data: 2, zero: 3}'
  local -A layouts=([data]=parallel.data=2 [zero]=$zero [tensor]=parallel.tensor=2 [pipeline]=parallel.pipeline=2)
  write_config
  gpus=$(visible_gpus) || gpus=
  if [ -z "$gpus" ] && ! grep -q 'run.device: cuda' "$folder/gpus.log"; then failed "$(telling_line "$folder/gpus.log")"; fi
  [ -n "$gpus" ] || absent "$(grep 'run.device: cuda' "$folder/gpus.log" | tail -n 1)"
  [ "$gpus" -ge 2 ] || absent 'there is one GPU'
  for name in data zero tensor pipeline; do
    for transport in nccl host; do
      train_ranks "$name-$transport" "${layouts[$name]}" "launch.transport=$transport"
      grep -q '"kind":"start".*"gpus":2[,}]' "$folder/$name-$transport/metrics.jsonl" || failed "run $name-$transport was not on 2 GPUs"
    done
    same_losses "$name-nccl" "$name-host"
  done
  for name in undisturbed killed; do
    start_run "$name" "$steps" "$zero" launch.transport=nccl
    if [ "$name" = killed ]; then kill_worker_at killed $((steps / 2)); fi
    end_run "$name" "$steps"
  done
  expect_starts killed 2
  same_losses undisturbed killed
}

# Samples of a micro-batch and micro-batches of a step: large models as they are trained, where several share an update.
models=(gpt2-124m gpt2-1558m llama-1.5b)
declare -A samples=([gpt2-124m]=32 [gpt2-1558m]=16 [llama-1.5b]=8) micro_batches=([gpt2-124m]=1 [gpt2-1558m]=4 [llama-1.5b]=4)
# The same beside PyTorch, all of whose processes hold their memory at once. For 1558M with 2 samples our estimate of it is 34 GiB (16 bytes
# a parameter and what autocast keeps of 48 blocks) beside our 31: so large models have one of its ways, and few samples.
declare -A samples_beside=([gpt2-124m]=32 [gpt2-1558m]=2 [llama-1.5b]=2) micro_batches_beside=([gpt2-124m]=1 [gpt2-1558m]=8 [llama-1.5b]=8)
declare -A modes=([gpt2-124m]='eager compiled' [gpt2-1558m]=compiled-by-block [llama-1.5b]=compiled-by-block)
# Seconds below which compiling need not be begun.
declare -A compiling=([gpt2-124m]=40 [gpt2-1558m]=50 [llama-1.5b]=50)
# Tokens a second, of GPUs of 989 TFLOP/s.
declare -A bars=([gpt2-124m]=400000 [gpt2-1558m]=48000)
declare -A case_result case_reason case_figures beside
has_speeds=

# bench MODEL SAMPLES MICRO-BATCHES FILE OPTION...
bench() {
  "$root/bin/bench_training" --device cuda --rounds 3 --case "$1,1024,bf16" --samples "$2" --micro-batches "$3" --json "$4" "${@:5}"
}
# figure FILE WORD KEY: the number that bench_training has written of the participant in whose name the word is.
figure() {
  [ ! -e "$1" ] || awk -v word="$2" -v key="\"$3\":" '
    $1 == "\"name\":" { is_it = index($0, word) > 0 }
    is_it && $1 == key { gsub(/[^-+.0-9e]/, "", $2); print $2; exit }' "$1"
}
whole() { awk -v number="$1" 'BEGIN { printf "%.0f", number }'; }
percent() { awk -v number="$1" 'BEGIN { printf "%.1f %%", 100 * number }'; }
# has_bar FILE: whether it was measured on a GPU that the bars are of.
has_bar() {
  case "$(sed -n 's/^ *"gpu": "\(.*\)",*$/\1/p' "$1")" in
    *PCIe* | *NVL*) return 1 ;;
    *H100* | *H200*) return 0 ;;
    *) return 1 ;;
  esac
}
# measure_alone MODEL SECONDS
measure_alone() {
  local name=$1 status=0 log=$logs/speed-$1.log file=$logs/$1.json rate bar of_peak
  case_reason[$name]=
  if [ "$2" -lt 1 ]; then
    case_result[$name]='not run: no time left'
    return
  fi
  limited "$2" "$log" bench "$name" "${samples[$name]}" "${micro_batches[$name]}" "$file" || status=$?
  case "$status" in
    0) ;;
    3)
      case_result[$name]=skipped
      case_reason[$name]=$(telling_line "$log" | sed 's/^bench_training: [^ ]* //')
      return
      ;;
    124)
      case_result[$name]='timed out'
      case_reason[$name]="no end within $2 s ($log)"
      return
      ;;
    *)
      case_result[$name]=failed
      case_reason[$name]="exit status $status: $(telling_line "$log") ($log)"
      return
      ;;
  esac
  rate=$(whole "$(figure "$file" scaletrain tokens_per_second)")
  of_peak=$(figure "$file" scaletrain peak_share)
  case_result[$name]=passed
  case_figures[$name]=$(printf ', "tokens_per_second": %d, "peak_share": %s' "$rate" "${of_peak:-null}")
  if [ -n "${bars[$name]:-}" ] && has_bar "$file"; then
    bar=${bars[$name]}
    case_figures[$name]+=", \"bar\": $bar"
    [ "$rate" -ge "$bar" ] || {
      case_result[$name]=failed
      case_reason[$name]="$rate tokens/s, below the bar of $bar"
    }
  fi
}
# measure_beside MODEL SECONDS
measure_beside() {
  local name=$1 status=0 log=$logs/speed-$1-beside-pytorch.log file=$logs/$1-beside-pytorch.json options=() mode rate ours=0 why
  beside[$name]=
  if [ "$2" -lt "${compiling[$name]}" ]; then
    beside[$name]='"reason": "no time left"'
    return
  fi
  for mode in ${modes[$name]}; do options+=(--torch-mode "$mode"); done
  limited "$2" "$log" bench "$name" "${samples_beside[$name]}" "${micro_batches_beside[$name]}" "$file" --python python3 \
    --torch-script "$root/torch_training.py" "${options[@]}" || status=$?
  if [ "$status" -ne 0 ]; then
    # What Python says comes before what the benchmark makes of its end.
    why=$(grep -E '^[A-Za-z_.]+Error' "$log" | tail -n 1 | cut -c -400 || true)
    [ "$status" -ne 124 ] || why="no end within $2 s"
    beside[$name]="\"reason\": \"$(json_text <<<"${why:-$(telling_line "$log")}")\""
    return
  fi
  beside[$name]=$(printf '"samples": %d, "micro_batches": %d' "${samples_beside[$name]}" "${micro_batches_beside[$name]}")
  for mode in scaletrain ${modes[$name]}; do
    rate=$(whole "$(figure "$file" "$mode" tokens_per_second)")
    beside[$name]+=$(printf ', "%s": %d' "$mode" "$rate")
    if [ "$mode" = scaletrain ]; then ours=$rate; fi
    if [[ $mode == compiled* ]] && [ "$rate" -gt "$ours" ] && has_bar "$file"; then
      case_result[$name]=failed
      case_reason[$name]+="${case_reason[$name]:+, }$ours tokens/s, below the $rate of PyTorch's steps, $mode"
    fi
  done
}
# What has been said of a case under this key, in text that case_figures and beside are of.
said() { sed -n "s/.*\"$2\": \"\{0,1\}\([^\",]*\).*/\1/p" <<<"$1"; }
print_speed() {
  local name rate bar of_peak others mode
  report '\n%-11s %8s %10s %8s %-14s %s\n' model samples tokens/s 'of peak' bar 'PyTorch, beside ours of as many samples'
  for name in "${models[@]}"; do
    rate=$(said "${case_figures[$name]:-}" tokens_per_second)
    if [ -z "$rate" ]; then
      report '%-11s %s\n' "$name" "${case_result[$name]}${case_reason[$name]:+: ${case_reason[$name]}}"
      continue
    fi
    bar=$(said "${case_figures[$name]}" bar)
    if [ -z "$bar" ]; then bar=none; elif [ "$rate" -ge "$bar" ]; then bar+=', met'; else bar+=', MISSED'; fi
    of_peak=$(said "${case_figures[$name]}" peak_share)
    if [ "$of_peak" = null ]; then of_peak=unknown; else of_peak=$(percent "$of_peak"); fi
    others="not measured: $(said "${beside[$name]:-}" reason)"
    if [[ ${beside[$name]:-} == *scaletrain* ]]; then
      others=
      for mode in ${modes[$name]}; do others+="$mode $(said "${beside[$name]}" "$mode"), "; done
      others+="ours $(said "${beside[$name]}" scaletrain); $(said "${beside[$name]}" micro_batches) x ${samples_beside[$name]}"
    fi
    report '%-11s %8s %10s %8s %-14s %s\n' "$name" "${micro_batches[$name]} x ${samples[$name]}" "$rate" "$of_peak" "$bar" "$others"
  done
}
# Within $limit seconds; sets result, reason and figures. First each alone, then, in what is left, beside PyTorch.
run_speed() {
  local ends=$((SECONDS + limit)) left=${#models[@]} name has_torch=0 results=
  has_speeds=yes
  for name in "${models[@]}"; do
    measure_alone "$name" $(((ends - SECONDS) / left))
    left=$((left - 1))
  done
  if [ $((ends - SECONDS)) -ge 20 ]; then
    limited 60 "$logs/speed.log" python3 -c 'import torch; assert torch.cuda.is_available(), "PyTorch finds no GPU"' || has_torch=$?
  fi
  left=${#models[@]}
  for name in "${models[@]}"; do
    if [ "$has_torch" -ne 0 ]; then
      beside[$name]="\"reason\": \"$(telling_line "$logs/speed.log" | json_text)\""
    elif [ -n "${case_figures[$name]:-}" ]; then
      measure_beside "$name" $(((ends - SECONDS) / left))
    fi
    left=$((left - 1))
  done
  figures=
  for name in "${models[@]}"; do
    results+="${case_result[$name]};"
    [ -z "${case_reason[$name]}" ] || reason+="${reason:+; }$name: ${case_reason[$name]}"
    figures+=$(printf '%s\n  "%s": {"result": "%s", "reason": "%s"%s, "pytorch": {%s}}' "${figures:+,}" "$name" "${case_result[$name]}" \
      "$(json_text <<<"${case_reason[$name]}")" "${case_figures[$name]:-}" "${beside[$name]:-}")
  done
  case ";$results" in
    *';failed;'*) result=failed ;;
    *';timed out;'*) result='timed out' ;;
    *';not run'*) result='not run: no time left' ;;
    *';passed;'*) result=passed ;;
    *) result=skipped ;;
  esac
}

# Text within a string of JSON.
json_text() { tr -cd '\040-\176' | sed 's/\\/\\\\/g; s/"/\\"/g'; }

export LD_LIBRARY_PATH=$root/lib:$cuda$(python_libraries)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# A driver in trouble may not answer.
gpu=$(timeout 20 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true)
rm -f gpu-check.txt gpu-check.json
report() { printf "$@" | tee -a gpu-check.txt; }
report 'gpu-check, %s: %s\n\n' "$(date -u +%FT%TZ)" "${gpu:-no GPU that nvidia-smi knows}"
code=0
json=
ends=$((SECONDS + budget))
shares=0
for part in "${parts[@]}"; do shares=$((shares + share[$part])); done
later=$shares
# Within $limit seconds; sets result and reason.
run_part() {
  local status=0
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
  if [ "$result" = failed ] || [ "$result" = 'timed out' ]; then reason+=" ($logs/$part.log)"; fi
}
report '%-10s %-22s %-6s %s\n' part result time reason
for part in "${parts[@]}"; do
  began=$SECONDS
  later=$((later - share[$part]))
  limit=$((ends - SECONDS - later * budget / shares))
  reason=
  figures=
  if [ "$limit" -lt 1 ]; then
    result='not run: no time left'
  elif [ "$part" = speed ]; then
    run_speed
  else
    run_part
  fi
  case "$result" in passed | absent | skipped) ;; *) code=1 ;; esac
  report '%-10s %-22s %-6s %s\n' "$part" "$result" "$((SECONDS - began)) s" "$reason"
  json+=$(printf ',\n"%s": {"result": "%s", "seconds": %d, "reason": "%s", "log": "%s"%s}' "$part" "$result" $((SECONDS - began)) \
    "$(json_text <<<"$reason")" "gpu-check-logs/$part.log" "${figures:+, \"models\": {$figures\}}")
done
if [ -n "$has_speeds" ]; then print_speed; fi
for file in "$logs"/*.json; do
  if [ -e "$file" ]; then json+=$(printf ',\n"%s": %s' "$(basename "$file" .json)" "$(cat "$file")"); fi
done
printf '{"date": "%s", "gpu": "%s", "seconds": %d%s}\n' "$(date -u +%FT%TZ)" "$(json_text <<<"$gpu")" "$SECONDS" "$json" >gpu-check.json
exit "$code"
