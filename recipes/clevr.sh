#!/usr/bin/env bash
# The whole CLEVR study of docs/clevr.md, some rows at a time on one GPU: while one compiles, others
# train. With --small the one for a CPU: the curricula that the paper's is set beside, three seeds
# each, and two of them on another teacher. Started again, it goes on with the rows that are missing.
# TEACHER   folder of a network, or `tiny`
# CLEVR     spec of Blender's scenes to report on as well
# SCENES    to train on, 49152 unless it says otherwise, or 4096 with --small
# OUT       runs/clevr, or runs/clevr-small, unless it names another folder
# JOBS      rows at a time, 3 unless it says otherwise
# ROWS      rows and their options for clevr.py, a line each, instead of those below
# What else is given goes to clevr.py.
set -euo pipefail
: "${TEACHER:?give a folder such as /nets/vits14-focus, or tiny}"
here="$(dirname "$0")"
teacher="$(basename "$TEACHER")"
if [[ " $* " == *" --small "* ]]; then
    out="${OUT:-runs/clevr-small}" scenes="${SCENES:-4096}"
    all=""
    for seed in 0 1 2; do
        for row in 64 ceiling high-ceiling tolerance price distillation outlines centred \
            centred-outlines; do
            all+="$row --seed $seed"$'\n'
        done
    done
    all+=$'64 --teacher tiny\ncentred-outlines --teacher tiny'
else
    out="${OUT:-runs/clevr}" scenes="${SCENES:-49152}"
    all="32
64
64 --seed 1
64 --teacher tiny
128
64-fixed
128-fixed
ceiling
ceiling --seed 1
high-ceiling
tolerance
price
price --seed 1
contrast
residue
distillation
together
refitted
outlines
outlines --seed 1
outlines --teacher tiny
centred
centred-outlines
centred-outlines --seed 1"
fi
rows="${ROWS:-$all}"
if [[ "$teacher" == tiny ]]; then # then it is no other row
    rows="$(grep -v -e '--teacher tiny' <<<"$rows" || true)"
fi
if [[ "$rows" != *[![:space:]]* ]]; then
    echo "No rows are left: name those of tiny without --teacher where TEACHER is tiny." >&2
    exit 2
fi

# Once for all rows, which would all make them otherwise; with outlines, which some of them ask for.
for each in "$TEACHER" $(grep -q -e '--teacher tiny' <<<"$rows" && echo tiny); do
    fields="$out/$(basename "$each")-outlines.safetensors"
    [[ -e "$fields" ]] || strop data features "scenes:?n=$scenes&seed=1&size=128" --preset clevr-64 \
        --set curriculum.oracle=outlines --teacher "$each" --out "$fields"
done
mkdir -p "$out/logs"
row() {
    local out=$1 row=$2 log
    shift 2
    log="$out/logs/$(tr -cs 'a-z0-9\n' - <<<"$row").log"
    echo "$row: see $log" >&2
    # The row's own options come last, so that its --teacher counts; they are words.
    # shellcheck disable=SC2086
    python "$@" $row >"$log" 2>&1 || {
        { echo "$row failed:" && tail -n 5 "$log"; } >&2
        return 1
    }
}
export -f row
grep . <<<"$rows" | tr '\n' '\0' | xargs -0 -P "${JOBS:-3}" -I '{}' \
    bash -c 'row "$@"' row "$out" '{}' "$here/clevr.py" --missing --teacher "$TEACHER" \
    --scenes "$scenes" --runs "$out" --out "$out/results" ${CLEVR:+--clevr "$CLEVR"} "$@"
strop report "$out"/results/* --out "$out/report"
