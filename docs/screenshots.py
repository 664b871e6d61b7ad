"""Take the screenshot of the page on interpreting: `python docs/screenshots.py`. Needs Chromium."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent / "images"
SIZE = {"width": 1280, "height": 900}
STUDIED = """() => [...document.querySelectorAll('#chips .chip:not(.cut):not(.erased)')]
    .every((chip) => chip.ariaLabel.includes('effect'))"""


@contextmanager
def inspector(model: str) -> Iterator[str]:
    """Run `strop inspect` in a process; the value is its address."""
    command = [sys.executable, "-m", "strop", "inspect", model, "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found, "the inspector did not start"
            yield found.group()
        finally:
            process.terminate()


def main() -> None:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with inspector("photos") as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")  # type: ignore[arg-type]
        page.goto(address, timeout=60_000)
        page.locator("#curve polyline").first.wait_for(state="attached", timeout=60_000)
        page.wait_for_function(STUDIED)
        shares = page.locator("#chips .chip:not(.cut)").evaluate_all(
            "chips => chips.map((chip) => +chip.style.getPropertyValue('--share'))"
        )
        page.locator("#chips .chip").nth(shares.index(max(shares))).focus()
        page.screenshot(path=IMAGES / "inspector-token.png")
        browser.close()


if __name__ == "__main__":
    main()
