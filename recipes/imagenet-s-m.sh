#!/usr/bin/env bash
# ImageNet-1k, DINO-S / STROP-M: 45 h on one H100 in the paper.
source "$(dirname "$0")/common.sh"
folder=$(folder_of "$@")
shift
paper_run strop-m-dinov3-s "imagenet:$folder?split=train" imagenet-s-m "$@"
