#!/usr/bin/env bash
# Train, measure and pack the bundled model `scenes`: ten minutes on one H200. The same command
# continues a run that was stopped.
# TEACHER   folder of a teacher (default: the bundled `tiny`)
# CLEVR     spec of Blender's scenes to measure on as well
# DEVICE    default: a GPU if there is one
set -euo pipefail
out="${OUT:-runs/scenes}"
scenes="scenes:?n=${SCENES:-49152}&seed=1&size=128"
device=(${DEVICE:+--device "$DEVICE"})

strop train strop-xs-scenes --teacher "${TEACHER:-tiny}" --data "$scenes" --cache memory --resume \
    --set training.held_out=2048 --set "model.length_head.quality=${QUALITY:-0.985}" \
    --out "$out" "${device[@]}" "$@"
strop train-decoder "$out/model" --data "$scenes" --steps "${DECODER_STEPS:-3000}" \
    --batch "${DECODER_BATCH:-128}" "${device[@]}"
python "$(dirname "$0")/bundle.py" "$out/model" --name scenes --out "${WEIGHTS:-$out/bundled}" \
    --data "scenes:?n=${MEASURED:-2000}&seed=2000&size=128" \
    --fit "scenes:?n=${FITTED:-8192}&seed=1&size=128" \
    --check "scenes:?n=32&seed=77&size=128" --results "${RESULTS:-$out/results}" \
    ${CLEVR:+--also "$CLEVR"} \
    --licence "scenes: rendered by strop" --licence "teacher: see the card of tiny" \
    --limit "Trained on CLEVR-style scenes only. With all tokens, principal components of equal size" \
    --limit "are slightly better."
