# Functions of the scripts in this folder. Their first argument is the dataset's folder; the others are
# passed to `strop train`. See README.md.
set -euo pipefail

paper_run() {
    local preset=$1 spec=$2 name=$3
    shift 3
    local out="${OUT:-runs/$name}"
    local launch=(strop)
    if [[ "${GPUS:-1}" -gt 1 ]]; then
        launch=(torchrun --standalone --max-restarts=3 --nproc-per-node="$GPUS" --no-python strop)
    fi
    "${launch[@]}" train "$preset" --data "$spec" --out "$out" --resume \
        --workers "${WORKERS:-8}" "$@"
}

folder_of() {
    if [[ $# -lt 1 ]]; then
        echo "usage: $0 DATASET_FOLDER [options of strop train]" >&2
        exit 2
    fi
    echo "$1"
}
