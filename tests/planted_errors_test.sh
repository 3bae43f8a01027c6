#!/usr/bin/env bash
# Every error of planted_errors.txt can be planted in the sources as they are; and what scripts/planted-errors.sh says of a list that is
# not so: it is run on a small tree.
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$source/scripts/planted-errors.sh" --check
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/tests" "$folder/lib"
cp -r "$source/scripts" "$folder/scripts"
cd "$folder"
failures=0

# expect CODE WORDS ARGUMENT...: WORDS are in what it says.
expect() {
  local code=0 wanted=$1 words=$2
  shift 2
  scripts/planted-errors.sh --check "$@" >said 2>&1 || code=$?
  if [ "$code" -ne "$wanted" ] || ! grep -qF -- "$words" said; then
    echo "expected exit code $wanted and \"$words\"; the exit code was $code and the output:"
    sed 's/^/    /' said
    failures=$((failures + 1))
  fi
}
# list OLD NEW: one error, in a file of three lines.
list() {
  printf 'int a = 1;\nint b = a * (2);\nint c = 2;\n' >lib/sum.cpp
  printf '# Sums.\nerror sum: wrong\nfile lib/sum.cpp\nold %s\nnew %s\ntest sum sums *\n' "$1" "$2" >tests/planted_errors.txt
}

list 'a * (2)' 'a + (2)'
expect 0 '1 errors can be planted'
expect 0 '1 errors can be planted' 'sum:*'
expect 2 'unknown argument product*' 'product*'
list '1;\nint b' '3;\nint b'
expect 0 '1 errors can be planted'
list 'a / 2' 'a + 2'
expect 1 'sum: wrong: "a / 2" stands 0 times in lib/sum.cpp'
list '2' '3'
expect 1 'sum: wrong: "2" stands 2 times in lib/sum.cpp'
list 'int a' 'int a'
expect 1 'once is needed to plant something else there'
list 'int a' 'int d'
sed -i '/^new/d' tests/planted_errors.txt
expect 1 'an error lacks one of its lines'
list 'int a' 'int d'
sed -i 's/^test/tests/' tests/planted_errors.txt
expect 1 'this line is none of error, file, old, new and test: tests sum sums *'

exit $((failures > 0))
