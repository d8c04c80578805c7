// Puts the page together: the map, the tree, what is chosen in them, the search, and the keys.

function main() {
  const app = document.getElementById("app");
  const canvas = el("canvas", { tabindex: "0", role: "img" });
  const tip = el("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  const crumbs = el("nav", { class: "crumbs", "aria-label": "place in the map" });
  const legend = el("ul", { class: "legend" });
  const panel = el("aside", { class: "card details", "aria-live": "polite", "aria-label": "what is chosen" });
  const status = el("span", { class: "dim status", role: "status" });
  const input = el("input", { type: "search", placeholder: "search names: text, *.q_proj.*, /layers\\.[0-3]\\./", "aria-label": "search names",
    spellcheck: "false", autocomplete: "off", oninput: () => search(), onkeydown: (event) => onSearchKey(event) });
  const modes = [["dtype", "dtype"], ["module", "module"], ...(data.files.length > 1 ? [["file", "file"]] : [])];
  const choice = el("select", { "aria-label": "colours of the map", onchange: () => recolour(choice.value) },
    modes.map(([value, text]) => el("option", { value }, `colour by ${text}`)));
  const fold = el("input", { type: "checkbox", id: "fold", onchange: () => table.setFolded(fold.checked) });
  fold.checked = true;
  const table = new TreeTable((item) => choose(item, "table"), (item) => openInMap(item));
  const map = new Treemap(canvas);
  choice.value = map.mode;

  const mapCard = el("section", { class: "card map", "aria-label": "treemap of bytes" },
    el("div", { class: "tools" }, crumbs, choice), el("div", { class: "canvas" }, canvas, tip), legend);
  const tableCard = el("section", { class: "card tree" }, el("div", { class: "tools" }, input, status,
    el("label", { for: "fold" }, fold, " fold equal blocks")), table.box);
  const main = el("main", {}, tensorCount ? [mapCard, tableCard] : el("section", { class: "card" }, data.error ? failure(data.error) : el("p", {}, "no tensors")));
  const footer = el("footer", { class: "dim" }, `rustload ${data.rustload}. This page is one file and makes no requests. `,
    el("kbd", {}, "/"), " search, ", el("kbd", {}, "↑↓←→"), " move, ", el("kbd", {}, "Enter"), " show in the map, ", el("kbd", {}, "Esc"), " back");
  app.append(header(), dtypeBar(), ...(isAlarming() ? [el("div", { class: "cards alarm" }, scanCard())] : []),
    el("div", { class: "columns" }, main, tensorCount ? panel : null), cards((item) => choose(item, "link")), footer);
  document.documentElement.classList.add("ready");
  app.hidden = false;
  if (!tensorCount) return;

  // `item` has a view (a row of a tree, which may be of the other tree) or a tensor.
  function choose(item, from) {
    const node = item.tensor === undefined ? item.view.nodes[0] : nodeOfTensor[item.tensor];
    const view = viewOfNode(node, map.folded);
    const lone = item.view && isTensor(item.view) && item.view.nodes.length === 1;
    panel.replaceChildren(...details(lone ? { tensor: nodes.tensor[node] } : item, (one) => choose(one, "link"), zoom).flat().filter(Boolean));
    map.selected = view;
    if (from === "link" && !pathOf(view).includes(map.root)) map.root = map.folded ? roots.folded : roots.plain;
    if (from !== "table") table.reveal(node);
    drawMap();
  }

  function openInMap(item) {
    const node = item.tensor === undefined ? item.view.nodes[0] : nodeOfTensor[item.tensor];
    const view = viewOfNode(node, map.folded);
    zoom(hasChildren(view) || !view.parent ? view : view.parent);
    canvas.scrollIntoView({ block: "nearest" });
  }

  function zoom(view) {
    map.root = viewOfNode(view.nodes[0], map.folded);
    drawMap();
  }

  function recolour(mode) {
    map.mode = mode;
    const same = (view) => view && viewOfNode(view.nodes[0], map.folded);
    map.root = same(map.root);
    map.selected = same(map.selected);
    drawMap();
  }

  function drawMap() {
    map.draw();
    const path = pathOf(map.root);
    crumbs.replaceChildren(...path.flatMap((view, at) => [at ? el("span", { class: "dim" }, "›") : null,
      at + 1 < path.length ? el("button", { onclick: () => zoom(view) }, view.label || data.name) : el("b", {}, view.label || data.name)]).filter(Boolean),
    el("span", { class: "dim" }, formatBytes(map.root.bytes)));
    canvas.setAttribute("aria-label", `treemap of ${map.root.parent ? pathText(map.root) : data.name}, ${formatBytes(map.root.bytes)}; the table below has the same data`);
    legend.hidden = map.mode === "dtype";
    if (map.mode === "dtype") return;
    const items = map.mode === "file" ? data.files.map((file, at) => [file.name, at])
      : [...map.modules].map(([view, at]) => [view.label || data.name, at]);
    legend.replaceChildren(...items.slice(0, 12).map(([text, at]) => el("li", {}, swatch(at % 10), text)), ...(items.length > 12 ? [el("li", { class: "dim" }, `and ${formatCount(items.length - 12)} more`)] : []));
  }

  // The search, in slices of time, so that the page answers meanwhile.
  let names = null, run = 0;
  function search() {
    const text = input.value.trim(), number = ++run;
    status.classList.remove("bad");
    if (!text) {
      status.textContent = "";
      if (table.found) table.show(null);
      return;
    }
    let matches;
    try {
      matches = matcherOf(text);
    } catch (error) {
      status.textContent = error.message;
      status.classList.add("bad");
      return;
    }
    names = names || Array.from({ length: tensorCount }, (_, tensor) => nameOf(tensor));
    const found = [];
    let at = 0;
    (function slice() {
      if (number !== run) return;
      const end = performance.now() + 30;
      while (at < names.length && performance.now() < end) {
        for (const stop = Math.min(at + 20, names.length); at < stop; at++) if (matches(names[at])) found.push(at);
      }
      status.textContent = `${formatCount(found.length)} of ${plural(tensorCount, "tensor")}${at < names.length ? " so far" : `, ${formatBytes(found.reduce((sum, one) => sum + countedBytes(one), 0))}`}`;
      if (at < names.length) setTimeout(slice);
      else table.show(found);
    })();
  }

  function onSearchKey(event) {
    if (event.key === "Escape") {
      input.value = "";
      search();
      table.box.focus();
    } else if (event.key === "Enter" || event.key === "ArrowDown") {
      table.box.focus();
      table.mark(Math.max(table.at, 0));
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  function boxUnder(event) {
    const place = canvas.getBoundingClientRect();
    return map.boxAt(event.clientX - place.left, event.clientY - place.top);
  }

  canvas.addEventListener("click", (event) => {
    const box = boxUnder(event);
    if (!box) return;
    const path = pathOf(box.view), next = path[path.indexOf(map.root) + 1];
    if (next && hasChildren(next)) map.root = next;
    choose({ view: box.view }, "map");
  });
  canvas.addEventListener("mousemove", (event) => {
    const box = boxUnder(event), place = canvas.getBoundingClientRect();
    tip.hidden = !box;
    if (!box) return;
    const { view } = box, tensor = nodes.tensor[view.nodes[0]];
    const what = isTensor(view) ? `${dtypeOf(tensor)} ${shapeText(tensor)}${view.nodes.length > 1 ? `, ${formatCount(view.nodes.length)} of them` : ""}` : plural(view.count, "tensor");
    tip.replaceChildren(el("b", {}, pathText(view)), el("br"), `${formatBytes(view.bytes)} (${formatShare(view.bytes / (Number(data.nbytes) || 1))}), ${what}`);
    const x = event.clientX - place.left, y = event.clientY - place.top;
    tip.style.left = `${Math.max(0, Math.min(x + 14, place.width - tip.offsetWidth))}px`;
    tip.style.top = `${y + 18 + tip.offsetHeight > place.height ? Math.max(0, y - tip.offsetHeight - 8) : y + 18}px`;
  });
  canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
  canvas.addEventListener("keydown", (event) => {
    const around = childViews(map.root).filter((view) => view.bytes > 0).sort((a, b) => b.bytes - a.bytes);
    const at = around.indexOf(map.selected);
    if (event.key === "ArrowRight" || event.key === "ArrowDown") choose({ view: around[Math.min(at + 1, around.length - 1)] || map.root }, "map");
    else if (event.key === "ArrowLeft" || event.key === "ArrowUp") choose({ view: around[Math.max(at - 1, 0)] || map.root }, "map");
    else if (event.key === "Enter" && map.selected && hasChildren(map.selected)) zoom(map.selected);
    else return;
    event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/" && document.activeElement !== input) {
      event.preventDefault();
      input.focus();
      input.select();
    } else if (event.key === "Escape") {
      if (table.found) input.value = "", search();
      else if (map.root.parent) zoom(map.root.parent);
    }
  }, { signal });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawMap, { signal });
  const resized = new ResizeObserver(() => {
    drawMap();
    table.render();
  });
  resized.observe(canvas);
  if (signal) signal.addEventListener("abort", () => resized.disconnect());
  choose({ view: roots.folded }, "table");
  table.render();
}

main();
