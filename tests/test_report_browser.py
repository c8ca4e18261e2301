"""The report in a real browser: every figure and filter works by click, nothing is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from headless_browser import CHROMIUM, Page, browser_page
from report_runs import HOSTILE, write_evaluation, write_run

from trl_r1 import cli

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
# Contrast of a text with what lies behind it, by WCAG 2's formula; the lowest of the page.
CONTRAST = """(() => {
  const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (e) => { for (; e; e = e.parentElement) {
    const c = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$/.test(c) && c !== 'transparent') return c; } return 'rgb(255, 255, 255)'; };
  let worst = [99, ''];
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
    if (!e.getClientRects().length || e.disabled || e.closest('.skip, .unseen')) continue;
    const style = getComputedStyle(e), svg = e.namespaceURI.endsWith('svg');
    const a = light(svg ? style.fill : style.color), b = light(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, e.outerHTML.slice(0, 200)];
  }
  return worst;
})()"""


# Texts and read-outs that reach beyond their figure.
OUTSIDE = """[...document.querySelectorAll('figure text, figure .tip-box')].filter((e) => {
  const f = e.closest('figure').getBoundingClientRect(), r = e.getBoundingClientRect();
  return r.width && (r.left < f.left || r.right > f.right);
}).map((e) => e.textContent)"""


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    write_run(folder / "small", text=HOSTILE)
    output = folder / "report.html"
    assert cli.main(["report", str(folder / "small"), "--output", str(output)]) == 0
    return output


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    runs = [write_run(folder / "first"), write_run(folder / "second", steps=9)]
    output = folder / "report.html"
    assert cli.main(["report", *map(str, runs), "--output", str(output)]) == 0
    return output


def visit(file: Path, what: Callable[[Page], Awaitable[None]], width: int, dark: bool) -> None:
    """Open a file, do something, and see that nothing was complained of or asked for."""

    async def whole() -> None:
        async with browser_page() as page:
            await page.open(file, width, dark)
            await what(page)
            assert page.complaints == []
            assert page.requests == []

    asyncio.run(whole())


async def click_through(page: Page) -> None:
    """Use everything that can be used."""
    assert await page.ask("document.documentElement.scrollWidth <= innerWidth")
    assert await page.ask("document.querySelectorAll('#figure-1-panels figure').length") == 2
    curves = "document.querySelectorAll('#figure-1-panels figure:first-child .curve.c0[d]').length"
    drawn = await page.ask(curves)
    await page.click("#figure-1-panels .legend button")
    assert await page.ask(curves) < drawn
    await page.click("#figure-1-panels .legend button")
    assert await page.ask(curves) == drawn
    await page.point("#curves-panels figure svg")
    assert await page.ask("!document.querySelector('#curves-panels .tip-box').hidden")
    assert "step" in await page.ask("document.querySelector('#curves-panels .tip-box').textContent")
    for place in range(await page.ask("document.querySelectorAll('figure').length")):
        await page.point("figure > svg", place)
        assert await page.ask(OUTSIDE) == []
    await page.click("#curves-stages button")
    await page.click(".box", 1)
    assert "math_answer" in await page.ask("document.querySelector('.facts').textContent")
    assert await page.ask("document.querySelectorAll('.edge.on').length") >= 1
    await page.click(".box", 1)
    assert await page.ask("document.querySelectorAll('.edge.on').length") == 0
    await filter_and_page(page)
    paper = "getComputedStyle(document.body).backgroundColor"
    before = await page.ask(paper)
    await page.click("#theme")
    assert await page.ask(paper) != before


async def filter_and_page(page: Page) -> None:
    """Filters, pages and folds of the samples."""

    async def choose(name: str, text: str) -> list[str]:
        await page.ask(
            f"(() => {{ const s = document.querySelector('[name={name}]');"
            f"s.value = [...s.options].find((o) => o.text === '{text}').value;"
            "s.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )
        cards = "[...document.querySelectorAll('.sample')].map((e) => e.textContent)"
        found: list[str] = await page.ask(cards)
        return found

    assert all(card.startswith("wrong") for card in await choose("outcome", "wrong"))
    rare = await choose("task", "rare")
    await choose("outcome", "right")
    rare = await choose("task", "rare")
    assert rare
    assert all("rare" in card for card in rare)
    await choose("task", "all")
    all_cards = await choose("outcome", "all")
    assert len(all_cards) == 10
    await page.click("[data-pager] button", 2)
    assert "page 2 of" in await page.ask("document.querySelector('[data-pager]').textContent")
    await page.ask(
        "(() => { const s = document.querySelector('[name=words]'); s.value = '3+2=?';"
        "s.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    assert await page.ask("document.querySelectorAll('.sample').length") >= 1
    assert not await page.ask("document.querySelector('.reasoning').open")
    await page.click(".reasoning summary")
    assert await page.ask("document.querySelector('.reasoning').open")


@pytest.mark.parametrize(("width", "dark"), [(1440, False), (375, True)])
def test_everything_works_by_click_and_asks_for_nothing(
    width: int, dark: bool, one_run: Path
) -> None:
    visit(one_run, click_through, width, dark)


def test_two_runs_are_drawn_over_one_another(two_runs: Path) -> None:
    async def look(page: Page) -> None:
        await click_through(page)
        names = "document.querySelector('#figure-1-panels .legend').textContent"
        assert await page.ask(names) == "firstsecondpass@1majority voteheld-out"
        lines = "document.querySelectorAll('#figure-1-panels figure:first-child .curve[d]').length"
        drawn = await page.ask(lines)
        await page.click("#figure-1-panels .legend button", 2)
        assert await page.ask(lines) == drawn - 2
        options = "[...document.querySelector('[name=run]').options].map((o) => o.text)"
        assert await page.ask(options) == ["all", "first", "second"]

    visit(two_runs, look, 1440, False)


def test_texts_of_models_run_nothing_and_make_no_elements(one_run: Path) -> None:
    async def look(page: Page) -> None:
        assert (
            await page.ask("document.querySelectorAll('.sample img, .sample script').length") == 0
        )
        assert "</script>" in await page.ask("document.querySelector('.sample').textContent")

    visit(one_run, look, 1440, False)


@pytest.mark.parametrize("dark", [False, True])
def test_texts_stand_out_from_what_is_behind_them(dark: bool, one_run: Path) -> None:
    async def look(page: Page) -> None:
        ratio, where = await page.ask(CONTRAST)
        assert ratio >= 4.5, where

    visit(one_run, look, 1440, dark)


def test_figures_and_the_lineage_are_read_by_keyboard(one_run: Path) -> None:
    async def press(page: Page, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            await page.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    async def look(page: Page) -> None:
        await page.ask("document.querySelector('#figure-1-panels svg[role=img]').focus()")
        said = "document.querySelector('#figure-1-panels [aria-live]').textContent"
        await press(page, "End")
        assert "held-out 0.75 (0.7 to 0.8)" in await page.ask(said)
        await press(page, "Home")
        assert await page.ask(said) == "step 0: held-out 0.25"
        await press(page, "ArrowRight")
        assert (await page.ask(said)).startswith("step 1: pass@1 0.01")
        await press(page, "Escape")
        assert await page.ask("document.querySelector('#figure-1-panels .tip-box').hidden")
        await page.ask("document.querySelector('.box').focus()")
        await press(page, "Enter")
        assert await page.ask("document.querySelector('.box').getAttribute('aria-pressed')") == (
            "true"
        )
        names = "[...document.querySelectorAll('button, select, input, [tabindex]')].filter((e) =>"
        names += " !(e.textContent.trim() || e.getAttribute('aria-label') || e.closest('label')))"
        assert await page.ask(f"{names}.map((e) => e.outerHTML)") == []

    visit(one_run, look, 1440, False)


def test_a_page_of_evaluations_alone_works(tmp_path: Path) -> None:
    folders = [write_evaluation(tmp_path / name, text=HOSTILE) for name in ("one", "two")]
    output = tmp_path / "report.html"
    assert cli.main(["report", *map(str, folders), "--output", str(output)]) == 0

    async def look(page: Page) -> None:
        assert await page.ask("document.documentElement.scrollWidth <= innerWidth")
        assert await page.ask("document.querySelectorAll('.sample').length") == 8
        await page.click("nav a", 1)
        assert await page.ask("location.hash") == "#samples"

    visit(output, look, 375, True)


def test_on_paper_the_page_is_light_and_nothing_has_to_be_scrolled(one_run: Path) -> None:
    async def look(page: Page) -> None:
        dark = {"name": "prefers-color-scheme", "value": "dark"}
        await page.call("Emulation.setEmulatedMedia", media="print", features=[dark])
        paper = "getComputedStyle(document.body).backgroundColor"
        assert await page.ask(paper) == "rgb(255, 255, 255)"
        hidden = (
            "['header', '.filters', '.pager'].filter((e) => document.querySelector(e).offsetParent)"
        )
        assert await page.ask(hidden) == []
        style = "getComputedStyle(document.querySelector('{}')).{}"
        assert await page.ask(style.format(".text", "maxHeight")) == "none"
        assert await page.ask(style.format(".scroll", "overflowX")) == "visible"

    visit(one_run, look, 1440, True)
