#!/usr/bin/env bash
# soak.sh [HOURS]: the long forms of the process tests. Random faults, in fp32, bf16 and fp16, until 300 ranks were killed, and for so
# many hours at least; the same to the agents of several nodes, 40 runs and 40 more for each hour; one of eight ranks killed at every
# system call of a save; every state that a power cut may leave; the quickstart's recovery time; every layout as processes for 50 steps.
# SCALETRAIN_SOAK_SEED repeats the random faults, SCALETRAIN_SOAK_KILLS asks for more or fewer.
# The first failure ends it. tests/process/README.md tells what is tested.
source "$(dirname "$0")/common.sh"
cd "$root"
hours=${1:-0}
is_number "$hours" || refuse "$hours"
[ $# -le 1 ] || refuse "$2"
install "${build_packages[@]}" "${test_packages[@]}"
[ -d build/quickstart-data ] || { mkdir -p build && make_quickstart_data build/quickstart-data; }
cmake --preset release -DSCALETRAIN_BUILD_TESTS=ON >/dev/null
cmake --build --preset release --target scaletrain test_soak test_faults test_layouts
tests=build/release/bin

say "from a kill to the first new step: the quickstart's model"
"$tests/test_soak" --no-skip --test-case='the_quickstart_goes_on*'

say "random faults at random moments"
SCALETRAIN_SOAK_SEED=${SCALETRAIN_SOAK_SEED:-$RANDOM} SCALETRAIN_SOAK_KILLS=${SCALETRAIN_SOAK_KILLS:-300} \
  SCALETRAIN_SOAK_SECONDS=$((hours * 3600)) "$tests/test_soak" --test-case='whatever_is_done_to_a_run*'

say "random faults to the agents of several nodes"
SCALETRAIN_SOAK_SEED=${SCALETRAIN_SOAK_SEED:-$RANDOM} SCALETRAIN_SOAK_NODES=$((40 + 40 * hours)) \
  "$tests/test_soak" --test-case='whatever_is_done_to_the_agents*'

say "one of eight ranks killed at every system call of a save"
"$tests/test_faults" --no-skip --test-case='one_of_eight_ranks*'

say "every state that a power cut may leave"
SCALETRAIN_SOAK_ALL=1 "$tests/test_faults" --test-case='a_power_cut*'

say "layouts as real processes, 50 steps each"
SCALETRAIN_SOAK_STEPS=50 "$tests/test_layouts"
