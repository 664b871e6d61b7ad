#!/usr/bin/env bash
# COCO 2017, DINO-S / STROP-S: 27 h on one H100 in the paper.
source "$(dirname "$0")/common.sh"
folder=$(folder_of "$@")
shift
paper_run strop-s-dinov3-s "coco:$folder?split=train" coco-s-s "$@"
