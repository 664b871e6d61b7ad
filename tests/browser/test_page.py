"""The page in a browser."""

from __future__ import annotations

import base64
import re
import runpy
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

import strop

DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
TIMEOUT = 20_000  # milliseconds
REFUSED = re.compile(r"the server responded with a status of 4\d\d")

expect.set_options(timeout=TIMEOUT)


@pytest.fixture
def visit(chromium, address):
    """Opens pages, and checks at the end for errors and for requests to other hosts."""
    contexts, problems, requests = [], [], []

    def note(message):
        # The browser logs refused requests.
        if message.type == "error" and not REFUSED.search(message.text):
            problems.append(message.text)

    def visit(place="", wait=ready, at=address, **options):
        context = chromium.new_context(**{"viewport": DESKTOP, "accept_downloads": True, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(TIMEOUT)
        page.on("console", note)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"{at}/{place}")
        wait(page)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not problems
    assert {urlsplit(url).hostname for url in requests if url.startswith("http")} == {"127.0.0.1"}
    assert all(url.startswith(("http://127.0.0.1:", "data:", "blob:")) for url in requests)


def ready(page):
    """Wait until the curve and the erasure maps have arrived."""
    expect(page.locator("#curve polyline").first).to_be_attached()
    studied(page)


def studied(page):
    page.wait_for_function(
        """() => {
            const chips = [...document.querySelectorAll("#chips .chip:not(.cut):not(.erased)")];
            const studied = chips.every((chip) => chip.ariaLabel.includes("effect"));
            return chips.length && (studied || chips.length === 1);
        }"""
    )


def drop(page, path):
    """Drop a file on the page."""
    content = base64.b64encode(path.read_bytes()).decode()
    page.evaluate(
        """([content, name]) => {
            const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
            const transfer = new DataTransfer();
            transfer.items.add(new File([bytes], name));
            const drop = new DragEvent("drop", { dataTransfer: transfer, bubbles: true });
            document.querySelector("main").dispatchEvent(drop);
        }""",
        [content, path.name],
    )


def dropped(visit, folder, name="first.png", **options):
    page = visit(**options)
    drop(page, folder / name)
    expect(page.locator("#image")).to_have_attribute("alt", name)
    ready(page)
    return page


def codes(page):
    return [int(text) for text in page.locator("#chips .chip").all_text_contents()]


def length(page):
    return page.locator("#chips .chip:not(.cut)").count()


def chip(page, k):
    return page.locator("#chips .chip").nth(k)


def overlay(page):
    return page.locator("#overlay").get_attribute("data-map")


def drag_length(page, share):
    box = page.locator("#length").bounding_box()
    middle = box["y"] + box["height"] / 2
    now = (length(page) - 1) / (len(codes(page)) - 1)
    page.mouse.move(box["x"] + 11 + now * (box["width"] - 22), middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 11 + share * (box["width"] - 22), middle, steps=4)
    page.mouse.up()


def test_a_dropped_image_becomes_chips(visit, folder, tokenizer):
    page = dropped(visit, folder)
    program = tokenizer.encode(str(folder / "first.png"))
    assert codes(page) == program.codes[0].tolist()
    assert length(page) == int(program.lengths)
    expect(page.locator("#r2")).to_have_text(re.compile(r"^−?\d+\.\d{3}$"))
    hues = page.locator("#chips .chip").evaluate_all(
        "chips => chips.map((chip) => [chip.textContent, getComputedStyle(chip).backgroundColor])"
    )
    shown = dict(hues[: length(page)])
    assert len(set(shown.values())) == len(shown), "one colour for each code"


def test_an_image_can_be_picked_and_pasted(visit, folder):
    page = visit()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Open image…").click()
    chooser.value.set_files(folder / "second.jpg")
    expect(page.locator("#image")).to_have_attribute("alt", "second.jpg")
    content = base64.b64encode((folder / "first.png").read_bytes()).decode()
    page.evaluate(
        """(content) => {
            const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
            const transfer = new DataTransfer();
            transfer.items.add(new File([bytes], "pasted.png", { type: "image/png" }));
            dispatchEvent(new ClipboardEvent("paste", { clipboardData: transfer }));
        }""",
        content,
    )
    expect(page.locator("#image")).to_have_attribute("alt", "pasted.png")
    ready(page)


def test_dragging_the_length_moves_r2_chips_and_preview(visit, folder):
    page = dropped(visit, folder)
    before = page.locator("#r2").text_content(), page.locator("#preview").get_attribute("src")
    drag_length(page, 0.0)
    expect(page.locator("#length-shown")).to_have_text("1 of 12")
    expect(page.locator("#r2")).not_to_have_text(before[0])
    assert page.locator("#preview").get_attribute("src") != before[1]
    assert length(page) == 1
    assert page.locator("#chips .chip.cut").count() == 11
    page.get_by_role("button", name="Undo").click()  # a drag is one step
    expect(page.locator("#r2")).to_have_text(before[0])


def test_hovering_and_focusing_show_erasure_maps(visit, folder):
    page = dropped(visit, folder)
    assert overlay(page) == ""
    chip(page, 2).hover()
    assert overlay(page) == "Erasure map of token 2"
    expect(page.locator("#token-text")).to_contain_text("changes the field by 0.")
    page.mouse.move(5, 5)
    assert overlay(page) == ""
    chip(page, 1).focus()
    assert overlay(page) == "Erasure map of token 1"
    painted = "canvas => new Set(canvas.getContext('2d').getImageData(0, 0, 4, 4).data).size"
    assert page.locator("#overlay").evaluate(painted) > 4


def test_a_click_erases_and_undo_restores(visit, folder):
    page = dropped(visit, folder)
    before = page.locator("#r2").text_content()
    chip(page, 1).click()
    expect(chip(page, 1)).to_have_class(re.compile("erased"))
    expect(page.locator("#r2")).not_to_have_text(before)
    after = page.locator("#r2").text_content()
    page.keyboard.press("Control+z")
    expect(chip(page, 1)).not_to_have_class(re.compile("erased"))
    expect(page.locator("#r2")).to_have_text(before)
    page.keyboard.press("Control+y")
    expect(page.locator("#r2")).to_have_text(after)
    page.get_by_role("button", name="Reset").click()
    expect(page.locator("#r2")).to_have_text(before)


def test_the_only_token_cannot_be_erased(visit, folder):
    page = dropped(visit, folder)
    drag_length(page, 0.0)
    expect(page.locator("#length-shown")).to_have_text("1 of 12")
    chip(page, 0).click()
    expect(page.get_by_role("alert")).to_contain_text("no token left")
    expect(chip(page, 0)).not_to_have_class(re.compile("erased"))


def test_an_invalid_code_shows_an_error_and_changes_nothing(visit, folder):
    page = dropped(visit, folder)
    before = codes(page), page.locator("#r2").text_content()
    chip(page, 1).focus()
    page.keyboard.press("e")
    page.keyboard.type("64")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("A code of 64 is outside [0, 63].")
    expect(chip(page, 1)).to_have_text(str(before[0][1]))
    assert (codes(page), page.locator("#r2").text_content()) == before
    assert page.locator("#undo").is_disabled()
    chip(page, 1).focus()
    page.keyboard.press("e")
    page.keyboard.type("63")
    page.keyboard.press("Enter")
    expect(chip(page, 1)).to_have_text("63")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_broken_image_shows_an_error_and_changes_nothing(visit, folder, tmp_path):
    page = dropped(visit, folder)
    before = codes(page)
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and nothing more")
    drop(page, tmp_path / "broken.png")
    expect(page.get_by_role("alert")).to_contain_text("not an image")
    expect(page.locator("#image")).to_have_attribute("alt", "first.png")
    assert codes(page) == before
    page.get_by_role("button", name="Dismiss").click()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_tokens_move_and_swap(visit, folder):
    page = dropped(visit, folder)
    before = codes(page)
    chip(page, 0).focus()
    page.keyboard.press("Alt+ArrowRight")
    expect(chip(page, 1)).to_be_focused()
    assert codes(page)[:2] == before[1::-1]
    page.keyboard.press("Control+z")
    chip(page, 0).click(modifiers=["Shift"])
    chip(page, 2).click(modifiers=["Shift"])
    expect(page.locator("#pair-text")).to_contain_text("synergy")
    expect(page.locator("#overlay")).to_have_attribute("data-map", "Synergy of 0 and 2")
    page.get_by_role("button", name="Swap them").click()
    assert codes(page)[:3] == [before[2], before[1], before[0]]


def test_a_code_is_transplanted_from_a_second_image(visit, folder, tokenizer):
    page = dropped(visit, folder)
    with page.expect_file_chooser() as chooser:
        page.locator("#second-open").click()
    chooser.value.set_files(folder / "second.jpg")
    donor = page.locator("#donor-chips .chip")
    expected = tokenizer.encode(str(folder / "second.jpg"))[0].codes.tolist()
    expect(donor.first).to_be_visible()
    assert [int(text) for text in donor.all_text_contents()] == expected
    chip(page, 2).focus()
    donor.nth(1).click()
    expect(chip(page, 2)).to_have_text(str(expected[1]))


def test_a_patch_ranks_tokens_by_effect(visit, folder, tokenizer):
    page = dropped(visit, folder)
    box = page.locator("#patches").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.4)
    expect(page.locator("#patch-text")).to_have_text(
        "Row 1, column 2: tokens with the largest effect"
    )
    program = tokenizer.encode(str(folder / "first.png"))
    maps = strop.erasure(tokenizer, program)[0, : int(program.lengths), 1, 2]
    ranked = [f"token {k}" for k in maps.argsort(descending=True).tolist()[:6]]
    assert page.locator("#ranking .quiet").all_text_contents() == ranked


def test_a_mouse_drags_tokens_to_other_positions(visit, folder):
    page = dropped(visit, folder)
    before = codes(page)
    boxes = [chip(page, k).bounding_box() for k in (0, 2)]
    (x, y), (to_x, to_y) = (
        (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes
    )
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(to_x, to_y, steps=4)
    expect(chip(page, 2)).to_have_class(re.compile("target"))
    page.mouse.up()
    assert codes(page)[:3] == [before[1], before[2], before[0]]
    expect(chip(page, 2)).to_be_focused()
    expect(chip(page, 2)).not_to_have_class(re.compile("target"))
    page.get_by_role("button", name="Undo").click()
    assert codes(page) == before


def test_a_model_of_photographs_starts_with_one_and_shows_the_floor(visit, photo_address):
    page = visit(at=photo_address)
    expect(page.locator("#image")).to_have_attribute("alt", "china.jpg")
    expect(page.locator("#scene")).to_be_hidden()
    expect(page.locator("#floor")).to_have_text(re.compile(r"^\d\.\d\d$"))
    page.get_by_role("button", name="flower").click()
    expect(page.locator("#image")).to_have_attribute("alt", "flower.jpg")
    assert "sample=1" in page.url
    page.get_by_role("button", name="Sample", exact=True).click()
    expect(page.locator("#donor-chips .chip").first).to_be_visible()


def test_the_quality_slider_chooses_the_shortest_length_that_is_expected_to_reach_it(
    visit, photo_address
):
    page = visit(at=photo_address)
    expect(page.locator("#curve .expected")).to_be_attached()
    slider = page.locator("#quality")
    lengths = []
    for end in ("min", "max"):
        slider.evaluate(
            "(slider, end) => {"
            " slider.value = slider[end]; slider.dispatchEvent(new Event('input')); }",
            end,
        )
        lengths.append(length(page))
    assert lengths[0] < lengths[1]
    chip(page, 0).click()  # what is expected of the program does not hold for an edited one
    expect(slider).to_be_hidden()


def test_the_store_is_searched_and_a_hit_is_opened(visit, photo_address):
    page = visit(at=photo_address)
    page.get_by_role("tab", name="Search").click()
    page.get_by_role("button", name="Search", exact=True).click()
    hits = page.locator("#hits li")
    expect(hits).to_have_count(5)
    page.get_by_label("with something like").check()
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("No patch is selected")
    page.get_by_role("tab", name="Inspect").click()
    expect(page.get_by_role("alert")).to_be_hidden()
    page.locator("#patches").click()
    page.get_by_role("tab", name="Search").click()
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator("#hits .region")).to_have_count(5)
    page.get_by_label("with these codes only").check()
    page.locator("#expression").fill("not a code")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_role("alert")).to_be_visible()
    name = hits.first.text_content().partition(":")[0]
    hits.first.get_by_role("button").click()
    expect(page.locator("#image")).to_have_attribute("alt", re.compile(re.escape(name)))


def test_a_code_page_lists_occurrences(visit, folder):
    page = visit()
    drop(page, folder / "gallery" / "0.png")  # its own codes are in the gallery
    expect(page.locator("#image")).to_have_attribute("alt", "0.png")
    ready(page)
    chip(page, 0).focus()
    page.get_by_role("button", name="Find in gallery").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("li").first).to_contain_text("0.png, token")
    assert f"code={codes(page)[0]}" in page.url
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_clusters_on_request(visit, folder):
    page = dropped(visit, folder)
    pixels = "canvas => canvas.getContext('2d').getImageData(0, 0, 4, 4).data.join()"
    before = page.locator("#teacher").evaluate(pixels)
    page.get_by_role("button", name="clusters").click()
    page.wait_for_function(
        "before => document.querySelector('#teacher').getContext('2d')"
        ".getImageData(0, 0, 4, 4).data.join() !== before",
        arg=before,
    )
    page.locator("#k").fill("2")
    page.locator("#k").press("Enter")
    page.wait_for_function(
        "() => new Set(new Uint32Array(document.querySelector('#teacher').getContext('2d')"
        ".getImageData(0, 0, 4, 4).data.buffer)).size === 2"
    )
    page.get_by_role("button", name="colours").click()
    page.wait_for_function(
        "before => document.querySelector('#teacher').getContext('2d')"
        ".getImageData(0, 0, 4, 4).data.join() === before",
        arg=before,
    )


def test_sliders_render_a_scene(visit):
    page = visit()
    before = codes(page)
    page.locator("#objects").fill("9")
    page.locator("#seed").fill("7")
    page.get_by_role("button", name="Draw scene").first.click()
    expect(page.locator("#image")).to_have_attribute("alt", "Rendered scene of 9 objects")
    ready(page)
    assert "scene=9.7" in page.url
    assert codes(page) != before


# What is taken along.


def test_a_program_is_exported_and_opened_again(visit, folder, tokenizer, tmp_path):
    page = dropped(visit, folder)
    chip(page, 1).click()
    ready(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Program").click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    expected = tokenizer.encode(str(folder / "first.png")).erase(1)
    assert strop.Program.load(file) == expected

    other = visit()
    drop(other, file)
    expect(chip(other, 1)).to_have_class(re.compile("erased"))
    assert codes(other) == expected.codes[0].tolist()
    expect(other.locator("#no-image")).to_be_visible()
    expect(other.locator("#r2")).to_have_text("–")
    (tmp_path / "bad.jsonl").write_text("{}")
    drop(other, tmp_path / "bad.jsonl")
    expect(other.get_by_role("alert")).to_contain_text("program")
    assert codes(other) == expected.codes[0].tolist()


def test_the_view_is_exported_as_a_picture(visit, folder, tmp_path):
    from strop.images import read_image

    page = dropped(visit, folder)
    with page.expect_download() as download:
        page.get_by_role("button", name="Picture").click()
    download.value.save_as(tmp_path / "view.png")
    picture = read_image(tmp_path / "view.png").float()
    assert picture.shape[2] > 1000
    assert picture.std() > 10


@pytest.mark.parametrize("from_scene", [False, True], ids=["file", "scene"])
def test_the_python_code_reproduces_the_view(
    visit, folder, tmp_path, monkeypatch, from_scene, capsys
):
    page = visit() if from_scene else dropped(visit, folder)
    drag_length(page, 0.5)
    chip(page, 0).focus()
    page.keyboard.press("e")
    page.keyboard.type("5")
    page.keyboard.press("Enter")
    chip(page, 2).click()
    chip(page, 11).click()  # past the length: extends the program
    expect(page.locator("#length-shown")).to_have_text("12 of 12")
    ready(page)
    page.get_by_role("button", name="Python").click()
    lines = page.locator("#lines").text_content()
    monkeypatch.chdir(folder)
    (tmp_path / "lines.py").write_text(lines)
    made = runpy.run_path(str(tmp_path / "lines.py"))
    assert made["program"].codes[0].tolist() == codes(page)
    assert made["program"].erased[0].nonzero().flatten().tolist() == [2]
    shown = page.locator("#r2").text_content().replace("−", "-")
    printed = re.search(r"tensor\((-?[\d.]+)", capsys.readouterr().out).group(1)
    assert float(printed) == pytest.approx(float(shown), abs=2e-3)


def test_the_address_holds_the_state(visit, folder):
    page = dropped(visit, folder)
    chip(page, 1).click()
    drag_length(page, 0.5)
    chip(page, 0).focus()
    ready(page)
    shown = codes(page), length(page), page.locator("#r2").text_content()
    page.reload()
    expect(page.locator("#image")).to_have_attribute("alt", "first.png")
    ready(page)
    expect(page.locator("#r2")).to_have_text(shown[2])
    assert (codes(page), length(page)) == shown[:2]
    expect(chip(page, 1)).to_have_class(re.compile("erased"))
    assert overlay(page) == "Erasure map of token 0"


def test_a_shared_address_of_an_image_shows_the_program_only(visit, folder):
    page = dropped(visit, folder)
    chip(page, 1).click()
    expect(chip(page, 1)).to_have_class(re.compile("erased"))
    other = visit("#" + page.url.split("#")[1], wait=studied)
    expect(other.locator("#no-image")).to_be_visible()
    assert codes(other) == codes(page)
    expect(chip(other, 1)).to_have_class(re.compile("erased"))


def test_a_shared_address_of_a_scene_shows_the_same(visit):
    page = visit("#scene=4.2")
    chip(page, 0).click(modifiers=["Shift"])
    chip(page, 2).click(modifiers=["Shift"])
    expect(page.locator("#pair-text")).to_contain_text("synergy")
    shown = page.locator("#pair-text").text_content()
    other = visit("#" + page.url.split("#")[1])
    expect(other.locator("#pair-text")).to_have_text(shown)


# Accessibility.


def test_everything_works_by_keyboard(visit, folder, tokenizer):
    page = visit("#scene=4.2")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the program")).to_be_focused()
    order = []
    for _ in range(40):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id || document.activeElement.dataset.k"))
    for stop in (
        "open",
        "objects",
        "seed",
        "patches",
        "length",
        "0",
        "click-select",
        "second-open",
    ):
        assert stop in order, stop
    page.locator("#length").focus()
    page.keyboard.press("Home")
    expect(page.locator("#length-shown")).to_have_text("1 of 12")
    page.keyboard.press("End")
    expect(page.locator("#length-shown")).to_have_text("12 of 12")
    ready(page)
    page.locator("#chips .chip[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(chip(page, 2)).to_be_focused()
    expect(page.locator("#overlay")).to_have_attribute("data-map", "Erasure map of token 2")
    page.keyboard.press("Delete")
    expect(chip(page, 2)).to_have_class(re.compile("erased"))
    page.keyboard.press("Control+z")
    page.keyboard.press("[")
    expect(page.locator("#length-shown")).to_have_text("11 of 12")
    page.keyboard.press("Space")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    expect(page.locator("#pair-text")).to_contain_text("Tokens 2 and 3: synergy")
    before = codes(page)
    page.keyboard.press("s")
    assert codes(page)[2:4] == [before[3], before[2]]
    page.keyboard.press("Escape")
    expect(page.locator("#pair-tools")).to_be_hidden()
    page.keyboard.press("w")
    expect(page.get_by_role("dialog")).to_contain_text("Code ")
    page.keyboard.press("Escape")
    page.locator("#patches").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator("#patch-text")).to_have_text(
        "Row 1, column 1: tokens with the largest effect"
    )


def test_a_phone_needs_no_horizontal_scrolling(visit, folder):
    page = dropped(visit, folder, viewport=PHONE, has_touch=True, is_mobile=True)
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= PHONE["width"]
    chip(page, 1).tap()  # without hovering, a tap selects
    expect(page.locator("#overlay")).to_have_attribute("data-map", "Erasure map of token 1")
    expect(page.locator("#overlay")).to_be_in_viewport()
    small = page.locator("button:visible, a:visible").evaluate_all(
        """all => all.filter((each) => !each.classList.contains("skip"))
            .filter((each) => each.getBoundingClientRect().height < 20)
            .map((each) => each.textContent)"""
    )
    assert not small


CONTRASTS = """() => {
    const channel = (v) => ((v /= 255), v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const bright = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    const parse = (text) => text.match(/[\\d.]+/g).map(Number);
    const behind = (element) => {
        for (let each = element; each; each = each.parentElement) {
            const colour = parse(getComputedStyle(each).backgroundColor);
            if (colour.length < 4 || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    const texts = [...document.querySelectorAll("body *")].filter(
        (each) => each.checkVisibility() && !each.disabled && !each.closest("svg, canvas")
            && [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
    const low = [];
    for (const each of texts) {
        const [a, b] = [bright(parse(getComputedStyle(each).color)), bright(behind(each))];
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (contrast < 4.5) low.push(`${each.textContent.slice(0, 20)} ${contrast.toFixed(2)}`);
    }
    return [texts.length, low];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_of_every_text_and_code(visit, folder, scheme):
    page = dropped(visit, folder, color_scheme=scheme, reduced_motion="reduce")
    chip(page, 1).click()
    drag_length(page, 0.6)
    ready(page)
    page.evaluate(
        """() => {
            for (let hue = 0; hue < 360; hue += 5) {
                const copy = document.querySelector(".chip:not(.cut):not(.erased)").cloneNode(true);
                copy.style.setProperty("--hue", hue);
                document.getElementById("donor-chips").append(copy);
            }
        }"""
    )
    count, low = page.evaluate(CONTRASTS)
    assert count > 100
    assert not low
    assert (
        page.evaluate("getComputedStyle(document.querySelector('.chip')).transitionDuration")
        == "0s"
    )


def test_every_control_has_a_name(visit, folder):
    page = dropped(visit, folder)
    page.locator("#second-scene").click()
    expect(page.locator("#donor-chips .chip").first).to_be_visible()
    chip(page, 0).focus()
    nameless = page.locator("button, input, a, [tabindex], dialog, figure canvas").evaluate_all(
        """all => all.filter((each) => each.checkVisibility()).filter((each) => {
            const label = each.labels?.[0]?.textContent || each.ariaLabel || each.textContent;
            return !label.trim() && !each.ariaHidden;
        }).map((each) => each.id)"""
    )
    assert not nameless
    expect(chip(page, 0)).to_have_accessible_name(re.compile(r"Token 0, code \d+, active, effect"))
    expect(page.locator("#length")).to_have_attribute(
        "aria-valuetext", re.compile(r"of 12 codes, predicted")
    )


def test_the_api_page_describes_every_endpoint(visit):
    page = visit("api.html", wait=lambda page: expect(page.locator("h2").last).to_be_visible())
    titles = page.locator("h2").all_text_contents()
    assert {"POST /api/encode", "POST /api/erasure", "GET /api/codes/{code}"} <= set(titles)


def test_the_theme_can_be_changed(visit):
    paper = "getComputedStyle(document.body).backgroundColor"
    page = visit(color_scheme="dark")
    dark = page.evaluate(paper)
    page.get_by_role("button", name="Light").click()
    assert page.evaluate(paper) != dark
    page.reload()
    ready(page)
    assert page.evaluate(paper) != dark
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate(paper) == dark
