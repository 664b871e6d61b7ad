#!/usr/bin/env bash
# ImageNet-1k, DINO-S / STROP-S: 27 h on one H100 in the paper.
source "$(dirname "$0")/common.sh"
folder=$(folder_of "$@")
shift
paper_run strop-s-dinov3-s "imagenet:$folder?split=train" imagenet-s-s "$@"
