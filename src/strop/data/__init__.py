"""Data: every dataset by its spec string, one record type, batches in a known order."""

from strop.data.check import CheckReport, check_dataset
from strop.data.loader import Loader, epoch_order, image_batches, read_dataset, record_batches
from strop.data.pack import PackReport, pack_dataset
from strop.data.record import VOID, Batch, BatchDataset, Dataset, Record, concat, stack
from strop.data.rendered import ScenesDataset, write_scenes
from strop.data.spec import KINDS, Spec, open_dataset, parse_spec
from strop.data.transforms import crop, fit_record, flip, pad, squash

__all__ = [
    "KINDS",
    "VOID",
    "Batch",
    "BatchDataset",
    "CheckReport",
    "Dataset",
    "Loader",
    "PackReport",
    "Record",
    "ScenesDataset",
    "Spec",
    "check_dataset",
    "concat",
    "crop",
    "epoch_order",
    "fit_record",
    "flip",
    "image_batches",
    "open_dataset",
    "pack_dataset",
    "pad",
    "parse_spec",
    "read_dataset",
    "record_batches",
    "squash",
    "stack",
    "write_scenes",
]
