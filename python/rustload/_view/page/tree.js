// The table of tensors: the folded tree, or the tensors that a search found. Only the rows in sight are in the document.

const ROW = 28, NUMBERS = data.stats ? ["min", "max", "std", "NaN"] : [];
const COLUMNS = ["name", "dtype", "shape", ...NUMBERS, "tensors", "each", "size", ""];
// The characters of the longest dtype and shape.
const longest = (texts, most) => Math.min(most, texts.reduce((length, text) => Math.max(length, text.length), 6));

class TreeTable {
  constructor(onSelect, onOpen) {
    Object.assign(this, { onSelect, onOpen, folded: true, order: "file", found: null, at: -1, rows: [], expanded: new Set() });
    this.body = el("tbody");
    this.heads = COLUMNS.map((name) => ["name", "size"].includes(name)
      ? el("th", { scope: "col", class: name }, el("button", { onclick: () => this.sortBy(name) }, name))
      : el("th", { scope: "col", class: NUMBERS.includes(name) ? `stat ${name}` : name || "share" }, name || el("span", { class: "hidden" }, "share")));
    this.table = el("table", { role: "treegrid", "aria-label": "tensors", class: data.stats ? "with-numbers" : "" }, el("thead", {}, el("tr", {}, this.heads)), this.body);
    this.table.style.setProperty("--dtype", longest(data.dtype_names, 20));
    this.table.style.setProperty("--shape", longest(kinds.map((kind) => `[${kind.shape.join(", ")}]`), 28));
    this.box = el("div", { class: "rows", tabindex: "0", onscroll: () => this.render(), onkeydown: (event) => this.onKey(event) }, this.table);
    this.box.addEventListener("click", (event) => this.onClick(event));
    this.box.addEventListener("dblclick", () => this.rows[this.at] && this.onOpen(this.rows[this.at]));
    this.expandFirst();
    this.update();
  }

  get root() {
    return this.folded ? roots.folded : roots.plain;
  }

  // As many levels as have few rows together.
  expandFirst() {
    let level = childViews(this.root), shown = level.length;
    for (;;) {
      const groups = level.filter(hasChildren);
      const next = groups.flatMap((view) => childViews(view));
      if (!next.length || shown + next.length > 40) return;
      groups.forEach((view) => this.expanded.add(view));
      shown += next.length;
      level = next;
    }
  }

  sortBy(name) {
    this.order = this.order === name ? "file" : name;
    this.heads.forEach((head, at) => {
      const sorted = COLUMNS[at] === this.order;
      head.setAttribute("aria-sort", !sorted ? "none" : this.order === "size" ? "descending" : "ascending");
    });
    this.update();
  }

  sorted(items, name, size) {
    if (this.order === "size") return items.slice().sort((a, b) => size(b) - size(a));
    if (this.order === "name") return items.slice().sort((a, b) => natural.compare(name(a), name(b)));
    return items;
  }

  // The rows, from the tree or from what the search found.
  update() {
    if (this.found) {
      this.rows = this.sorted(this.found, nameOf, (tensor) => kindOf(tensor).nbytes).map((tensor) => ({ tensor }));
    } else {
      const rows = [], order = (view) => this.sorted(childViews(view), (one) => one.label, (one) => one.bytes);
      const stack = order(this.root).slice().reverse();
      while (stack.length) {
        const view = stack.pop();
        rows.push({ view });
        if (this.expanded.has(view)) order(view).slice().reverse().forEach((one) => stack.push(one));
      }
      this.rows = rows;
    }
    this.at = Math.min(this.at, this.rows.length - 1);
    this.table.setAttribute("aria-rowcount", this.rows.length + 1);
    this.render();
  }

  render() {
    const { box, rows } = this, seen = Math.ceil(Math.max(box.clientHeight, 720) / ROW) + 2; // 720: its largest height
    const first = Math.max(0, Math.min(Math.floor(box.scrollTop / ROW) - 1, rows.length - seen));
    const last = Math.min(rows.length, first + seen + 1);
    const shown = [];
    for (let at = first; at < last; at++) shown.push(this.rowOf(rows[at], at));
    this.body.replaceChildren(this.spacer(first), ...shown, this.spacer(rows.length - last));
    if (!rows.length) this.body.replaceChildren(el("tr", {}, el("td", { class: "dim none" }, this.found ? "no tensor matches" : "no tensors")));
    const current = this.at >= first && this.at < last;
    current ? box.setAttribute("aria-activedescendant", `row${this.at}`) : box.removeAttribute("aria-activedescendant");
  }

  // One cell: a `colspan` would give room to hidden columns.
  spacer(count) {
    const cell = el("td");
    cell.style.height = `${count * ROW}px`;
    return el("tr", { "aria-hidden": "true", class: "space", hidden: count === 0 }, cell);
  }

  rowOf(item, at) {
    const { view } = item, leaf = item.tensor !== undefined || isTensor(view);
    const tensor = item.tensor ?? nodes.tensor[view.nodes[0]];
    const many = view && view.nodes.length > 1;
    const isOpen = view && this.expanded.has(view), group = view && hasChildren(view);
    const indent = el("span", { class: "indent" });
    indent.style.width = `calc(${view ? Math.min(view.depth - 1, 20) : 0} * var(--indent))`;
    const name = el("td", { class: "name" }, el("div", {}, indent,
      view ? el("span", { class: "twist", "aria-hidden": "true" }, group ? (isOpen ? "▾" : "▸") : "") : null,
      el("span", { class: group ? "label group" : "label", title: item.tensor === undefined ? pathText(view) : nameOf(tensor) },
        item.tensor === undefined ? view.label || '""' : nameOf(tensor)), badges(leaf ? (view ? tensorsOf(view) : [tensor]) : [])));
    const bytes = view ? view.bytes : countedBytes(tensor);
    const each = leaf ? kindOf(tensor).nbytes : many ? view.bytes / view.nodes.length : null;
    const share = bytes / (Number(data.nbytes) || 1);
    const meter = el("span", { class: "meter" }, el("i", leaf ? { fill: colours[kindOf(tensor).dtype], width: `${100 * share}%` } : { width: `${100 * share}%` }));
    return el("tr", { id: `row${at}`, "data-at": at, "aria-rowindex": at + 2, "aria-level": view ? view.depth : 1, "aria-selected": at === this.at ? "true" : "false",
      "aria-expanded": group ? String(Boolean(isOpen)) : null },
    name, el("td", { class: "dtype" }, leaf ? dtypeOf(tensor) : ""),
    el("td", { class: "shape" }, leaf && many ? el("span", { class: "times" }, `${formatCount(view.nodes.length)} × `) : null, leaf ? shapeText(tensor) : ""),
    numberCells(leaf ? (view ? tensorsOf(view) : [tensor]) : []),
    el("td", { class: "tensors" }, leaf && !many ? "" : formatCount(view.count)),
    el("td", { class: "each" }, each !== null && (many || (leaf && bytes === 0 && each > 0)) ? formatBytes(each) : ""),
    el("td", { class: "size" }, leaf && bytes === 0 && each > 0 ? el("span", { class: "dim", title: "with an earlier name of the same tensor" }, "counted") : formatBytes(bytes)),
    el("td", { class: "share", title: formatShare(share) }, meter));
  }

  toggle(view, open = !this.expanded.has(view)) {
    if (open) this.expanded.add(view);
    else this.expanded.delete(view);
    this.update();
  }

  setFolded(folded) {
    this.folded = folded;
    this.expanded.clear();
    this.at = -1;
    this.expandFirst();
    this.update();
  }

  show(found) {
    // The page does not jump while the number of rows changes.
    this.box.style.minHeight = found ? `${this.box.offsetHeight}px` : "";
    this.table.classList.toggle("found", found !== null);
    this.found = found;
    this.at = -1;
    this.box.scrollTop = 0;
    this.update();
  }

  // Marks a row and brings it into sight.
  mark(at, tell = true) {
    if (at < 0 || at >= this.rows.length) return;
    this.at = at;
    const top = at * ROW, { box } = this, height = box.clientHeight - this.heads[0].offsetHeight;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + ROW > box.scrollTop + height) box.scrollTop = top + ROW - height;
    this.render();
    if (tell) this.onSelect(this.rows[at]);
  }

  // Shows the row of a node, with the groups above it open.
  reveal(node, tell = false) {
    if (this.found) return;
    const view = viewOfNode(node, this.folded);
    for (let above = view.parent; above; above = above.parent) this.expanded.add(above);
    this.update();
    this.mark(this.rows.findIndex((row) => row.view === view), tell);
  }

  onClick(event) {
    const found = event.target.closest("tr[data-at]");
    if (!found) return;
    const at = Number(found.dataset.at), { view } = this.rows[at];
    if (view && hasChildren(view) && (event.target.classList.contains("twist") || event.target.classList.contains("group"))) {
      this.at = at;
      this.toggle(view);
    }
    this.mark(at);
  }

  onKey(event) {
    const item = this.rows[this.at], view = item && item.view, page = Math.max(1, Math.floor(this.box.clientHeight / ROW) - 2);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.rows.length, End: this.rows.length };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) this.mark(Math.max(0, Math.min(this.at + moves[event.key], this.rows.length - 1)));
    else if (event.key === "ArrowRight" && view && hasChildren(view)) this.expanded.has(view) ? this.mark(this.at + 1) : this.toggle(view, true);
    else if (event.key === "ArrowLeft" && view) {
      if (this.expanded.has(view)) this.toggle(view, false);
      else this.mark(this.rows.findIndex((row) => row.view === view.parent));
    } else if (event.key === "Enter" && item) this.onOpen(item);
    else return;
    event.preventDefault();
  }
}

const natural = new Intl.Collator("en", { numeric: true });

// The cells of min, max, std and NaN of tensors taken together.
function numberCells(list) {
  if (!data.stats) return [];
  const rows = list.map((tensor) => data.stats.rows[tensor]).map(([total, nan, infinite, , , min, max, mean, std]) => ({
    nan, min: min ?? NaN, max: max ?? NaN, mean: Number(mean), std: Number(std), count: std === null ? 0 : total - nan - infinite }));
  const sum = (valueOf) => rows.reduce((total, row) => total + valueOf(row), 0);
  const known = (key) => rows.map((row) => Number(row[key])).filter((value) => !Number.isNaN(value));
  const count = sum((row) => row.count), mean = sum((row) => row.count * row.mean) / count;
  const values = { min: known("min").reduce((a, b) => Math.min(a, b), Infinity), max: known("max").reduce((a, b) => Math.max(a, b), -Infinity),
    std: Math.sqrt(sum((row) => row.count * (row.std ** 2 + (row.mean - mean) ** 2)) / count) };
  const nan = sum((row) => row.nan);
  return [...Object.entries(values).map(([name, value]) =>
    el("td", { class: `stat ${name}`, title: Number.isFinite(value) ? String(value) : null }, Number.isFinite(value) ? brief(value) : "")),
  el("td", { class: `stat NaN ${nan ? "bad" : "dim"}` }, rows.length ? (nan < 10000 ? formatCount(nan) : rounded(nan)) : "")];
}

// Three digits, in few characters; small integers whole.
function brief(value) {
  const size = Math.abs(value);
  if (size && (size < 1e-4 || size >= 1e6)) return value.toExponential(1).replace("e+", "e");
  return String(Number.isInteger(value) ? value : Number(value.toPrecision(3)));
}

function badges(list) {
  const found = [];
  if (list.some((tensor) => tensors.flags[tensor] & TIED)) found.push(el("span", { class: "badge" }, "tied"));
  if (data.stats && list.length) {
    const rows = list.map((tensor) => data.stats.rows[tensor]);
    if (rows.some((row) => row[1])) found.push(el("span", { class: "badge bad" }, "NaN"));
    if (rows.some((row) => row[2])) found.push(el("span", { class: "badge bad" }, "inf"));
    if (rows.some((row) => row[0] && row[0] === row[3])) found.push(el("span", { class: "badge warn" }, "zeros"));
  }
  return found;
}
