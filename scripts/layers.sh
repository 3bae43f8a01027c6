#!/usr/bin/env bash
# layers.sh [FOLDER]: every layer in FOLDER (default: lib) includes exactly what its CMakeLists.txt DEPENDS on and its README names under
# "May include", and depends on layers above it in FOLDER/CMakeLists.txt only; no include is relative. Names what does not, and fails.
source "$(dirname "$0")/common.sh"
lib=${1:-$root/lib}
[ -f "$lib/CMakeLists.txt" ] || refuse "$1"
[ $# -le 1 ] || refuse "$2"
cd "$lib"
sources=(--include='*.h' --include='*.cpp' --include='*.inc' --include='*.cu' --include='*.cuh')
problems=0
problem() {
  echo "$1" >&2
  problems=$((problems + 1))
}

mapfile -t layers < <(sed -n 's/^add_subdirectory(\(.*\))$/\1/p' CMakeLists.txt)
# only_layers: of the words that are read, those that name a layer, sorted.
only_layers() { { grep -xF -f <(printf '%s\n' "${layers[@]}") || true; } | sort -u; }

lower=()
for layer in "${layers[@]}"; do
  allowed=$(tr '\n' ' ' <"$layer/CMakeLists.txt" | sed -nE 's/.*[ (]DEPENDS ([a-z_ ]*).*/\1/p' | tr ' ' '\n' | only_layers)
  while IFS=: read -r file line other; do
    if [ "$other" = "$layer" ] || grep -qxF "$other" <<<"$allowed"; then continue; fi
    problem "$file:$line: $layer includes \"$other/\", which $layer/CMakeLists.txt does not name under DEPENDS"
  done < <(grep -rnE "${sources[@]}" '^#include "[a-z_]+/' "$layer" |
    sed -E 's/^([^:]*:[0-9]*:)#include "([a-z_]+)\/.*/\1\2/')
  # "../nn/x.h" would go past all of this.
  while IFS=: read -r file line text; do
    problem "$file:$line: $text is relative; a file of lib is included by its path in lib"
  done < <(grep -rnE "${sources[@]}" '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<]([^"<>]*/)?\.\.?/' "$layer")
  for other in $allowed; do
    if ! grep -rqE "${sources[@]}" "^#include \"$other/" "$layer"; then
      problem "$layer/CMakeLists.txt: DEPENDS names $other, of which $layer includes nothing"
    fi
    if ! grep -qxF "$other" <<<"$(printf '%s\n' "${lower[@]}")"; then
      problem "$layer/CMakeLists.txt: DEPENDS names $other, which does not stand before $layer in CMakeLists.txt"
    fi
  done
  said=$(tr '\n' ' ' <"$layer/README.md" | sed -nE 's/.*May include:? ([^.]*)\..*/\1/p')
  if [ -z "$said" ]; then
    problem "$layer/README.md: has no sentence \"May include: ...\""
  elif [[ $said != every* ]]; then
    named=$(grep -oE '[a-z]+' <<<"$said" | only_layers)
    if [ "$named" != "$allowed" ]; then
      problem "$layer/README.md: says that it may include ${named//$'\n'/ }; DEPENDS names ${allowed//$'\n'/ }"
    fi
  fi
  lower+=("$layer")
done
if [ "$problems" -gt 0 ]; then exit 1; fi
echo "${#layers[@]} layers include what lies below them"
