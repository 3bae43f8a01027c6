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
# noticed_by TEST: the same of an error that can be planted.
noticed_by() {
  list 'int a' 'int d'
  sed -i '/^test /d' tests/planted_errors.txt
  printf 'test %s\n' "$1" >>tests/planted_errors.txt
}
mkdir tests/unit
cat >tests/unit/CMakeLists.txt <<'LISTS'
a_test(sum SOURCES sum_test.cpp)
a_test(other LABEL unit SOURCES
  other_test.cpp)  # and more_test.cpp
target_sources(test_other PRIVATE more_test.cpp)
LISTS
cat >tests/unit/sum_test.cpp <<'CASES'
// TEST_CASE("sums that were left out") {
TEST_CASE("sums of \"two\"") {
TEST_CASE(
    "sums of a name that is "
    "cut in two" * doctest::skip(is_slow)) {
TEST_CASE_TEMPLATE("sums of every type", T, float,
                   double) {
CASES
printf 'TEST_CASE("others") {\n' >tests/unit/other_test.cpp
printf 'TEST_CASE("others, and more") {\n' >tests/unit/more_test.cpp

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

for test in 'sum sums of a name that is cut in two' 'sum sums of every type<double>' 'sum sums of every *' 'sum sums of "two"' \
  'sum *two,sums of every*' 'other others' 'other others\, and more'; do
  noticed_by "$test"
  expect 0 '1 errors can be planted'
done
noticed_by 'sum differences *'
expect 1 'sum: wrong: "differences *" names no test case in the sources of sum'
noticed_by 'sum sums of every type'
expect 1 '"sums of every type" names no test case'
noticed_by 'sum sums that were left out'
expect 1 '"sums that were left out" names no test case'
noticed_by 'sum others'
expect 1 '"others" names no test case in the sources of sum'
noticed_by 'sum *two,others'
expect 1 '"others" names no test case'
noticed_by 'product sums *'
expect 1 'sum: wrong: no CMakeLists.txt of the tests has a program product'

exit $((failures > 0))
