#!/usr/bin/env bash
# What scripts/coverage.pl finds and what it lets through: it is run on small lists, and must fail exactly where one of them is wrong.
set -euo pipefail
script=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/scripts/coverage.pl
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
failures=0

cat >cases.cpp <<'CASES'
TEST_CASE("first_case") {
TEST_CASE(
    "a case whose name is "
    "cut in two") {
TEST_CASE("a_nightly_case") {
TEST_CASE("a_skipped_case" * doctest::skip()) {
TEST_CASE("a_case_that_cannot_run_everywhere" * doctest::skip(no_processors)) {
CASES
echo 'a_test(cases SOURCES cases.cpp)' >CMakeLists.txt
printf '# Left out of the gate.\nprogram a_nightly_*\n' >nightly.txt
# Every number has a row, and every kind of trap eight, held by the first case.
complete() {
  local number kind
  for number in {1..32}; do printf 'FAULTS %d a fault\n  first_case\n' "$number"; done
  for number in {1..13}; do printf 'AUDIT %d a finding\n  first_case\n' "$number"; done
  for kind in 'gradient norm' 'tied embeddings' accumulation 'partial gradients' 'data on resume' 'state on resume' checkpoints \
    collectives evaluation metrics configuration devices; do
    for number in {1..8}; do printf 'TRAPS %s: the trap %d\n  first_case\n' "$kind" "$number"; done
  done
}

# expect CODE WORDS: of coverage.txt and nightly.txt as they are; WORDS are in what it says.
expect() {
  local code=0
  perl "$script" '' coverage.txt nightly.txt cases.cpp CMakeLists.txt >said 2>&1 || code=$?
  if [ "$code" -ne "$1" ] || ! grep -qF -- "$2" said; then
    echo "expected exit code $1 and \"$2\"; the exit code was $code and the output:"
    sed 's/^/    /' said
    failures=$((failures + 1))
  fi
}

complete >coverage.txt
expect 0 '141 rows are held by 1 of the gate'"'"'s 3 test cases'

{ complete; printf 'TRAPS a row of two\n  a case whose name is cut in two\n  a_case_that_cannot_*\n'; } >coverage.txt
expect 0 '142 rows are held by 3 of'

{ complete; printf 'TRAPS nobody holds this\n'; } >coverage.txt
expect 1 '"TRAPS nobody holds this" is held by no test case of the gate'

{ complete; printf 'TRAPS a name\n  first_case\n  a_case_that_was_renamed\n'; } >coverage.txt
expect 1 '"a_case_that_was_renamed", which is to hold "TRAPS a name", is no test case'

{ complete; printf 'TRAPS of the net alone\n  a_nightly_case\n'; } >coverage.txt
expect 1 '"TRAPS of the net alone" is held by no test case of the gate'

{ complete; printf 'TRAPS of nobody\n  a_skipped_case\n'; } >coverage.txt
expect 1 '"TRAPS of nobody" is held by no test case of the gate'

{ complete; printf 'TRAPS of both\n  a_nightly_case\n  first_case\n'; } >coverage.txt
expect 0 '142 rows'

{ complete; printf 'TRAPS twice\n  first_case\nTRAPS twice\n  first_case\n'; } >coverage.txt
expect 1 'the row "TRAPS twice" stands twice'

{ complete; printf 'TRAPS a row\n  first_case\n  first_case\n'; } >coverage.txt
expect 1 '"first_case" stands twice under "TRAPS a row"'

complete | sed '/^AUDIT 7 /,+1d' >coverage.txt
expect 1 'AUDIT 7 is missing'
complete | sed '/^FAULTS 32 /,+1d' >coverage.txt
expect 1 'FAULTS 32 is missing'
complete | sed '/^TRAPS data on resume: the trap 3$/,+1d' >coverage.txt
expect 1 'of the traps "data on resume" 7 rows are left, of 8'
complete | sed '/^TRAPS devices: /,+1d' >coverage.txt
expect 1 'of the traps "devices" 0 rows are left, of 2'

complete >coverage.txt
printf 'program a_case_that_went_*\n' >nightly.txt
expect 1 '"program a_case_that_went_*" is no test case'

printf '# Left out of the gate.\nprogram a_nightly_*\n' >nightly.txt
echo 'a_test(cases SOURCES other_cases.cpp)' >CMakeLists.txt
expect 1 'cases.cpp: its test cases are in no program'

exit $((failures > 0))
