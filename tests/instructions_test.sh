#!/usr/bin/env bash
# instructions_test.sh libbackend.a: what is compiled for processors that not everybody has defines constant tables for others to see
# and nothing else. A function there would run before the processor is known to have its instructions; an inline function that others
# define too would be the linker's choice for them; a static constructor would run at the start of the program.
set -euo pipefail
archive=$1
found=0
failures=0
member=
while read -r line; do
  case $line in
    kernels_portable.cpp.o:) member= ;;
    kernels_*.o:)
      member=${line%:}
      found=$((found + 1))
      ;;
    *.o:) member= ;;
    *' '[A-Za-z]' '*)
      if [ -z "$member" ]; then continue; fi
      # A table is read-only data; DW.ref... is a pointer of the compiler's that every source has.
      if ! [[ $line =~ \ [DRB]\ _ZN10scaletrain3cpu || $line =~ \ V\ DW\.ref\. ]]; then
        echo "$member defines $line"
        failures=$((failures + 1))
      fi
      ;;
  esac
done < <(nm --extern-only --defined-only "$archive")
while read -r line; do
  case $line in
    'In archive'*) ;;
    kernels_*.o:*) member=${line%%:*} ;;
    *.o:*) member= ;;
    *.init_array*)
      if [ -z "$member" ] || [ "$member" = kernels_portable.cpp.o ]; then continue; fi
      echo "$member has a static constructor"
      failures=$((failures + 1))
      ;;
  esac
done < <(objdump --section-headers "$archive")
if [ "$found" -lt 2 ] && [ "$(uname -m)" = x86_64 ]; then
  echo "found $found sources of kernels in $archive"
  failures=$((failures + 1))
fi
if [ "$failures" -gt 0 ]; then exit 1; fi
echo "$found sources of kernels define constant tables alone"
