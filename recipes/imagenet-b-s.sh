#!/usr/bin/env bash
# ImageNet-1k, DINO-B / STROP-S: 32 h on one H100 in the paper.
source "$(dirname "$0")/common.sh"
folder=$(folder_of "$@")
shift
paper_run strop-s-dinov3-b "imagenet:$folder?split=train" imagenet-b-s "$@"
