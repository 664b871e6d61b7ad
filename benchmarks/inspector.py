"""The inspector under load, and its latency for one visitor.

Fifty clients for a minute encode images, change the length of their programs and request studies;
server and clients share the machine. Then one browser measures the time from dropping a photograph
to its program and preview, and from moving the length to the new preview.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from rich.console import Console
from rich.table import Table

from common import machine, save
from strop.data import ScenesDataset

WARM_UP = 10.0
IMAGES_EACH = 3
PHOTO = (1600, 1200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="scenes", help="the model under load")
    parser.add_argument("--photos", default="photos", help="the model in the browser")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()

    images = [jpeg(image) for image in ScenesDataset(IMAGES_EACH * 8, size=128).images(range(24))]
    with inspector(arguments.model) as (address, process):
        load = asyncio.run(
            under_load(address, process.pid, images, arguments.clients, arguments.seconds)
        )
    show_load(load, arguments)
    latency = {}
    if shutil.which("chromium"):
        with inspector(arguments.photos) as (address, _):
            latency = one_visitor(address)
        show_latency(latency)
    save(
        "inspector",
        {
            "model": arguments.model,
            "clients": arguments.clients,
            "seconds": arguments.seconds,
            **load,
            "visitor": {"model": arguments.photos, **latency} if latency else None,
        },
    )


@contextmanager
def inspector(model: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`strop inspect` in a subprocess, once its gallery is encoded."""
    command = [sys.executable, "-m", "strop", "inspect", model, "--port", "0", "--no-browser"]
    with subprocess.Popen(
        [*command, "--device", "cpu"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found, f"strop inspect {model} did not start"
            address = found.group().rstrip("/")
            while not encoded_gallery(address):
                time.sleep(0.2)
            yield address, process
        finally:
            process.terminate()


def encoded_gallery(address: str) -> bool:
    """Whether the server answers and has encoded its gallery."""
    try:
        page = httpx.get(f"{address}/api/codes/0", timeout=30).json()
    except httpx.TransportError:
        return False
    return page["encoded"] == page["total"]


def jpeg(image: torch.Tensor, noise: int = 0) -> str:
    """uint8 `(3, H, W)` as a JPEG in base64, with noise seeded by `noise`."""
    pixels = image.permute(1, 2, 0).numpy().astype(np.int16)
    if noise:
        pixels = pixels + np.random.default_rng(noise).integers(-8, 9, pixels.shape)
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, format="JPEG", quality=92)
    return base64.b64encode(file.getvalue()).decode()


def resident(pid: int) -> float:
    """Resident memory of a process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024  # type: ignore[union-attr]


async def under_load(
    address: str, pid: int, images: list[str], clients: int, seconds: float
) -> dict[str, Any]:
    """Throughput, latency and memory with `clients` concurrent visitors for `seconds`."""
    times: dict[str, list[float]] = defaultdict(list)
    errors: list[str] = []
    start = time.monotonic()
    end = start + seconds

    async def visitor(number: int, client: httpx.AsyncClient) -> None:
        draw = random.Random(number)

        async def ask(path: str, **body: Any) -> dict[str, Any]:
            begin = time.monotonic()
            try:
                answer = await client.post(f"/api/{path}", json=body)
                answer.raise_for_status()
            except httpx.HTTPError as error:
                errors.append(f"{path}: {error!r}")
                return {}
            times[path].append(time.monotonic() - begin)
            return answer.json()

        while time.monotonic() < end:
            made = await ask("encode", image=draw.choice(images))
            if "program" not in made:
                continue
            image, program = made["image"], made["program"]
            whole = program["codes"] + program["rest"]
            for _ in range(6):  # a drag of the length
                length = draw.randint(1, len(whole))
                cut = {"length": length, "codes": whole[:length], "rest": whole[length:]}
                await ask("interpret", program={**program, **cut}, image=image)
            await ask(draw.choice(["curve", "clusters"]), program=program, image=image)
            await ask("erasure", program=program)

    async def sample_memory() -> list[float]:
        held = []
        while time.monotonic() < end:
            await asyncio.sleep(1)
            held.append(resident(pid))
        return held

    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits) as client:
        tasks = [visitor(number, client) for number in range(clients)]
        memory, *_ = await asyncio.gather(sample_memory(), *tasks)
    everything = [each for some in times.values() for each in some]
    warm = memory[int(WARM_UP) :] or memory
    return {
        "requests": len(everything),
        "errors": len(errors),
        "first_errors": errors[:5],
        "requests_per_s": len(everything) / (time.monotonic() - start),
        "p50_ms": quantile(everything, 0.5),
        "p99_ms": quantile(everything, 0.99),
        "by_endpoint": {
            path: {
                "requests": len(some),
                "p50_ms": quantile(some, 0.5),
                "p99_ms": quantile(some, 0.99),
            }
            for path, some in sorted(times.items())
        },
        "memory_mib": {"after_10_s": warm[0], "most": max(warm), "at_the_end": warm[-1]},
    }


def quantile(values: list[float], share: float) -> float:
    return 1000 * float(np.quantile(values, share))


# The preview is ready when its address has been set, even to the same image.
ANSWERED = """new Promise((done) => new MutationObserver((_, observer) => {
    observer.disconnect();
    done();
}).observe(document.getElementById("preview"), { attributes: true, attributeFilter: ["src"] }))"""
DROP = f"""async ([content, name]) => {{
    const answered = {ANSWERED};
    const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
    const transfer = new DataTransfer();
    transfer.items.add(new File([bytes], name));
    const begin = performance.now();
    document.body.dispatchEvent(new DragEvent("drop", {{ dataTransfer: transfer, bubbles: true }}));
    await answered;
    return performance.now() - begin;
}}"""
DRAG = f"""async (length) => {{
    const answered = {ANSWERED};
    const handle = document.getElementById("length");
    const begin = performance.now();
    handle.value = length;
    handle.dispatchEvent(new Event("input"));
    await answered;
    return performance.now() - begin;
}}"""


def one_visitor(address: str, photographs: int = 8) -> dict[str, Any]:
    """Milliseconds in a browser: from drop to program and preview, and per step of the length."""
    from playwright.sync_api import sync_playwright

    large = ScenesDataset(photographs, seed=7, size=256).images(range(photographs))
    large = F.interpolate(large.float(), PHOTO[::-1], mode="bicubic").clamp(0, 255).byte()
    drops, drags = [], []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(address)
        page.locator("#curve polyline").first.wait_for(state="attached")
        for number, image in enumerate(large):
            name = f"{number}.jpg"
            drops.append(page.evaluate(DROP, [jpeg(image, noise=number + 1), name]) / 1000)
            page.locator("#curve polyline").first.wait_for(state="attached")
            most = int(page.locator("#length").get_attribute("max") or 1)
            for step in range(1, 6):
                now = int(page.locator("#length").input_value())
                wanted = 1 + (now - 1 + step * most // 7) % most
                if wanted != now:
                    drags.append(page.evaluate(DRAG, wanted) / 1000)
        browser.close()
    return {
        "photograph": "{} x {} pixels".format(*PHOTO),
        "drop_to_program_ms": {"p50": quantile(drops, 0.5), "most": quantile(drops, 1)},
        "drag_ms": {"p50": quantile(drags, 0.5), "most": quantile(drags, 1)},
    }


def show_load(load: dict[str, Any], arguments: argparse.Namespace) -> None:
    table = Table(
        "endpoint",
        "requests",
        "p50 ms",
        "p99 ms",
        title=f"{arguments.clients} clients, {arguments.seconds:.0f} s, {arguments.model}, "
        f"{machine()['cores']} cores",
    )
    for path, row in load["by_endpoint"].items():
        cells = (str(row["requests"]), f"{row['p50_ms']:,.0f}", f"{row['p99_ms']:,.0f}")
        table.add_row(path, *cells)
    Console().print(table)
    held = load["memory_mib"]
    print(
        f"{load['requests_per_s']:.1f} requests/s, {load['errors']} errors, p99 "
        f"{load['p99_ms']:,.0f} ms; memory {held['after_10_s']:,.0f} MiB after 10 s, at most "
        f"{held['most']:,.0f}, at the end {held['at_the_end']:,.0f}"
    )
    if load["first_errors"]:
        print(json.dumps(load["first_errors"], indent=2))


def show_latency(latency: dict[str, Any]) -> None:
    for name in ("drop_to_program_ms", "drag_ms"):
        print(f"{name}: {latency[name]['p50']:,.0f} median, {latency[name]['most']:,.0f} at most")


if __name__ == "__main__":
    main()
