"""The built site works with the keyboard, and shows lines of 88 columns of code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from support.browser import needs_browser, open_browser
from support.site import page_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [needs_browser, pytest.mark.site]

FOCUSED = """() => {
    const element = document.activeElement;
    if (element === document.body) return null;
    document.getAnimations().forEach(animation => animation.finish());
    const style = getComputedStyle(element), box = element.getBoundingClientRect();
    const hasRing = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
    const hasShadow = style.boxShadow.includes("3px");
    return {
        name: element.ariaLabel || element.dataset.tooltip || element.textContent.trim(),
        isSeen: (hasRing || hasShadow) && style.opacity === "1" && box.width > 0
            && box.left >= 0 && box.right <= innerWidth
            && box.top >= 0 && box.bottom <= innerHeight,
    };
}"""
"""The name of the focused element, and whether the focus is seen; null at the end."""

ROOM = """() => {
    const block = document.querySelector(".bd-article pre");
    block.textContent = "x".repeat(88);
    const range = document.createRange();
    range.selectNodeContents(block);
    const padding = 2 * parseFloat(getComputedStyle(block).paddingLeft);
    return block.clientWidth - padding - range.getBoundingClientRect().width;
}"""
"""The pixels that a block of code has besides 88 columns."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page in a window of a width and a color scheme."""
    width, scheme = getattr(request, "param", (1280, "light"))
    size = {"width": width, "height": 800}
    with browser.new_context(viewport=size, color_scheme=scheme) as context:
        page = context.new_page()
        page.goto(page_of("start/install"))
        yield page


@pytest.mark.parametrize(
    "page",
    [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")],
    indirect=True,
)
def test_tab_reaches_all_controls_and_the_focus_is_seen(page: Page) -> None:
    reached = []
    page.keyboard.press("Tab")
    while (focused := page.evaluate(FOCUSED)) is not None:
        assert focused["isSeen"], focused["name"]
        reached.append(focused["name"])
        page.keyboard.press("Tab")
    assert reached[0] == "Skip to main content"
    expected = {"Search", "Copy", "Changelog"}
    if page.viewport_size["width"] > 1000:
        expected |= {"Learn", "Color mode", "Five minutes", "GPUs"}
    else:
        expected |= {"Site navigation"}
    assert expected <= set(reached)


def test_keys_open_and_close_the_search_the_menus_and_the_navigation(
    page: Page,
) -> None:
    search, field = page.locator("dialog#pst-search-dialog"), "input[type=search]"
    for key in ("Enter", "Space"):
        page.locator(".search-button-field:visible").press(key)
        assert page.locator(field).evaluate("it => it === document.activeElement")
        page.keyboard.press("Escape")
        assert search.is_hidden()
    colors = page.locator(".theme-switch-button:visible")
    for key, scheme in (("Enter", "dark"), ("Space", "light")):
        colors.press(key)
        page.locator(f".theme-change-button[data-mode={scheme}]:visible").press(key)
        assert page.locator(f"html[data-theme={scheme}]").count() == 1
    colors.press("Enter")
    page.keyboard.press("Escape")
    assert page.locator(".theme-change-button:visible").count() == 0
    copy = page.locator(".copybtn").first
    copy.press("Enter")
    assert "success" in str(copy.get_attribute("class"))
    page.keyboard.press("Home")
    page.locator("#pst-skip-link a").press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")
    page.set_viewport_size({"width": 390, "height": 800})
    menu = page.locator("dialog#pst-primary-sidebar-modal")
    page.locator(".primary-toggle:visible").press("Enter")
    assert menu.get_by_text("Learn", exact=True).is_visible()
    page.keyboard.press("Escape")
    menu.wait_for(state="hidden")


@pytest.mark.parametrize("page", [(1200, "light")], indirect=True)
def test_88_columns_of_code_fit_at_1200_pixels(page: Page) -> None:
    scroll_bar = 15  # a window without a touch screen has one, next to the page
    assert page.evaluate(ROOM) >= scroll_bar
