#!/usr/bin/env bash
# Train, measure and report the whole CLEVR study, several rows at a time on one GPU. With --small:
# the study for a CPU, three seeds per row. Started again, it continues with the missing rows.
# TEACHER   folder of a network, or `tiny`
# CLEVR     spec of Blender's scenes to measure on as well
# SCENES    number of scenes to train on (default 49152, or 4096 with --small)
# OUT       folder for everything (default runs/clevr, or runs/clevr-small)
# JOBS      rows at a time (default 3)
# ROWS      rows with their options for study.py, one line each, instead of those below
# All other arguments are passed to study.py.
set -euo pipefail
: "${TEACHER:?give a folder such as /nets/vits14-focus, or tiny}"
here="$(dirname "$0")"
teacher="$(basename "$TEACHER")"
if [[ " $* " == *" --small "* ]]; then
    out="${OUT:-runs/clevr-small}" scenes="${SCENES:-4096}"
    all=""
    for seed in 0 1 2; do
        for row in 64 ceiling high-ceiling centred; do
            all+="$row --seed $seed"$'\n'
        done
    done
    all+="64 --teacher tiny"
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
centred"
fi
rows="${ROWS:-$all}"
if [[ "$teacher" == tiny ]]; then # --teacher tiny would name the same row twice
    rows="$(grep -v -e '--teacher tiny' <<<"$rows" || true)"
fi
if [[ "$rows" != *[![:space:]]* ]]; then
    echo "No rows are left: name those of tiny without --teacher where TEACHER is tiny." >&2
    exit 2
fi

# Compute the fields once; otherwise every row of the first batch would compute them.
for each in "$TEACHER" $(grep -q -e '--teacher tiny' <<<"$rows" && echo tiny); do
    fields="$out/$(basename "$each").safetensors"
    [[ -e "$fields" ]] || strop data features "scenes:?n=$scenes&seed=1&size=128" --preset clevr-64 \
        --teacher "$each" --out "$fields"
done
mkdir -p "$out/logs"
row() {
    local out=$1 row=$2 log
    shift 2
    log="$out/logs/$(tr -cs 'a-z0-9\n' - <<<"$row").log"
    echo "$row: see $log" >&2
    # The row's own options come last, so that its --teacher wins. They are words.
    # shellcheck disable=SC2086
    python "$@" $row >"$log" 2>&1 || {
        { echo "$row failed:" && tail -n 5 "$log"; } >&2
        return 1
    }
}
export -f row
grep . <<<"$rows" | tr '\n' '\0' | xargs -0 -P "${JOBS:-3}" -I '{}' \
    bash -c 'row "$@"' row "$out" '{}' "$here/study.py" --missing --teacher "$TEACHER" \
    --scenes "$scenes" --runs "$out" --out "$out/results" ${CLEVR:+--clevr "$CLEVR"} "$@"
python "$here/report.py" "$out"/results/* --out "$out/report"
