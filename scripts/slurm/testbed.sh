#!/usr/bin/env bash
# testbed.sh start FOLDER [NODES]: a real SLURM cluster of virtual nodes n0, n1 ... on this machine (4 by default), for the tests and for
# trying sbatch scripts. Needs root; installs slurm-wlm and munge. Everything it runs and writes is below FOLDER. Prints what to export:
#   eval "$(scripts/slurm/testbed.sh start /tmp/testbed)"; sinfo
# testbed.sh node-down FOLDER NODE: kills that node's daemon and all that it has started, as if it had lost power; SLURM notices after
# about 25 s. node-up starts it again. testbed.sh stop FOLDER: ends all of it; the folder stays.
# TESTBED_PORT: the first of the forty ports it uses (30 nodes); by default a number that follows from FOLDER.
source "$(dirname "$0")/../common.sh"

usage() { sed -n '2,7s/^# //p' "$0" >&2; exit 2; }
[ $# -ge 2 ] || usage
command=$1 folder=$(realpath -m "$2")
port=${TESTBED_PORT:-$((16000 + 40 * ($(cksum <<< "$folder" | cut -d ' ' -f 1) % 250)))}
export SLURM_CONF=$folder/slurm.conf

write_config() {
  local nodes=$1 host last
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
ReturnToService=2
MpiDefault=none
KillWait=5
SlurmdTimeout=10
JobRequeue=1
NodeName=n[0-$last] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 10))-$((port + 10 + last))] CPUs=2
PartitionName=main Nodes=n[0-$last] Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
CONF
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

# Also those that an earlier testbed has left in this folder.
kill_daemons() {
  local file pid
  for file in "$folder"/slurmd-*.pid "$folder"/slurmctld.pid "$folder"/munge/pid; do
    [ -s "$file" ] || continue
    pid=$(cat "$file")
    case $(ps -o comm= -p "$pid" || true) in slurmd | slurmctld | munged) kill "$pid" 2>/dev/null || true ;; esac
    for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null || true
    rm -f "$file"
  done
}

start() {
  local nodes=$1 node idle
  [ "$(id -u)" -eq 0 ] || { echo "testbed.sh: only root can start one" >&2; exit 1; }
  # Not on standard output, which the caller evaluates. A cluster that the packages themselves started is left alone.
  install slurm-wlm munge >&2
  mkdir -p "$folder"/{spool,state,log}
  chmod 0755 "$folder"
  kill_daemons >&2
  write_config "$nodes"
  start_munge >&2
  slurmctld -c >&2
  for node in $(seq 0 $((nodes - 1))); do
    mkdir -p "$folder/spool/n$node"
    slurmd -N "n$node" >&2
  done
  for _ in $(seq 150); do
    idle=$(sinfo -h -N -o '%T' 2>/dev/null | grep -c '^idle$' || true)
    if [ "$idle" -eq "$nodes" ]; then
      printf 'export SLURM_CONF=%q\n' "$SLURM_CONF"
      return
    fi
    sleep 0.2
  done
  echo "testbed.sh: only $idle of $nodes nodes came up within 30 s; see $folder/log" >&2
  exit 1
}

# Ends what a node has started: the tasks, which have its name in their environment, and the step daemons above them, which have
# left every group of the node's daemon. All at once: none may see that another is gone, as little as in a power cut.
kill_tasks() {
  local node=$1 entry pid parent pids=()
  for entry in $(grep -lzxF "SLURMD_NODENAME=$node" /proc/[0-9]*/environ 2>/dev/null || true); do
    grep -qzxF "SLURM_CONF=$SLURM_CONF" "$entry" 2>/dev/null || continue
    pid=${entry#/proc/} pid=${pid%/environ}
    pids+=("$pid")
    parent=$(ps -o ppid= -p "$pid" | tr -d ' ' || true)
    if [ "$(ps -o comm= -p "${parent:-0}" || true)" = slurmstepd ]; then pids+=("$parent"); fi
  done
  if [ ${#pids[@]} -eq 0 ]; then return; fi
  kill -KILL "${pids[@]}" 2>/dev/null || true
}

node_down() {
  kill -9 "$(cat "$folder/slurmd-$1.pid")" 2>/dev/null || true
  # Twice: what was being started is there now.
  kill_tasks "$1"
  kill_tasks "$1"
}

stop() {
  local spool
  kill_daemons
  for spool in "$folder"/spool/*; do kill_tasks "$(basename "$spool")"; done
}

case $command in
  start) start "${3:-4}" ;;
  stop) stop ;;
  node-down) [ $# -eq 3 ] || usage; node_down "$3" ;;
  node-up) [ $# -eq 3 ] || usage; slurmd -N "$3" ;;
  *) usage ;;
esac
