"""Files: whole or not at all, and each with its format."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from strop import files
from strop.errors import BusyError, FormatError
from strop.files import (
    _sweep,
    atomic_path,
    check_format,
    exclusive,
    read_json,
    write_json,
    write_text,
)


def test_a_write_replaces_the_old_file(tmp_path):
    path = tmp_path / "deep" / "er" / "a.txt"
    write_text(path, "old")
    write_text(path, "grüße")
    assert path.read_text(encoding="utf-8") == "grüße"
    assert [each.name for each in path.parent.iterdir()] == ["a.txt"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def write_half() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half of the n")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_half()
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with atomic_path(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.suffix == ".txt"
    assert path.read_text() == "new"


def test_the_temporary_of_a_killed_writer_is_removed_by_the_next(tmp_path):
    """The folder of a writer that still runs is left alone."""
    if (child := os.fork()) == 0:
        with atomic_path(tmp_path / "a.txt") as temporary:
            temporary.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert [each.name[:11] for each in tmp_path.iterdir()] == [".strop-tmp-"]
    _sweep.cache_clear()
    with atomic_path(tmp_path / "b.txt") as temporary:
        assert [each.name for each in tmp_path.iterdir()] == [temporary.parent.name]
        _sweep.cache_clear()
        write_text(tmp_path / "c.txt", "c")
        temporary.write_text("b")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["b.txt", "c.txt"]


def test_a_folder_has_one_writer_and_the_second_learns_its_holder(tmp_path):
    script = (
        "import sys; from strop.files import exclusive\n"
        f"with exclusive({str(tmp_path / 'out')!r}): print('locked', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "locked\n"
    message = rf"process {process.pid} on {re.escape(socket.gethostname())} since 20\d\d-.*\+00:00"
    with pytest.raises(BusyError, match=message), exclusive(tmp_path / "out"):
        pass
    process.kill()
    process.communicate()
    with exclusive(tmp_path / "out"):  # the lock has died with its process
        write_text(tmp_path / "out" / "a.txt", "")
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["a.txt"]


def test_a_lock_may_be_taken_again_by_its_thread_only(tmp_path):
    def enter() -> None:
        with exclusive(tmp_path):
            pass

    with exclusive(tmp_path):
        enter()
        with ThreadPoolExecutor(1) as thread, pytest.raises(BusyError, match=str(os.getpid())):
            thread.submit(enter).result()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(enter).result()


def test_a_refused_run_leaves_no_folder(tmp_path):
    with exclusive(tmp_path / "deep" / "out"):
        assert (tmp_path / "deep" / "out").is_dir()
    assert not (tmp_path / "deep" / "out").exists()


def test_children_do_not_keep_the_lock_of_their_parent(tmp_path):
    reader, writer = os.pipe()
    if (parent := os.fork()) == 0:
        with exclusive(tmp_path):
            if os.fork() == 0:
                os.write(writer, str(os.getpid()).encode())
                time.sleep(60)
            time.sleep(60)
    child = int(os.read(reader, 20))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    try:
        with exclusive(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_file_system_without_locks_is_reported(tmp_path, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", flock)
    with pytest.warns(UserWarning, match=f"{tmp_path} has no locks"), exclusive(tmp_path):
        pass


def test_of_many_writers_one_gets_the_folder(tmp_path):
    """Also while locks are released and their files removed."""

    def enter(times: int) -> int:
        entered = 0
        for _ in range(times):
            with suppress(BusyError), exclusive(tmp_path):
                (tmp_path / "mine").touch(exist_ok=False)
                (tmp_path / "mine").unlink()
                entered += 1
        return entered

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(enter, [100] * 4)) > 0


def test_files_get_the_usual_permissions(tmp_path):
    ordinary = tmp_path / "ordinary"
    ordinary.write_text("")
    write_text(tmp_path / "ours", "")
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == stat.S_IMODE(ordinary.stat().st_mode)


def test_json_comes_back_without_its_tag(tmp_path):
    payload = {"a": [1, 2.5, None], "ü": {"b": True}}
    write_json(tmp_path / "a.json", "thing", 3, payload)
    assert json.loads((tmp_path / "a.json").read_text())["format"] == "strop.thing/3"
    assert read_json(tmp_path / "a.json", "thing", 3) == payload
    assert read_json(tmp_path / "a.json", "thing", 4) == payload, "older formats are read"


def test_a_newer_format_says_to_upgrade(tmp_path):
    write_json(tmp_path / "a.json", "thing", 2, {})
    with pytest.raises(FormatError, match=r"strop.thing/2, newer than .* \(1\). Upgrade strop"):
        read_json(tmp_path / "a.json", "thing", 1)


@pytest.mark.parametrize(
    "tag",
    [
        None,
        3,
        "",
        "strop.thing",
        "strop.thing/",
        "strop.thing/x",
        "strop.thing/-1",
        "strop.thing/1.0",
        "strop.other/1",
        "thing/1",
        ["strop.thing/1"],
        "strop.thing/" + "1" * 5000,
    ],
)
def test_another_tag_is_refused(tag):
    with pytest.raises(FormatError, match=r"a.json is not a strop thing file .*'strop.thing/1'"):
        check_format(tag, "thing", 1, "a.json")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"nope", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}", b"\x00"],
)
def test_what_is_not_json_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(FormatError, match=r"a.json is not valid JSON .* write it again"):
        read_json(tmp_path / "a.json", "thing", 1)


@pytest.mark.parametrize("content", [b"3", b'"a"', b"[]", b"null"])
def test_what_is_not_an_object_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(FormatError, match=r"not an object. Expected a strop thing file"):
        read_json(tmp_path / "a.json", "thing", 1)


def test_json_has_no_nan(tmp_path):
    write_json(tmp_path / "a.json", "thing", 1, {"a": [float("nan"), 1.5], "b": np.float32(2.5)})
    text = (tmp_path / "a.json").read_text()
    json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))
    assert read_json(tmp_path / "a.json", "thing", 1) == {"a": [None, 1.5], "b": 2.5}
