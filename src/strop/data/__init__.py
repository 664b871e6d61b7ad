"""Data: every dataset by its spec string, one record type, batches in a known order."""

from strop.data.check import CheckReport, check_dataset
from strop.data.loader import Loader, epoch_order, image_batches, record_batches
from strop.data.pack import PackReport, pack_dataset
from strop.data.record import VOID, Batch, Dataset, Record, concat, stack
from strop.data.rendered import ScenesDataset, write_scenes
from strop.data.spec import KINDS, Spec, open_dataset, parse_spec
from strop.data.transforms import fit_record

__all__ = [
    "KINDS",
    "VOID",
    "Batch",
    "CheckReport",
    "Dataset",
    "Loader",
    "PackReport",
    "Record",
    "ScenesDataset",
    "Spec",
    "check_dataset",
    "concat",
    "epoch_order",
    "fit_record",
    "image_batches",
    "open_dataset",
    "pack_dataset",
    "parse_spec",
    "record_batches",
    "stack",
    "write_scenes",
]
