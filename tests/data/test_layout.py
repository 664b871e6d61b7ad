"""Listing of files: each real file once, whatever links there are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from strop.data import check_dataset, open_dataset
from strop.data.layout import expand
from strop.errors import DataError
from strop.images import save_image
from strop.listing import list_files


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_files_are_listed_by_suffix_in_order_without_hidden_ones(tmp_path: Path) -> None:
    touch(tmp_path, "b.png", "a/c.JPG", "a/d.txt", ".hidden.png", ".x/e.png", "__MACOSX/f.png")
    assert list_files(tmp_path) == ["a/c.JPG", "b.png"]
    assert list_files(tmp_path, {".txt"}) == ["a/d.txt"]
    assert list_files(tmp_path / "none") == []


def test_links_that_form_a_cycle_list_each_file_once(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.png", "b/2.png")
    (tmp_path / "a/up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "b/up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "b/self").symlink_to(tmp_path / "b", target_is_directory=True)
    assert list_files(tmp_path) == ["a/1.png", "b/2.png"]


def test_a_linked_folder_is_listed_once_under_its_real_name(tmp_path: Path) -> None:
    touch(tmp_path, "in/real/1.png", "elsewhere/2.png")
    for name in ("a", "z"):
        (tmp_path / "in" / name).symlink_to(tmp_path / "in/real", target_is_directory=True)
        (tmp_path / "in" / f"{name}2").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert list_files(tmp_path / "in") == ["a2/2.png", "real/1.png"]


def test_a_linked_file_is_listed_once_under_its_real_name(tmp_path: Path) -> None:
    touch(tmp_path, "in/real.png", "out.png")
    for name in ("a.png", "z.png"):
        (tmp_path / "in" / name).symlink_to(tmp_path / "in/real.png")
        (tmp_path / "in" / f"2{name}").symlink_to(tmp_path / "out.png")
    assert list_files(tmp_path / "in") == ["2a.png", "real.png"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX")
def test_a_pipe_costs_one_record(tmp_path: Path) -> None:
    save_image(tmp_path / "a.png", torch.rand(3, 8, 8))
    os.mkfifo(tmp_path / "b.png")
    (tmp_path / "c.png").symlink_to("/dev/zero")
    report = check_dataset(f"folder:{tmp_path}")
    assert report.good == 1
    assert all("is not a regular file" in reason for reason in report.broken.values())


@pytest.mark.parametrize("kind", ["folder", "voc", "coco", "nyuv2", "packed", "shards", "imagenet"])
def test_paths_that_cannot_exist_are_refused(kind: str) -> None:
    for path, complaint in (("~nouser/x", "home directory"), ("a\0b/*.tar", "NUL")):
        with pytest.raises(DataError, match=complaint):
            open_dataset(f"{kind}:{path}")


def test_the_home_folder_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand("~/x") == tmp_path / "x"
