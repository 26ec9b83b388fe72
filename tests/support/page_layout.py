"""Checks the layout of a report page, as a browser drew it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

FAULTS = """() => {
  const faults = [];
  const rect = (element) => {
    const { left, top, right, bottom } = element.getBoundingClientRect();
    return { left, top, right, bottom, name: element.id || element.textContent };
  };
  const all = (where, within = document) => [...within.querySelectorAll(where)];
  const meet = (a, b, slack = 0) => a.left + slack < b.right && b.left + slack < a.right
    && a.top + slack < b.bottom && b.top + slack < a.bottom;
  const within = (a, b) => a.left >= b.left - 0.5 && a.right <= b.right + 0.5
    && a.top >= b.top - 0.5 && a.bottom <= b.bottom + 0.5;
  const pairs = (rects, what, slack) => rects.forEach((a, i) => rects.slice(i + 1).forEach(
    (b) => { if (meet(a, b, slack)) faults.push(`${what}: ${a.name} | ${b.name}`); }));

  for (const picture of all('.picture')) {
    const boxes = all('.box .shape', picture).map(
      (shape) => ({ ...rect(shape), name: shape.parentNode.id }));
    const labels = all('.label', picture).map(rect);
    pairs([...boxes, ...labels], 'cover each other', 0);
    const size = rect(picture);
    for (const each of [...boxes, ...labels])
      if (!within(each, size)) faults.push(`outside of the picture: ${each.name}`);
    for (const box of all('.box', picture)) {
      const shape = rect(box.querySelector('.shape'));
      const texts = all('text', box).map(rect);
      for (const text of texts)
        if (!within(text, shape)) faults.push(`outside of ${box.id}: ${text.name}`);
      const rows = texts.map((a) => ({ ...a, top: a.top + 3, bottom: a.bottom - 3 }));
      pairs(rows, `cover each other in ${box.id}`, 0.5);
    }
    for (const line of all('.arrow path:not(.head)', picture)) {
      const matrix = line.getScreenCTM();
      const arrow = line.parentNode.dataset;
      for (let at = 0; at <= line.getTotalLength(); at += 2) {
        const { x, y } = line.getPointAtLength(at).matrixTransform(matrix);
        const point = { left: x, right: x, top: y, bottom: y };
        const hit = boxes.find((box) => meet(point, box, 0.01));
        if (hit) {
          faults.push(`arrow ${arrow.source}-${arrow.target} goes through ${hit.name}`);
          break;
        }
      }
    }
  }
  for (const drawing of all('svg:not(.picture)')) {
    const size = rect(drawing);
    const texts = all('text', drawing).map(rect).filter((a) => a.right > a.left);
    const rows = texts.map((a) => ({ ...a, top: a.top + 3, bottom: a.bottom - 3 }));
    pairs(rows, 'texts of a chart', 0.5);
    for (const text of texts)
      if (!within(text, size)) faults.push(`outside of its chart: ${text.name}`);
  }
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth)
    faults.push(`the page is ${root.scrollWidth} pixels wide`);
  const ids = all('[id]').map((element) => element.id);
  if (new Set(ids).size < ids.length) faults.push('elements with the same id');
  return faults;
}"""

OPENED = """async () => {
  const frame = () => new Promise(requestAnimationFrame);
  const panel = document.getElementById('panel');
  const opened = [];
  for (const box of document.querySelectorAll('.picture .box')) {
    box.dispatchEvent(new MouseEvent('click', { bubbles: true }));
    while (!box.classList.contains('open')) await frame();
    opened.push({
      title: panel.querySelector('h3').textContent,
      on: panel.querySelector('.on').textContent,
      why: panel.querySelector('.why').textContent,
      layers: [...panel.querySelectorAll('tbody tr')].map(
        (row) => ({
          name: row.querySelector('button').textContent,
          line: [...row.querySelectorAll('.note')].at(-1).textContent,
        })),
      ops: [...panel.querySelectorAll('.op')].map((op) => op.textContent),
      arrows: panel.querySelectorAll('.moves li').length,
    });
  }
  return opened;
}"""

FOUND = """async (names) => {
  const frame = () => new Promise(requestAnimationFrame);
  const search = document.getElementById('search');
  const found = {};
  for (const name of names) {
    document.getElementById('found').replaceChildren();
    search.value = name;
    search.dispatchEvent(new Event('input'));
    while (!document.querySelector('#found li')) await frame();
    found[name] = [...document.querySelectorAll('#found [role=option]')].filter(
      (hit) => ['parameter', 'block'].includes(hit.querySelector('.kind').textContent)
        && hit.querySelector('.name').textContent === name
    ).map((hit) => hit.querySelector('.note').textContent);
  }
  search.value = '';
  search.dispatchEvent(new Event('input'));
  return found;
}"""


def check_layout(page: Page) -> None:
    """Check that boxes, labels and texts cover nothing, that no line goes through a box,
    and that the page needs no horizontal scroll bar."""
    assert page.evaluate(FAULTS) == []


def open_boxes(page: Page) -> list[dict[str, Any]]:
    """Click each box. Return the content of the panel for each."""
    opened: list[dict[str, Any]] = page.evaluate(OPENED)
    return opened


def find_parameters(page: Page, names: list[str]) -> dict[str, list[str]]:
    """Search each name. Return the places where the page found a parameter of that name."""
    found: dict[str, list[str]] = page.evaluate(FOUND, names)
    return found
