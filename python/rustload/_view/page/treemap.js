// The treemap on a canvas: squarified (Bruls, Huizing, van Wijk 2000), as in treemap.py.

function squarify(sizes, x, y, width, height) {
  const out = [];
  let left = sizes.reduce((sum, size) => sum + size, 0), start = 0;
  while (start < sizes.length && left > 0 && width > 0 && height > 0) {
    const short = Math.min(width, height), scale = (width * height) / left;
    let total = 0, worst = Infinity, end = start;
    while (end < sizes.length) {
      const thick = ((total + sizes[end]) * scale) / short;
      const ratio = Math.max((sizes[start] * scale) / thick / thick, (thick * thick) / (sizes[end] * scale));
      if (ratio > worst) break;
      total += sizes[end];
      worst = ratio;
      end++;
    }
    const thick = (total * scale) / short;
    let along = 0;
    for (; start < end; start++) {
      const length = (sizes[start] / total) * short;
      out.push(width >= height ? [x, y + along, thick, length] : [x + along, y, length, thick]);
      along += length;
    }
    if (width >= height) x += thick, width -= thick;
    else y += thick, height -= thick;
    left -= total;
  }
  while (out.length < sizes.length) out.push([x, y, 0, 0]);
  return out;
}

// The modules that have colours: the largest is divided as long as it has more than half of all bytes, into up to ten in all,
// or into the parts of the root however many they are.
function modulesOf(root) {
  let found = [root];
  for (;;) {
    found.sort((a, b) => b.bytes - a.bytes);
    const parts = childViews(found[0]).filter((view) => view.bytes > 0);
    if (!parts.length || found[0].bytes <= root.bytes / 2 || (found.length > 1 && found.length - 1 + parts.length > 10)) return new Map(found.map((view, at) => [view, at]));
    found = [...parts, ...found.slice(1)];
  }
}

const HEAD = 19, GAP = 2, SMALLEST = 5;

class Treemap {
  constructor(canvas) {
    this.canvas = canvas;
    // Where nearly all bytes are of one dtype, its colour would tell little.
    this.mode = data.dtypes.length && data.dtypes[0].nbytes > 0.9 * Number(data.nbytes) ? "module" : "dtype";
    this.root = roots.folded;
    this.selected = null;
    this.boxes = [];
  }

  // By files, equal layers may differ, so nothing is folded.
  get folded() {
    return this.mode !== "file";
  }

  show(root) {
    this.root = root;
    this.draw();
  }

  colourOf(view) {
    if (this.mode === "module") {
      for (let at = view; at; at = at.parent) if (this.modules.has(at)) return this.modules.get(at) % this.fills.length;
    }
    while (!isTensor(view)) {
      view = childViews(view).reduce((most, child) => (child.bytes > most.bytes ? child : most));
    }
    const tensor = nodes.tensor[view.nodes[0]];
    return this.mode === "file" ? tensors.file[tensor] % this.fills.length : colours[kindOf(tensor).dtype];
  }

  draw() {
    const { canvas } = this, style = getComputedStyle(canvas);
    const width = canvas.clientWidth, height = canvas.clientHeight, ratio = window.devicePixelRatio || 1;
    if (!width || !height) return;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const pen = (this.pen = canvas.getContext("2d"));
    pen.scale(ratio, ratio);
    this.fills = Array.from({ length: 10 }, (_, at) => style.getPropertyValue(`--c${at}`).trim());
    this.ink = style.getPropertyValue("--ink").trim();
    this.text = style.getPropertyValue("--text").trim();
    this.group = style.getPropertyValue("--group").trim();
    this.font = style.fontFamily;
    this.accent = style.getPropertyValue("--accent").trim();
    this.boxes = [];
    this.modules = modulesOf(this.root);
    pen.clearRect(0, 0, width, height);
    if (hasChildren(this.root)) this.drawChildren(this.root, 0, 0, width, height, 0);
    else this.drawLeaf(this.root, 0, 0, width, height);
    this.outline(this.selected);
  }

  drawChildren(view, x, y, width, height, level) {
    const children = childViews(view).filter((child) => child.bytes > 0);
    children.sort((a, b) => b.bytes - a.bytes);
    const rects = squarify(children.map((child) => child.bytes), x, y, width, height);
    children.forEach((child, at) => this.drawView(child, ...rects[at], level));
  }

  drawView(view, x, y, width, height, level) {
    // The gap between neighbours, on whole pixels.
    const right = Math.round(x + width), bottom = Math.round(y + height);
    x = Math.round(x);
    y = Math.round(y);
    width = right - x - 1;
    height = bottom - y - 1;
    if (width < 1 || height < 1) return;
    const inner = width - 2 * GAP, below = height - HEAD - GAP;
    if (!hasChildren(view) || inner < 3 * SMALLEST || below < 2 * SMALLEST) {
      this.drawLeaf(view, x, y, width, height);
      return;
    }
    this.boxes.push({ view, x, y, width, height });
    this.pen.fillStyle = this.group;
    this.pen.fillRect(x, y, width, height);
    this.label(view, x + 5, y + HEAD / 2 + 0.5, width - 9, this.text, true);
    this.drawChildren(view, x + GAP, y + HEAD, inner + 1, below + 1, level + 1);
  }

  drawLeaf(view, x, y, width, height) {
    const { pen } = this;
    this.boxes.push({ view, x, y, width, height });
    pen.fillStyle = this.fills[this.colourOf(view)];
    pen.fillRect(x, y, width, height);
    if (isTensor(view) && tensors.flags[nodes.tensor[view.nodes[0]]] & TIED) this.hatch(x, y, width, height);
    if (height < 15 || width < 26) return;
    if (height < 34 || width < 60) {
      this.label(view, x + 5, y + Math.min(height / 2, 11) + 0.5, width - 9, this.ink, false, height < 34);
      return;
    }
    this.label(view, x + 5, y + 11, width - 9, this.ink, false);
    const size = formatBytes(view.bytes), many = view.nodes.length;
    const each = many > 1 && isTensor(view) ? `${size} = ${formatCount(many)} × ${formatBytes(view.bytes / many)}` : size;
    pen.font = `11px ${this.font}`;
    const text = [each, size].find((one) => pen.measureText(one).width < width - 9);
    if (text) pen.fillText(text, x + 5, y + 26);
  }

  hatch(x, y, width, height) {
    const { pen } = this;
    pen.save();
    pen.beginPath();
    pen.rect(x, y, width, height);
    pen.clip();
    pen.strokeStyle = this.ink;
    pen.globalAlpha = 0.16;
    pen.lineWidth = 2;
    pen.beginPath();
    for (let at = -height; at < width; at += 9) pen.moveTo(x + at, y + height), pen.lineTo(x + at + height, y);
    pen.stroke();
    pen.restore();
  }

  // The name, and the size where there is room behind it.
  label(view, x, y, width, colour, isGroup, withSize = isGroup) {
    const { pen } = this;
    pen.fillStyle = colour;
    pen.textBaseline = "middle";
    pen.font = `${isGroup ? "600 " : ""}12px ${this.font}`;
    let name = (view.label || '""').slice(0, 300);
    const full = pen.measureText(name).width;
    if (full > width) {
      let low = 0, high = name.length;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (pen.measureText(`${name.slice(0, middle)}…`).width <= width) low = middle;
        else high = middle - 1;
      }
      if (low < 2) return;
      name = `${name.slice(0, low)}…`;
    }
    pen.fillText(name, x, y);
    if (!withSize) return;
    const size = formatBytes(view.bytes);
    pen.font = `11px ${this.font}`;
    const room = width - full - 10;
    if (pen.measureText(size).width > room) return;
    pen.fillText(size, x + width - pen.measureText(size).width, y);
  }

  outline(view) {
    const box = view && this.boxes.find((one) => one.view === view);
    if (!box) return;
    this.pen.strokeStyle = this.accent;
    this.pen.lineWidth = 3;
    this.pen.strokeRect(box.x + 1.5, box.y + 1.5, Math.max(box.width - 3, 1), Math.max(box.height - 3, 1));
  }

  // The innermost box at a place.
  boxAt(x, y) {
    for (let at = this.boxes.length - 1; at >= 0; at--) {
      const box = this.boxes[at];
      if (x >= box.x && y >= box.y && x <= box.x + box.width && y <= box.y + box.height) return box;
    }
    return null;
  }
}
