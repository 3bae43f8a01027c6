#!/usr/bin/env bash
# format.sh [--check]: formats every source file in place; with --check, names those that are not formatted and fails.
source "$(dirname "$0")/common.sh"
cd "$root"
[ "${1:---check}" = --check ] || refuse "$1"
[ $# -le 1 ] || refuse "$2"
install "${check_packages[@]}"
mapfile -t files < <(git ls-files '*.h' '*.cpp' '*.cu' '*.inc')
if [ "${1:-}" = "--check" ]; then
  clang-format-14 --dry-run --Werror "${files[@]}"
else
  clang-format-14 -i "${files[@]}"
fi
