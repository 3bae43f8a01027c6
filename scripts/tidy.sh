#!/usr/bin/env bash
# clang-tidy over the sources that changed since BASE (first argument; default: the newest commit at least four hours older than the
# last one, so a day's work is seen as a whole; all files if there is none), plus those that include a changed header directly. Needs
# the release build's compile commands.
source "$(dirname "$0")/common.sh"
cd "$root"
install "${check_packages[@]}"
base=${1:-$(git rev-list -1 --before="$(($(git log -1 --format=%ct) - 4 * 3600))" HEAD)}
if [ -n "$base" ]; then
  mapfile -t changed < <(git diff --name-only --diff-filter=d "$base" -- 'lib/**' 'apps/**' 'tests/**')
else
  mapfile -t changed < <(git ls-files 'lib/**' 'apps/**' 'tests/**')
fi
declare -A selected=()
for file in "${changed[@]}"; do
  case $file in
    *.cpp) selected[$file]=1 ;;
    *.h | *.inc)
      while IFS= read -r user; do selected[$user]=1; done < <(
        git grep -lE "#include \"([^\"]*/)?$(basename "$file")\"" -- '*.cpp' || true)
      ;;
  esac
done
if [ ${#selected[@]} -eq 0 ]; then echo "clang-tidy: no source changed"; exit 0; fi
echo "clang-tidy: ${#selected[@]} files"
printf '%s\0' "${!selected[@]}" | sort -z | xargs -0 -P "$(nproc)" -n 4 clang-tidy-14 -p build/release --quiet
