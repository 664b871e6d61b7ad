#!/usr/bin/env bash
# The bundled model `photos`, from nothing but the bundled teacher: some minutes on one H200.
# PHOTOS    spec of photographs to learn on, HELD_OUT of others to measure on
set -euo pipefail
: "${PHOTOS:?}" "${HELD_OUT:?}"
out="${OUT:-runs/photos}"

strop train strop-xs --teacher tiny --data "$PHOTOS" --val "$HELD_OUT" --cache memory \
    --workers "${WORKERS:-8}" --out "$out" "$@"
strop train-decoder "$out/model" --data "$PHOTOS" --steps "${DECODER_STEPS:-3000}" --batch 64 \
    --workers "${WORKERS:-8}"
python "$(dirname "$0")/bundle.py" "$out/model" --name photos --out "${WEIGHTS:-$out/bundled}" \
    --data "$HELD_OUT" --fit "$PHOTOS" --results "${RESULTS:-$out/results}" \
    --check "folder:$(python -c 'import sklearn, pathlib; print(pathlib.Path(sklearn.__file__).parent / "datasets/images")')" \
    --trained-on "8,192 photographs of COCO 2017, 256 x 256, and 20 random views of each" \
    --licence "photographs: COCO 2017, under the terms of use of COCO and of Flickr" \
    --licence "teacher: see the card of tiny" \
    --limit "Made from few photographs, to try things out and to test with: for research, train on" \
    --limit "a DINOv3 and more images. The preview shows what the field holds, not a good picture."
