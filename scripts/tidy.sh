#!/usr/bin/env bash
# tidy.sh [BASE|all]: clang-tidy over what changed since BASE (default: the newest commit at least four hours older than the last one,
# so a day's work is seen as a whole; everything where there is none). A layer or a test program that is compiled as one is read as
# one, which takes as long as three of its sources do; of those that include a changed header, one is read: the nearest.
source "$(dirname "$0")/common.sh"
cd "$root"
[ "${1:-all}" = all ] || git rev-parse --quiet --verify "$1^{commit}" >/dev/null || refuse "$1"
[ $# -le 1 ] || refuse "$2"
install "${check_packages[@]}"
cmake --preset release -DSCALETRAIN_BUILD_TESTS=ON >/dev/null

base=${1:-$(git rev-list -1 --before="$(($(git log -1 --format=%ct) - 4 * 3600))" HEAD)}
if [ -n "$base" ] && [ "$base" != all ]; then
  mapfile -t changed < <(git diff --name-only --diff-filter=d "$base" -- 'lib/**' 'apps/**' 'tests/**')
else
  mapfile -t changed < <(git ls-files 'lib/**/*.cpp' 'apps/**/*.cpp' 'tests/**/*.cpp')
fi

# What is compiled, for each source: the source itself, or the file that includes it with its target's others.
declare -A compiled=()
while IFS= read -r unit; do
  case $unit in
    */Unity/unity_*)
      while IFS= read -r source; do compiled[${source#"$root"/}]=$unit; done < <(sed -n 's/^#include "\(.*\)"$/\1/p' "$unit")
      ;;
    *) compiled[${unit#"$root"/}]=$unit ;;
  esac
done < <(sed -n 's/^ *"file": "\(.*\)",*$/\1/p' build/release/compile_commands.json)

declare -A selected=()
select_source() { if [ -n "${compiled[$1]:-}" ]; then selected[${compiled[$1]}]=1; fi; }
for file in "${changed[@]}"; do
  case $file in
    *.cpp) select_source "$file" ;;
    *.h | *.inc)
      mapfile -t users < <(git grep -lE "#include \"([^\"]*/)?$(basename "$file")\"" -- '*.cpp' || true)
      nearest=${users[0]:-}
      for user in "${users[@]}"; do
        if [ "$(dirname "$user")" = "$(dirname "$file")" ]; then nearest=$user; break; fi
      done
      if [ -n "$nearest" ]; then select_source "$nearest"; fi
      ;;
  esac
done
if [ ${#selected[@]} -eq 0 ]; then echo "clang-tidy: no source changed"; exit 0; fi
echo "clang-tidy: ${#selected[@]} of $(printf '%s\n' "${compiled[@]}" | sort -u | wc -l) compiled files, for ${#changed[@]} changed ones"
# GCC's names of warnings are not all Clang's.
printf '%s\0' "${!selected[@]}" | sort -z |
  xargs -0 -P "$(nproc)" -n 1 clang-tidy-14 -p build/release --quiet --extra-arg=-Wno-unknown-warning-option
