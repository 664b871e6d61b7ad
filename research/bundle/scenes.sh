#!/usr/bin/env bash
# Train, measure and pack the bundled model `scenes`: some minutes on one H200.
# TEACHER   folder of a teacher (default: the bundled `tiny`)
# CLEVR     spec of Blender's scenes to measure on as well
set -euo pipefail
out="${OUT:-runs/scenes}"
scenes="scenes:?n=${SCENES:-49152}&seed=1&size=128"

strop train strop-xs-scenes --teacher "${TEACHER:-tiny}" --data "$scenes" --cache memory --out "$out" "$@"
strop train-decoder "$out/model" --data "$scenes" --steps "${DECODER_STEPS:-3000}" --batch 128
strop train-lengths "$out/model" --data "scenes:?n=2048&seed=1&size=128" --mean 17 --per doubling \
    --contrast 1.15
python "$(dirname "$0")/bundle.py" "$out/model" --name scenes --out "${WEIGHTS:-$out/bundled}" \
    --data "scenes:?n=2000&seed=2000&size=128" --fit "scenes:?n=8192&seed=1&size=128" \
    --check "scenes:?n=32&seed=77&size=128" --results "${RESULTS:-$out/results}" \
    ${CLEVR:+--also "$CLEVR"} \
    --licence "scenes: rendered by strop" --licence "teacher: see the card of tiny" \
    --limit "Trained on CLEVR-style scenes only. With all tokens, principal components of equal size" \
    --limit "are slightly better. The settings of the length head were chosen by the correlation" \
    --limit "between length and number of objects on training scenes."
