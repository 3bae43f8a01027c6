#!/usr/bin/env bash
# What scripts/layers.sh finds and what it lets through: it is run on a small tree, and must fail exactly where that is wrong.
set -euo pipefail
script=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/scripts/layers.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
failures=0

layer() {
  mkdir -p "lib/$1"
  printf 'scaletrain_library(%s\n  SOURCES %s.cpp\n  DEPENDS %s\n  LIBRARIES fmt::fmt)\n' "$1" "$1" "$2" >"lib/$1/CMakeLists.txt"
  printf '# %s\n\nMay include: %s. Start anywhere.\n' "$1" "$3" >"lib/$1/README.md"
  printf '#include "%s/%s.h"\n#include <vector>\n' "$1" "$1" >"lib/$1/$1.cpp"
  local other
  for other in $2; do printf '#include "%s/%s.h"\n' "$other" "$other" >>"lib/$1/$1.cpp"; done
}
tree() {
  rm -rf lib
  mkdir lib
  printf 'add_subdirectory(low)\nadd_subdirectory(middle)\nadd_subdirectory(high)\n' >lib/CMakeLists.txt
  layer low '' 'the standard library'
  layer middle 'low' '`low`'
  layer high 'low middle' 'everything up to `middle`'
}

# expect CODE WORDS: WORDS are in what it says of the tree as it is.
expect() {
  local code=0
  bash "$script" lib >said 2>&1 || code=$?
  if [ "$code" -ne "$1" ] || ! grep -qF -- "$2" said; then
    echo "expected exit code $1 and \"$2\"; the exit code was $code and the output:"
    sed 's/^/    /' said
    failures=$((failures + 1))
  fi
}

tree
expect 0 '3 layers include what lies below them'

tree
echo '#include "middle/middle.h"' >lib/low/low.inc
expect 1 'low/low.inc:1: low includes "middle/", which low/CMakeLists.txt does not name under DEPENDS'

tree
mkdir lib/low/device
echo '#include "high/high.h"' >lib/low/device/kernels.cu
expect 1 'low/device/kernels.cu:1: low includes "high/", which low/CMakeLists.txt does not name under DEPENDS'

tree
echo '#include "../middle/middle.h"' >lib/low/low.inc
expect 1 'low/low.inc:1: #include "../middle/middle.h" is relative; a file of lib is included by its path in lib'

tree
echo '  # include "./low.h"' >lib/low/low.inc
expect 1 'low/low.inc:1:   # include "./low.h" is relative; a file of lib is included by its path in lib'

tree
echo '#include "low/../middle/middle.h"' >lib/low/low.inc
expect 1 'low/low.inc:1: #include "low/../middle/middle.h" is relative; a file of lib is included by its path in lib'

tree
layer low 'high' '`high`'
expect 1 'low/CMakeLists.txt: DEPENDS names high, which does not stand before low in CMakeLists.txt'

tree
echo '#include "high/high.h"' >lib/high/high.cpp
expect 1 'high/CMakeLists.txt: DEPENDS names middle, of which high includes nothing'

tree
layer middle 'low' '`low`, `high`'
expect 1 'middle/README.md: says that it may include high low; DEPENDS names low'

tree
echo '# middle' >lib/middle/README.md
expect 1 'middle/README.md: has no sentence "May include: ..."'

exit $((failures > 0))
