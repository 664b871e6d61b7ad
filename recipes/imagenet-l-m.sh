#!/usr/bin/env bash
# ImageNet-1k, DINO-L / STROP-M: 66 h on one H100 in the paper.
source "$(dirname "$0")/common.sh"
folder=$(folder_of "$@")
shift
paper_run strop-m-dinov3-l "imagenet:$folder?split=train" imagenet-l-m "$@"
