#!/usr/bin/env bash
# coverage.sh [--tests]: every row of tests/coverage.txt must be held by a test case of the gate; names the rows that are not and fails. A case is of the
# gate when it exists, tests/nightly.txt leaves it in and nothing skips it. With --tests: prints each such case with its rows.
source "$(dirname "$0")/common.sh"
cd "$root"
[ "${1:---tests}" = --tests ] || refuse "$1"
[ $# -le 1 ] || refuse "$2"
mapfile -t files < <(git ls-files 'tests/*.cpp' 'tests/*CMakeLists.txt')
exec perl scripts/coverage.pl "${1:-}" tests/coverage.txt tests/nightly.txt "${files[@]}"
