#!/usr/bin/env bash
# words.sh: words that better ones have replaced stand nowhere (crew: worker group; set aside: quarantined; step block: step scalars;
# departure, arrival: pending send, pending receive). Names where one does, and fails.
source "$(dirname "$0")/common.sh"
cd "$root"
[ $# -eq 0 ] || refuse "$1"
code=0
git grep -nwiE 'crews?|set[ _-]aside|step[ _-]?block|departures?|arrivals?|doctest::Approx' -- lib apps tests configs '*.md' ':!tests/fuzz/corpus' || code=$?
[ "$code" -eq 1 ]  # nothing was found
