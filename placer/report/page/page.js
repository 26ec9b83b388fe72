"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const picture = document.querySelector("#placement .picture");
  const panel = byId("panel");
  const search = byId("search");
  const found = byId("found");
  const OP_HEIGHT = 40;
  const MOST_FOUND = 60;
  const FEW_OPS = 5;
  let facts = null;
  let opened = null;

  // All texts become text nodes, never markup.
  function make(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else if (value !== null && value !== undefined) element.setAttribute(key, value);
    }
    element.append(...children.filter((child) => child !== null));
    return element;
  }

  // The first click or search decompresses the details.
  function load() {
    facts ??= (async () => {
      const coded = byId("details").textContent.trim();
      const letters = atob(coded);
      const bytes = new Uint8Array(letters.length);
      for (let i = 0; i < letters.length; i += 1) bytes[i] = letters.charCodeAt(i);
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      return new Response(stream).json();
    })();
    return facts;
  }

  const layersOf = (all, box) => (all.layers[box] ?? []).map(
    ([name, kind, output, flops, line, ops]) => ({ name, kind, output, flops, line, ops }));

  const UNITS = {
    bytes: ["bytes", "kB", "MB", "GB", "TB"],
    flops: ["FLOPs", "kFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs"],
  };
  function scaled(value, kind) {
    const units = UNITS[kind];
    let step = 0;
    while (value >= 999.95 && step + 1 < units.length) {
      value /= 1000;
      step += 1;
    }
    return `${step ? value.toFixed(1) : value.toFixed(0)} ${units[step]}`;
  }
  const counted = (value) => value.toLocaleString("en-US");
  const plural = (value, noun) => `${counted(value)} ${noun}${value === 1 ? "" : "s"}`;

  // ---- boxes -------------------------------------------------------------------------
  const boxes = picture ? [...picture.querySelectorAll(".box")] : [];
  const boxOf = (id) => byId(`box-${id}`);

  function highlight(id) {
    if (!picture) return;
    picture.classList.toggle("focus", id !== null);
    for (const each of picture.querySelectorAll("[data-arrow].on")) each.classList.remove("on");
    if (id === null) return;
    const arrows = picture.querySelectorAll(
      `.arrow[data-source="${id}"], .arrow[data-target="${id}"]`);
    for (const arrow of arrows) {
      const number = arrow.dataset.arrow;
      for (const each of picture.querySelectorAll(`[data-arrow="${number}"]`)) each.classList.add("on");
    }
    picture.classList.toggle("focus", arrows.length > 0);
  }

  function show(element) {
    element.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  async function open(id, layer = null, op = null) {
    const all = await load();
    if (opened !== null) boxOf(opened)?.classList.remove("open");
    opened = id;
    boxOf(id).classList.add("open");
    highlight(id);
    const box = all.placement.boxes[id];
    panel.replaceChildren(...content(all, box, layer, op));
    panel.className = `filled purpose-${box.purpose.replaceAll(" ", "-")}`;
    panel.scrollTop = 0;
    document.body.classList.add("opened");
    show(boxOf(id));
    panel.querySelector("h3").focus({ preventScroll: true });
    panel.querySelector(".ops")?.dispatchEvent(new Event("place"));
    panel.querySelector("tr.mark-on")?.scrollIntoView({ block: "nearest" });
  }

  const hint = panel ? [...panel.childNodes] : [];
  function close() {
    if (opened === null) return;
    const box = boxOf(opened);
    box.classList.remove("open");
    opened = null;
    highlight(null);
    panel.replaceChildren(...hint);
    panel.className = "";
    document.body.classList.remove("opened");
    box.focus({ preventScroll: true });
  }

  function figures(box) {
    const pairs = [
      ["ops", counted(box.ops ?? 0)],
      ["FLOPs", box.flops ? scaled(box.flops, "flops").replace("FLOPs", "").trim() : null],
      ["sent in a step", box.nbytes ? (box.estimated ? "≤ " : "") + scaled(box.nbytes, "bytes") : null],
      ["stored", box.stored ? scaled(box.stored, "bytes") : null],
      ["time in the median step", box.seconds != null ? `${(1000 * box.seconds).toFixed(2)} ms` : null],
    ];
    return make("dl", { class: "figures" }, ...pairs.filter(([, value]) => value).map(
      ([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  }

  function content(all, box, layer, op) {
    const { placement } = all;
    const layers = layersOf(all, box.id);
    const group = placement.groups[placement.columns[box.column].group];
    const nodes = group.nodes.length > 8
      ? `${group.nodes.slice(0, 8).join(", ")} and ${group.nodes.length - 8} more`
      : group.nodes.join(", ");
    const parts = [
      make("div", { class: "top" },
        make("div", {},
          make("h3", { tabindex: "-1" }, box.title),
          make("p", { class: "on" }, `on ${all.columns[box.column]} (${nodes})`)),
        make("button", { type: "button", class: "close", "aria-label": "Close", onclick: close }, "×")),
      figures(box),
    ];
    if (box.why) parts.push(make("h4", {}, "Why here"), make("p", { class: "why" }, box.why));
    if (box.functions?.length) {
      parts.push(make("h4", {}, "Calls in the program"), make("p", {}, make("code", {}, box.functions.join(", "))));
    }
    parts.push(...moves(all, box));
    if (layers.length) {
      parts.push(make("h4", {}, "Layers and other parts"), layerTable(layers, layer));
    }
    const ranges = layers.map((each) => each.ops);
    const indices = ranges.flatMap(([start, stop]) =>
      Array.from({ length: stop - start }, (_, i) => start + i));
    if (indices.length) {
      parts.push(make("h4", {}, plural(indices.length, "op")), opList(all, indices, layers, layer, op));
    }
    return parts;
  }

  function moves(all, box) {
    const { arrows, boxes: every } = all.placement;
    const list = (title, own, side) => {
      if (!own.length) return [];
      const rows = own.map((arrow) => {
        const other = every[arrow[side]];
        const bound = arrow.estimated ? "≤ " : "";
        const size = arrow.nbytes ? bound + scaled(arrow.nbytes, "bytes") : "in memory";
        const values = (arrow.values ?? []).join(", ") + (arrow.more ? ` and ${arrow.more} more` : "");
        const notes = [arrow.between_devices ? "copy between devices" : null,
          arrow.measured ? "measured" : null,
          arrow.seconds ? `${(1000 * arrow.seconds).toFixed(2)} ms` : null, values].filter(Boolean).join("; ");
        return make("li", {},
          make("span", { class: "size" }, size),
          make("span", {},
            make("button", { type: "button", class: "link", onclick: () => open(other.id) },
              `${all.columns[other.column]}: ${other.title}`),
            notes ? ` (${notes})` : ""));
      });
      return [make("h4", {}, title), make("ul", { class: "moves" }, ...rows)];
    };
    return [
      ...list("Receives", arrows.filter((arrow) => arrow.target === box.id), "source"),
      ...list("Sends", arrows.filter((arrow) => arrow.source === box.id), "target"),
    ];
  }

  const MOST_LAYERS = 400;
  function layerTable(layers, marked) {
    const start = marked === null ? 0 : Math.max(0, marked - MOST_LAYERS / 2);
    const part = layers.slice(start, start + MOST_LAYERS);
    const rows = part.map((layer, i) => make("tr", { class: start + i === marked ? "mark-on" : null },
      make("td", {},
        make("button", { type: "button", class: "link code", onclick: () => open(opened, start + i) }, layer.name),
        make("div", { class: "note" }, [layer.kind, layer.output].filter(Boolean).join(" · ")),
        make("div", { class: "note" }, layer.line)),
      make("td", { class: "n" }, layer.flops ? scaled(layer.flops, "flops").replace("FLOPs", "") : "")));
    const head = make("tr", {}, ...["name", "FLOPs"].map(
      (name) => make("th", { scope: "col", class: name === "FLOPs" ? "n" : null }, name)));
    const left = layers.length - part.length;
    return make("div", { class: "many" },
      make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)),
      left ? make("p", { class: "hint" }, `${counted(left)} more not listed; the search finds all layers.`) : null);
  }

  // Only the visible ops have elements.
  function opList(all, indices, layers, layer, op) {
    const inner = make("div", { style: null });
    inner.style.height = `${indices.length * OP_HEIGHT}px`;
    const list = make("div", {
      class: indices.length < 9 ? "ops short" : "ops", tabindex: "0", role: "list", "aria-label": "Ops",
    }, inner);
    const marks = layer === null ? null : layers[layer].ops;
    const isMarked = (index) => (op !== null ? index === op
      : marks !== null && index >= marks[0] && index < marks[1]);
    let drawn = "";
    const draw = () => {
      const height = list.clientHeight || 330;
      const first = Math.max(0, Math.floor(list.scrollTop / OP_HEIGHT) - 5);
      const last = Math.min(indices.length, Math.ceil((list.scrollTop + height) / OP_HEIGHT) + 5);
      if (drawn === `${first}:${last}`) return;
      drawn = `${first}:${last}`;
      inner.replaceChildren(...indices.slice(first, last).map((index, i) => {
        const [results, work] = halves(all.ops[index]);
        const row = make("div", {
          class: isMarked(index) ? "op mark-on" : "op", role: "listitem",
          "aria-setsize": indices.length, "aria-posinset": first + i + 1,
        }, results, make("span", {}, work));
        row.style.top = `${(first + i) * OP_HEIGHT}px`;
        return row;
      }));
    };
    list.addEventListener("scroll", draw, { passive: true });
    list.addEventListener("place", () => {
      const at = indices.findIndex(isMarked);
      if (at > 0) list.scrollTop = (at - 1) * OP_HEIGHT;
      draw();
    });
    draw();
    return list;
  }

  function halves(text) {
    const at = text.indexOf(" = ");
    return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
  }

  for (const box of boxes) {
    const id = Number(box.dataset.box);
    box.addEventListener("click", () => open(id));
    box.addEventListener("pointerenter", () => highlight(id));
    box.addEventListener("pointerleave", () => highlight(opened));
    box.addEventListener("focus", () => highlight(id));
    box.addEventListener("blur", () => highlight(opened));
  }

  // Arrow keys move to the next box in the same column, or to the nearest box next to it.
  function neighbor(box, key) {
    const here = box.getBoundingClientRect();
    const x = here.left + here.width / 2;
    const y = here.top + here.height / 2;
    let best = null;
    for (const other of boxes) {
      if (other === box) continue;
      const there = other.getBoundingClientRect();
      const dx = there.left + there.width / 2 - x;
      const dy = there.top + there.height / 2 - y;
      const isVertical = key === "ArrowUp" || key === "ArrowDown";
      const along = { ArrowUp: -dy, ArrowDown: dy, ArrowLeft: -dx, ArrowRight: dx }[key];
      const across = Math.abs(isVertical ? dx : dy);
      if (along < 1 || (isVertical && across > 1)) continue;
      const cost = isVertical ? along : along * 10 + across;
      if (best === null || cost < best.cost) best = { other, cost };
    }
    return best?.other;
  }

  picture?.addEventListener("keydown", (event) => {
    const box = event.target.closest(".box");
    if (!box || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      open(Number(box.dataset.box));
    } else if (event.key.startsWith("Arrow")) {
      const next = neighbor(box, event.key);
      if (next) {
        event.preventDefault();
        next.focus({ preventScroll: true });
        show(next);
      }
    }
  });

  // ---- search ------------------------------------------------------------------------
  let index = null;
  function buildIndex(all) {
    const { boxes: every, boxes: { length } } = all.placement;
    const place = (box) => `${all.columns[every[box].column]} · ${every[box].title}`;
    const entries = [];
    const add = (kind, name, key, box, layer = null, op = null) => entries.push(
      { kind, name, key: key.toLowerCase(), box, note: place(box), layer, op });
    const names = Object.keys(all.parameters);
    // A parameter stands for its blocks, which have longer names.
    const whole = (name) => {
      const at = name.lastIndexOf(".block");
      return at > 0 && name.slice(0, at) in all.parameters ? name.slice(0, at) : null;
    };
    for (const name of names) {
      if (whole(name) === null) for (const box of all.parameters[name]) add("parameter", name, name, box);
    }
    // Blocks and gradients of a parameter are no layers; the search finds their ops.
    const isOfParameter = (name) => {
      for (let at = name.length; at > 0; at = name.lastIndexOf(".", at - 1)) {
        if (name.slice(0, at) in all.parameters) return true;
      }
      return false;
    };
    const layers = (box, visit) => layersOf(all, box).forEach((layer, i) => visit(layer, i));
    for (let box = 0; box < length; box += 1) {
      layers(box, (layer, i) => {
        if (!isOfParameter(layer.name)) add("layer", layer.name, layer.name, box, i);
      });
    }
    for (const name of names) {
      if (whole(name) !== null) for (const box of all.parameters[name]) add("block", name, name, box);
    }
    for (let box = 0; box < length; box += 1) {
      layers(box, (layer, i) => {
        for (let op = layer.ops[0]; op < layer.ops[1]; op += 1) add("op", all.ops[op], defined(all.ops[op]), box, i, op);
      });
    }
    return entries;
  }

  // The text of an op without its operands and attributes.
  function defined(text) {
    const at = text.indexOf("(", Math.max(0, text.indexOf(" = ")));
    return at < 0 ? text : text.slice(0, at);
  }

  function ranked(entries, words) {
    const query = words.toLowerCase();
    const exact = [], begins = [], contains = [];
    let more = 0;
    for (const entry of entries) {
      const at = entry.key.indexOf(query);
      if (at < 0 || (entry.kind === "block" && !query.includes("block"))) continue;
      if (entry.key === query) exact.push(entry);
      else if (at === 0 || (at === 1 && entry.key[0] === "%")) begins.push(entry);
      else if (contains.length < MOST_FOUND) contains.push(entry);
      else more += 1;
    }
    let all = [...exact, ...begins, ...contains];
    // A search for ops begins with %. Another one shows few ops after layers and parameters.
    let ops = 0;
    if (query[0] !== "%") all = all.filter((entry) => entry.kind !== "op" || (ops += 1) <= FEW_OPS);
    more += Math.max(0, all.length - MOST_FOUND);
    return { hits: all.slice(0, MOST_FOUND), more, ops: Math.max(0, ops - FEW_OPS) };
  }

  let hits = [];
  let active = -1;
  function activate(at) {
    active = at;
    [...found.querySelectorAll("[role=option]")].forEach((item, i) => {
      item.setAttribute("aria-selected", String(i === at));
      if (i === at) item.scrollIntoView({ block: "nearest" });
    });
    if (at >= 0) search.setAttribute("aria-activedescendant", `hit-${at}`);
    else search.removeAttribute("aria-activedescendant");
  }

  function hideFound() {
    found.hidden = true;
    search.setAttribute("aria-expanded", "false");
    search.removeAttribute("aria-activedescendant");
  }

  async function find() {
    const words = search.value.trim();
    if (!words) return hideFound();
    const all = await load();
    index ??= buildIndex(all);
    if (search.value.trim() !== words) return undefined;
    const result = ranked(index, words);
    hits = result.hits;
    const items = hits.map((hit, i) => make("li", {
      role: "option", id: `hit-${i}`, "aria-selected": "false",
      onmousedown: (event) => event.preventDefault(), onclick: () => choose(i),
    },
    make("span", { class: "kind" }, hit.kind),
    make("span", { class: "name code", title: hit.name.slice(0, 500) }, hit.name.slice(0, 200)),
    make("span", { class: "note" }, hit.note)));
    if (!hits.length) items.push(make("li", {}, "No op, layer or parameter contains this text."));
    if (result.ops) items.push(make("li", {}, `and ${plural(result.ops, "more op")}: begin the search with %`));
    if (result.more) items.push(make("li", {}, `and ${counted(result.more)} more`));
    found.replaceChildren(...items);
    found.hidden = false;
    search.setAttribute("aria-expanded", "true");
    activate(hits.length ? 0 : -1);
    return undefined;
  }

  function choose(at) {
    const hit = hits[at];
    if (!hit) return;
    hideFound();
    reveal(hit.box, hit.layer, hit.op);
  }

  function reveal(box, layer, op) {
    open(box, layer, op).then(() =>
      boxOf(box).scrollIntoView({ block: "center", inline: "center" }));
  }

  // A row of the table of layers opens its box.
  for (const button of document.querySelectorAll("#layers [data-box]")) {
    button.addEventListener("click", () => reveal(Number(button.dataset.box), Number(button.dataset.layer), null));
  }

  if (search) {
    search.addEventListener("input", find);
    search.addEventListener("focus", find);
    search.addEventListener("blur", hideFound);
    search.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        if (!hits.length || found.hidden) return;
        event.preventDefault();
        activate((active + (event.key === "ArrowDown" ? 1 : hits.length - 1)) % hits.length);
      } else if (event.key === "Enter") {
        event.preventDefault();
        if (!found.hidden) choose(active);
      } else if (event.key === "Escape") {
        event.stopPropagation();
        if (found.hidden) search.blur();
        hideFound();
      }
    });
  }

  document.addEventListener("keydown", (event) => {
    const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    if (event.key === "/" && !isTyping && search && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      search.focus();
      search.select();
    } else if (event.key === "Escape" && !isTyping) {
      close();
    }
  });

  // ---- curves ------------------------------------------------------------------------
  for (const button of document.querySelectorAll(".entries [data-run]")) {
    button.addEventListener("click", () => {
      const isShown = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", String(isShown));
      const lines = document.querySelectorAll(`.curves .run-${button.dataset.run}`);
      for (const each of lines) each.classList.toggle("off", !isShown);
    });
  }

  // ---- settings of the view ----------------------------------------------------------
  byId("color")?.addEventListener("change", (event) => {
    picture.dataset.color = event.target.value;
  });
  const fit = byId("fit");
  const applyFit = () => byId("placement").classList.toggle("fit", fit.checked);
  if (fit) {
    // A picture that is a little too wide is smaller at first, so that nothing is hidden.
    const scale = picture.parentElement.clientWidth / picture.clientWidth;
    fit.checked = scale < 1 && scale > 0.7;
    applyFit();
    fit.addEventListener("change", applyFit);
  }
  byId("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const now = root.dataset.theme
      ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
  });
  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details")) each.open = true;
  });
  document.documentElement.dataset.ready = "true";
})();
