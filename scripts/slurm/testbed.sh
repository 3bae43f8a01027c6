#!/usr/bin/env bash
# testbed.sh start FOLDER [NODES [PID]]: a real SLURM cluster of virtual nodes n0, n1 ... on this machine (4 by default), for the tests
# and for trying sbatch scripts; with PID it ends by itself soon after that process. Needs root; installs slurm-wlm and munge.
# Everything it runs and writes is below FOLDER. Each node has two GPUs that are files: SLURM gives them to jobs (CUDA_VISIBLE_DEVICES),
# nothing computes on them. Prints what to export:
#   eval "$(scripts/slurm/testbed.sh start /tmp/testbed)"; sinfo
# testbed.sh node-down FOLDER NODE: kills that node's daemon and all that it has started, as if it had lost power; SLURM notices after
# about 25 s. node-up starts it again. testbed.sh stop FOLDER: ends all of it; the folder stays.
# TESTBED_PORT: where it begins to look for forty free ports (30 nodes); by default a number that follows from FOLDER.
source "$(dirname "$0")/../common.sh"

usage() { tell_usage >&2; exit 2; }
[ $# -ge 2 ] || usage
command=$1 folder=$(realpath -m "$2")
export SLURM_CONF=$folder/slurm.conf

# The first of forty ports that nobody on this machine uses. An earlier testbed may live on in another folder.
free_ports() {
  local first=${TESTBED_PORT:-$((16000 + 40 * ($(cksum <<< "$folder" | cut -d ' ' -f 1) % 250)))} used port
  used=$(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | sed -n 's/^ *[0-9]*: [0-9A-F]*:\([0-9A-F]*\) .*/\1/p')
  for _ in $(seq 250); do
    for port in $(seq "$first" $((first + 39))); do
      grep -qx "$(printf %04X "$port")" <<< "$used" && break
      if [ "$port" -eq $((first + 39)) ]; then echo "$first"; return; fi
    done
    first=$((first + 40))
    if [ "$first" -ge 26000 ]; then first=16000; fi
  done
  echo "testbed.sh: no forty free ports between 16000 and 26000; begin elsewhere with TESTBED_PORT" >&2
  return 1
}

write_config() {
  local nodes=$1 port=$2 host last gpu
  host=$(hostname -s)
  last=$((nodes - 1))
  cat > "$SLURM_CONF" <<CONF
ClusterName=testbed
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmdSpoolDir=$folder/spool/%n
StateSaveLocation=$folder/state
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
MpiDefault=none
KillWait=10
MinJobAge=86400
SlurmdTimeout=10
JobRequeue=1
NodeName=n[0-$last] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 10))-$((port + 10 + last))] CPUs=2 Gres=gpu:2
PartitionName=main Nodes=n[0-$last] Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
CONF
  # By the number at a file's end SLURM tells a job which GPUs are its own, and only of character devices.
  mkdir -p "$folder/gpus"
  for gpu in 0 1; do ln -sf /dev/null "$folder/gpus/gpu$gpu"; done
  echo "Name=gpu File=$folder/gpus/gpu[0-1]" > "$folder/gres.conf"
}

start_munge() {
  local munge=$folder/munge
  mkdir -p "$munge"
  if [ ! -s "$munge/key" ]; then head -c 1024 /dev/urandom > "$munge/key"; fi
  chown -R munge: "$munge"
  chmod 0755 "$munge"
  chmod 0400 "$munge/key"
  runuser -u munge -- /usr/sbin/munged --key-file="$munge/key" --socket="$munge/socket" --pid-file="$munge/pid" \
    --log-file="$munge/log" --seed-file="$munge/seed"
}

# Not one that has ended and that nobody has taken note of.
lives() { [[ $(ps -o stat= -p "$1" || true) =~ ^[^Z] ]]; }

# Ends the daemons whose numbers these files hold, and waits for it.
kill_daemons() {
  local signal=$1 file pid
  shift
  for file in "$@"; do
    [ -s "$file" ] || continue
    pid=$(cat "$file")
    case $(ps -o comm= -p "$pid" || true) in slurmctld | munged) ;; *) continue ;; esac
    kill "-$signal" "$pid" 2>/dev/null || true
    for _ in $(seq 200); do lives "$pid" || break; sleep 0.05; done
    rm -f "$file"
  done
}

start() {
  local nodes=$1 owner=$2 node idle port
  [ "$(id -u)" -eq 0 ] || { echo "testbed.sh: only root can start one" >&2; exit 1; }
  # Not on standard output, which the caller evaluates. A cluster that the packages themselves started is left alone.
  install slurm-wlm munge >&2
  mkdir -p "$folder"/{spool,state,log}
  chmod 0755 "$folder"
  # What an earlier testbed has left in this folder.
  stop >&2
  port=$(free_ports)
  write_config "$nodes" "$port"
  # Before anything that it would have to end.
  if [ -n "$owner" ]; then setsid "$0" watch "$folder" "$owner" > /dev/null 2>&1 < /dev/null & fi
  start_munge >&2
  slurmctld -c >&2
  for node in $(seq 0 $((nodes - 1))); do
    mkdir -p "$folder/spool/n$node"
    slurmd -N "n$node" >&2
  done
  for _ in $(seq 600); do
    idle=$(sinfo -h -N -o '%T' 2>/dev/null | grep -c '^idle$' || true)
    if [ "$idle" -eq "$nodes" ]; then
      printf 'export SLURM_CONF=%q\n' "$SLURM_CONF"
      return
    fi
    sleep 0.2
  done
  echo "testbed.sh: only $idle of $nodes nodes came up within 120 s; see $folder/log" >&2
  exit 1
}

# What a node runs: its daemon and the daemons of its steps, which all write its log and have left every group of it; and what they have
# started, which has its name in the environment. NODE may be a pattern that means the same to find and to grep.
processes_of() {
  local node=$1 entry
  find /proc/[0-9]*/fd -lname "$folder/log/slurmd-$node.log" 2>/dev/null | cut -d / -f 3 || true
  for entry in $(grep -lzx "SLURMD_NODENAME=$node" /proc/[0-9]*/environ 2>/dev/null); do
    if grep -qzxF "SLURM_CONF=$SLURM_CONF" "$entry" 2>/dev/null; then cut -d / -f 3 <<< "$entry"; fi
  done
}

# Children before their parents.
deepest_first() {
  ps -eo pid=,ppid= | awk -v wanted="$*" '
    { parent[$1] = $2 }
    END {
      count = split(wanted, pids, " ")
      for (i = 1; i <= count; i++) {
        depth = 0
        for (pid = pids[i]; pid in parent && pid > 1; pid = parent[pid]) depth++
        print depth, pids[i]
      }
    }' | sort -rn | cut -d ' ' -f 2
}

# As in a power cut, no process may see that another is gone (srun's second process, for one, would end the step on the other nodes):
# all stand still before the first is killed. Children first: where the leader of a group ends, the system wakes those of it that
# stand still, with a SIGHUP.
kill_nodes() {
  local known=() found
  while true; do
    mapfile -t found < <(processes_of "$1" | sort -u | grep -vxF "$(printf '%s\n' "${known[@]}")")
    if [ ${#found[@]} -eq 0 ]; then break; fi
    # Some may have ended.
    kill -STOP "${found[@]}" 2>/dev/null || true
    known+=("${found[@]}")
  done
  if [ ${#known[@]} -eq 0 ]; then return; fi
  mapfile -t found < <(deepest_first "${known[@]}")
  kill -KILL "${found[@]}" 2>/dev/null || true
}

# The controller's state is of no more use.
stop() {
  rm -f "$folder/watcher"
  kill_nodes 'n[0-9]*'
  kill_daemons KILL "$folder/slurmctld.pid"
  kill_daemons TERM "$folder/munge/pid"
}

case $command in
  start) start "${3:-4}" "${4:-}" ;;
  stop) stop ;;
  node-down) [ $# -eq 3 ] || usage; kill_nodes "$3" ;;
  node-up) [ $# -eq 3 ] || usage; slurmd -N "$3" ;;
  # Of its own use: PID is that of the process which the testbed is for.
  watch)
    # Another testbed in this folder has its own.
    echo $$ > "$folder/watcher"
    while lives "$3" && [ "$(cat "$folder/watcher" 2>/dev/null)" = $$ ]; do sleep 1; done
    if [ "$(cat "$folder/watcher" 2>/dev/null)" = $$ ]; then stop; fi
    ;;
  *) usage ;;
esac
