#!/usr/bin/env bash
# COCO 2017, DINO-B / STROP-M: 50 h on one H100 in the paper.
source "$(dirname "$0")/common.sh"
folder=$(folder_of "$@")
shift
paper_run strop-m-dinov3-b "coco:$folder?split=train" coco-b-m "$@"
