#!/usr/bin/env bash
# Train, measure and pack the bundled model `photos`: ten minutes on one H200. The same command
# continues a run that was stopped.
# PHOTOS    spec of photographs to train on, some of which are held out to calibrate the lengths;
#           HELD_OUT of others to measure on
# TERMS     terms of use of the photographs, for the card; TRAINED_ON their name in the card
# TEACHER   folder of a teacher (default: the bundled `tiny`)
# DEVICE    default: a GPU if there is one
set -euo pipefail
: "${PHOTOS:?}" "${HELD_OUT:?}" "${TERMS:?}"
out="${OUT:-runs/photos}"
device=(${DEVICE:+--device "$DEVICE"})

strop train strop-s-photos --teacher "${TEACHER:-tiny}" --data "$PHOTOS" --cache memory --resume \
    --workers "${WORKERS:-8}" --out "$out" "${device[@]}" "$@"
strop train-decoder "$out/model" --data "$PHOTOS" --steps "${DECODER_STEPS:-3000}" \
    --batch "${DECODER_BATCH:-64}" --workers "${WORKERS:-8}" "${device[@]}"
python "$(dirname "$0")/bundle.py" "$out/model" --name photos --out "${WEIGHTS:-$out/bundled}" \
    --data "$HELD_OUT" --fit "$PHOTOS" --results "${RESULTS:-$out/results}" \
    --check "folder:$(python -c 'import sklearn, pathlib; print(pathlib.Path(sklearn.__file__).parent / "datasets/images")')" \
    ${TRAINED_ON:+--trained-on "$TRAINED_ON"} --licence "photographs: $TERMS" \
    --licence "teacher: see the card of tiny" \
    --limit "Trained on few images, for trying strop and for testing. For research, train a model on" \
    --limit "a DINOv3 and more images. The preview shows what the features contain; it is not a" \
    --limit "faithful reconstruction."
