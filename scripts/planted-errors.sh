#!/usr/bin/env bash
# planted-errors.sh [--check] [PATTERN...]: plants the errors of tests/planted_errors.txt one by one in a copy of the sources, builds the
# test that is to fail and runs it; tells which errors no test noticed, and fails. PATTERN: of the names of those to plant (as in a shell;
# default: all). --check: only that each can be planted still: that the text which it replaces stands once in its file, and that the
# sources have the test cases that are to notice it.
source "$(dirname "$0")/common.sh"
cd "$root"
check=
if [ "${1:-}" = --check ]; then check=1; shift; fi
list=tests/planted_errors.txt
patterns=("$@")
for pattern in "${patterns[@]}"; do [[ $pattern != -* ]] || refuse "$pattern"; done

names=() files=() olds=() news=() programs=() cases=()
while IFS= read -r line; do
  value=${line#* }
  case $line in
    'error '*) names+=("$value") ;;
    'file '*) files+=("$value") ;;
    'old '*) olds+=("$value") ;;
    'new '*) news+=("$value") ;;
    'test '*) programs+=("${value%% *}") cases+=("${value#* }") ;;
    '' | '#'*) ;;
    *) echo "$list: this line is none of error, file, old, new and test: $line" >&2; exit 1 ;;
  esac
done <"$list"
for lines in "${#files[@]}" "${#olds[@]}" "${#news[@]}" "${#programs[@]}"; do
  [ "$lines" -eq "${#names[@]}" ] || { echo "$list: an error lacks one of its lines file, old, new and test" >&2; exit 1; }
done

# plant FROM OLD NEW [TO]: writes FROM with NEW in OLD's place to TO, and prints how often OLD stands there. \n is a new line.
plant() {
  OLD=${2//\\n/$'\n'} NEW=${3//\\n/$'\n'} perl -0777 -ne 'my $count = s/\Q$ENV{OLD}\E/$ENV{NEW}/g; print STDERR $count + 0; print' "$1" \
    2>&1 >"${4:-/dev/null}"
}

# Errors that cannot be planted are found before anything is built.
problems=0 chosen=()
for i in "${!names[@]}"; do
  wanted=$([ ${#patterns[@]} -eq 0 ] && echo 1 || true)
  # shellcheck disable=SC2053 # patterns, not texts
  for pattern in "${patterns[@]}"; do if [[ ${names[i]} == $pattern ]]; then wanted=1; fi; done
  [ -n "$wanted" ] || continue
  chosen+=("$i")
  count=$(plant "${files[i]}" "${olds[i]}" "${news[i]}")
  [ "$count" -eq 1 ] && [ "${olds[i]}" != "${news[i]}" ] && continue
  echo "$list: ${names[i]}: \"${olds[i]}\" stands $count times in ${files[i]}, once is needed to plant something else there" >&2
  problems=$((problems + 1))
done
[ ${#chosen[@]} -gt 0 ] || refuse "${patterns[*]}"
mapfile -t programs_lists < <(find tests -name CMakeLists.txt | sort)
for i in "${chosen[@]}"; do printf '%s: %s\t%s %s\n' "$list" "${names[i]}" "${programs[i]}" "${cases[i]}"; done |
  perl scripts/planted-cases.pl "${programs_lists[@]}" || problems=$((problems + 1))
[ "$problems" -eq 0 ] || exit 1
if [ -n "$check" ]; then
  echo "${#chosen[@]} errors can be planted"
  exit 0
fi

install "${build_packages[@]}" "${test_packages[@]}"
tree=$root/build/planted
say "copying the sources to $tree and building what they are, before any error"
mkdir -p "$tree"
# Files that stay as they are keep their times, so that a second run compiles little.
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
  [ ! -f "$file" ] || cmp -s "$file" "$tree/$file" || { mkdir -p "$tree/$(dirname "$file")"; cp "$file" "$tree/$file"; }
done
cd "$tree"
export CCACHE_BASEDIR=$tree CCACHE_NOHASHDIR=1

# build PROGRAM, run PROGRAM CASES: what they print is in a file beside.
build() { cmake --build --preset release --target "test_$1" -- -j"${SCALETRAIN_JOBS:-2}" >said 2>&1; }
run() { timeout 600 "build/release/bin/test_$1" --test-case="$2" >said 2>&1; }
fail() {
  echo "$1:" >&2
  tail -n 30 said >&2
  exit 1
}

# plant_all NUMBER...: of errors whose tests are configured. Without any, each test passes and is there.
survivors=()
plant_all() {
  local i test tested=$'\n'
  for i in "$@"; do
    test="${programs[i]} ${cases[i]}"
    [[ $tested != *$'\n'"$test"$'\n'* ]] || continue
    tested+=$test$'\n'
    build "${programs[i]}" || fail "test_${programs[i]} does not build"
    run "${programs[i]}" "${cases[i]}" || fail "without an error planted, $test fails"
    ! grep -q 'test cases: *0 ' said || fail "$test names no test case"
  done
  say "planting $# errors"
  for i in "$@"; do
    cp "${files[i]}" original
    plant original "${olds[i]}" "${news[i]}" "${files[i]}" >/dev/null
    if ! build "${programs[i]}"; then
      mv original "${files[i]}"
      fail "${names[i]}: does not compile"
    fi
    if run "${programs[i]}" "${cases[i]}"; then
      survivors+=("${names[i]}: ${programs[i]} ${cases[i]}")
      echo "NOT NOTICED  ${names[i]}"
    else
      echo "noticed      ${names[i]}"
    fi
    mv original "${files[i]}"
    touch "${files[i]}"
  done
}

# configure CUDA: sets programs_here. Kernels of GPUs, which their own compiler would compile anew after most errors, are left to those
# tests that run them on the host.
configure() {
  cmake --preset release -DSCALETRAIN_BUILD_TESTS=ON -DSCALETRAIN_CUDA="$1" >/dev/null
  programs_here=$(cmake --build --preset release --target help | sed -n 's/^test_\([^:]*\): .*/\1/p')
}
is_here() { grep -qxF -- "${programs[$1]}" <<<"$programs_here"; }

configure OFF
of_hosts=() of_gpus=()
for i in "${chosen[@]}"; do if is_here "$i"; then of_hosts+=("$i"); else of_gpus+=("$i"); fi; done
[ ${#of_hosts[@]} -eq 0 ] || plant_all "${of_hosts[@]}"
if [ ${#of_gpus[@]} -gt 0 ]; then
  configure AUTO
  found=()
  for i in "${of_gpus[@]}"; do
    if is_here "$i"; then found+=("$i"); else
      echo "left out     ${names[i]}: test_${programs[i]} needs the CUDA toolkit, which this machine lacks"
    fi
  done
  [ ${#found[@]} -eq 0 ] || plant_all "${found[@]}"
fi
if [ ${#survivors[@]} -gt 0 ]; then
  printf 'planted, and not noticed by %s\n' "${survivors[@]}" >&2
  exit 1
fi
