"""Take the screenshots in `inspector.md`: `python docs/screenshots.py [MODEL]`. Needs Chromium."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

IMAGES = Path(__file__).parent / "images"
SCENE = "#scene=6.3"
DESKTOP, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}


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


def visit(browser: Browser, address: str, scheme: str, size: dict[str, int]) -> Page:
    """Open the page with a scene, and wait for all results."""
    page = browser.new_page(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(address + SCENE, timeout=60_000)
    settled(page)
    return page


def settled(page: Page) -> None:
    """Wait until the curve and the erasure maps have arrived."""
    page.locator("#curve polyline").first.wait_for(state="attached", timeout=60_000)
    page.wait_for_function(
        "() => [...document.querySelectorAll('#chips .chip:not(.cut):not(.erased)')]"
        ".every((chip) => chip.ariaLabel.includes('effect'))"
    )


def most_used(page: Page, address: str) -> int:
    """The position of the active code that is most frequent in the gallery."""
    codes = page.locator("#chips .chip:not(.cut)").all_text_contents()
    pages = [page.request.get(f"{address}api/codes/{code}").json() for code in codes]
    while pages[0]["encoded"] < pages[0]["total"]:
        page.wait_for_timeout(500)
        pages = [page.request.get(f"{address}api/codes/{code}").json() for code in codes]
    return max(range(len(codes)), key=lambda k: pages[k]["count"])


def shoot(page: Page, name: str) -> None:
    page.screenshot(path=IMAGES / f"inspector-{name}.png")


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "scenes"
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with inspector(model) as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])

        page = visit(browser, address, "light", DESKTOP)
        best = page.locator("#chips .chip:not(.cut)").evaluate_all(
            "chips => chips.map((chip) => +chip.style.getPropertyValue('--share'))"
        )
        ranked = sorted(range(len(best)), key=best.__getitem__, reverse=True)
        page.locator("#chips .chip").nth(ranked[1]).focus()
        shoot(page, "token")
        page.locator("#chips .chip").nth(most_used(page, address)).focus()
        page.keyboard.press("w")
        page.locator("#appearances li").first.wait_for()
        shoot(page, "code")

        page = visit(browser, address, "dark", DESKTOP)
        for k in ranked[:2]:
            page.locator("#chips .chip").nth(k).click(modifiers=["Shift"])
        page.get_by_text("Synergy of").wait_for()
        page.locator("#patches").click()
        page.locator("#second-scene").click()
        page.locator("#donor-chips .chip").first.wait_for()
        page.locator("#clusters").click()
        page.mouse.move(5, 5)
        page.wait_for_load_state("networkidle")
        shoot(page, "pair")

        page = visit(browser, address, "light", PHONE)
        page.locator("#chips .chip").nth(ranked[0]).focus()
        page.locator("#scores").scroll_into_view_if_needed()
        shoot(page, "phone")
        browser.close()


if __name__ == "__main__":
    main()
