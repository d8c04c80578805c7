// The parts of the page around map and tree.

const VERDICTS = { inert: "good", unknown: "warn", "would execute": "bad" };
const swatch = (colour) => el("i", { class: "swatch", fill: colour, "aria-hidden": "true" });
const chip = (text, kind = "", title = null) => el("span", { class: `chip ${kind}`, title }, text);

function header() {
  const facts = [
    plural(tensorCount, "tensor"),
    `${rounded(Number(data.elements))} elements`,
    formatBytes(Number(data.nbytes)) +
      (Number(data.storage_nbytes) === Number(data.nbytes) ? "" : ` in storages of ${formatBytes(Number(data.storage_nbytes))}`),
    ...(data.files.length > 1 ? [plural(data.files.length, "file")] : []),
  ];
  const chips = data.format ? [chip(data.format)] : [];
  if (data.scan) {
    const title = "what unpickling the files would do, as rustload scan says";
    chips.push(chip(data.scan.verdict, VERDICTS[data.scan.verdict] || "warn", title));
  }
  const faulty = faults();
  if (faulty.length) chips.push(chip(`${plural(faulty.length, "tensor")} to look at`, "warn"));
  return el("header", {}, el("h1", {}, data.name), el("div", { class: "chips" }, chips), el("p", { class: "facts" }, facts.join(" · ")));
}

function dtypeBar() {
  const total = Number(data.nbytes) || 1;
  const colour = (dtype) => colours[data.dtype_names.indexOf(dtype)];
  const bar = el("div", { class: "bar", "aria-hidden": "true" }, data.dtypes.map((one) =>
    el("i", { fill: colour(one.dtype), width: `${(100 * one.nbytes) / total}%`, title: one.dtype })));
  const legend = el("ul", { class: "legend" }, data.dtypes.map((one) => el("li", {}, swatch(colour(one.dtype)),
    el("b", {}, one.dtype), ` ${formatBytes(one.nbytes)} `,
    el("span", { class: "dim" }, `${formatShare(one.nbytes / total)}, ${plural(one.tensors, "tensor")}`))));
  return el("section", { class: "dtypes", "aria-label": "dtypes" }, bar, legend);
}

// A card with a title and a number, whose list is cut until its button is pressed.
function card(title, remark, count, rows, most = 10, wide = false) {
  if (!rows.length) return null;
  const body = el("tbody", {}, rows.slice(0, most).map((cells) => row(cells)));
  const made = el("section", { class: wide ? "card wide" : "card" }, el("h2", {}, title, " ", el("span", { class: "dim" }, formatCount(count))),
    remark ? el("p", { class: "dim remark" }, remark) : null, el("div", { class: "scroll" }, el("table", {}, body)));
  if (rows.length > most) {
    const button = el("button", { onclick: () => {
      rows.slice(most).forEach((cells) => body.append(row(cells)));
      button.remove();
      if (count > rows.length) made.append(el("p", { class: "dim" }, `${formatCount(count - rows.length)} more are not in this page`));
    } }, `show all ${formatCount(rows.length)}`);
    made.append(button);
  }
  return made;
}
const row = (cells) => el("tr", {}, (Array.isArray(cells) ? cells : [cells]).map((cell) => el("td", {}, cell)));

function link(tensor, select) {
  return el("button", { class: "name", onclick: () => select({ tensor }) }, nameOf(tensor));
}

// Tensors with NaN or infinities, or with nothing but zeros.
function faults() {
  if (!data.stats) return [];
  const found = [];
  data.stats.rows.forEach(([total, nan, infinite, zeros], tensor) => {
    const texts = [];
    if (nan) texts.push(`${formatCount(nan)} NaN`);
    if (infinite) texts.push(`${formatCount(infinite)} infinite`);
    if (total && zeros === total) texts.push("only zeros");
    if (texts.length) found.push([tensor, texts.join(", "), nan + infinite > 0]);
  });
  return found.sort((a, b) => b[2] - a[2] || a[0] - b[0]);
}

// The bytes of each module in each file.
function filesCard() {
  if (data.files.length < 2) return null;
  const modules = [...modulesOf(roots.folded)];
  const bytes = data.files.map(() => new Float64Array(modules.length)), counts = new Int32Array(data.files.length);
  let joined = 0;
  for (const [view, module] of modules) {
    for (const node of view.nodes) {
      for (let at = node; at < nodes.end[node]; at++) {
        const tensor = nodes.tensor[at], file = tensors.file[tensor];
        if (tensor < 0) continue;
        if (file >= data.files.length) {
          joined++;
          continue;
        }
        counts[file]++;
        bytes[file][module] += countedBytes(tensor);
      }
    }
  }
  const most = bytes.reduce((found, list) => Math.max(found, list.reduce((sum, one) => sum + one, 0)), 1);
  const rows = data.files.map((file, at) => [
    el("span", { class: "text" }, file.name), el("span", { class: "number" }, file.size === null ? "" : formatBytes(file.size)),
    el("span", { class: "number dim" }, plural(counts[at], "tensor")),
    el("span", { class: "meter stacked" }, modules.map(([view, module]) => bytes[at][module] > 0 &&
      el("i", { fill: module % 10, width: `${(100 * bytes[at][module]) / most}%`, title: `${pathText(view)}: ${formatBytes(bytes[at][module])}` }))),
  ]);
  const remark = `bytes by module, in the colours of the map by module${joined ? `; ${plural(joined, "tensor")} of parts in several files` : ""}`;
  const made = card("Files", remark, data.files.length, rows, 12, true);
  made.classList.add("files");
  return made;
}

// Whether the scan is shown above the map.
function isAlarming() {
  return data.scan !== null && data.scan.verdict !== "inert";
}

function scanCard() {
  if (!data.scan) return null;
  const { scan } = data;
  const table = el("tbody");
  for (const file of scan.files) {
    const shown = file.status === "scanned" ? file.verdict : file.status;
    const all = file.findings.items;
    if (scan.files.length > 12 && shown === "inert" && !all.length) continue;
    table.append(row([el("span", { class: "text" }, file.name),
      el("b", { class: file.status === "scanned" ? VERDICTS[file.verdict] : "dim" }, shown + (file.complete || file.status !== "scanned" ? "" : ", not complete"))]));
    for (const one of all.slice(0, 100)) {
      table.append(el("tr", {}, el("td", { colspan: "2", class: "finding" },
        el("b", { class: one.severity === "error" ? "bad" : one.severity === "warning" ? "warn" : "dim" }, one.severity), ` ${one.what} `,
        el("span", { class: "dim" }, [one.code, one.where, one.times > 1 ? `${formatCount(one.times)} times` : ""].filter(Boolean).join(", ")))));
    }
    if (file.findings.count > 100) table.append(row([el("span", { class: "dim" }, `${formatCount(file.findings.count - 100)} more findings: see rustload scan`)]));
  }
  const remarks = { inert: "Unpickling these files would create data and nothing else.", unknown: "Not everything is known to be only data.",
    "would execute": "Unpickling these files would run code. rustload ran nothing." };
  return el("section", { class: `card ${isAlarming() || scan.files.some((file) => file.findings.count) ? "wide" : ""}` },
    el("h2", {}, "Scan ", el("b", { class: VERDICTS[scan.verdict] }, scan.verdict)),
    el("p", { class: "dim remark" }, scan.error || remarks[scan.verdict]), el("div", { class: "scroll" }, el("table", {}, table)));
}

function cards(select) {
  const ties = data.tied.map((group) => [group.flatMap((tensor, at) => [at ? el("br") : null, link(tensor, select)]),
    el("span", { class: "number" }, formatBytes(kindOf(group[0]).nbytes))]);
  const faulty = faults().map(([tensor, text, isBad]) => [link(tensor, select), el("b", { class: isBad ? "bad" : "warn" }, text)]);
  const texts = (list) => list.items.map((text) => [el("span", { class: "text" }, text)]);
  return el("div", { class: "cards" },
    card("To look at", data.stats && data.stats.sampled ? "in samples of the tensors" : "", faulty.length, faulty),
    filesCard(), isAlarming() ? null : scanCard(),
    card("Tied", "names that share a storage", data.tied.length, ties, 8),
    card("Values", "beside the tensors", data.values.count, data.values.items.map(([name, type, text]) =>
      [el("span", { class: "text" }, name), el("span", { class: "dim" }, type), el("span", { class: "text" }, text)]), 12),
    card("Kept as data", "values of classes that were not built", data.opaque.count, data.opaque.items.map(([name, count, at]) =>
      [el("span", { class: "text" }, name), el("span", { class: "number" }, `${formatCount(count)} ×`),
        el("span", { class: "text dim" }, at.map((one) => one || "the root").join(", "))])),
    card("Named by the pickle", "nothing of it was imported or called", data.globals.count, texts(data.globals), 12),
    card("Metadata", "", data.metadata.count, data.metadata.items.map(([key, text]) =>
      [el("span", { class: "text" }, key), el("span", { class: "text long" }, text)]), 12),
    card("Notes", "", data.notes.count, texts(data.notes)));
}

const fact = (name, value) => (value === null || value === "" ? [] : [el("dt", {}, name), el("dd", {}, value)]);
const short = (number) => (number === null ? "-" : typeof number === "number" && !Number.isInteger(number) ? String(Number(number.toPrecision(5))) : String(number));

// The numbers of a tensor: those in the data, or what reading it finds.
function numbersOf(tensor) {
  if (data.stats) return numbersIn(tensor, data.stats.rows[tensor], data.stats.sampled);
  if (!readNumbers) return null;
  const box = el("div");
  const ask = async (isSample) => {
    box.replaceChildren(el("p", { class: "dim" }, "reading ..."));
    const { row: found, error } = await readNumbers(tensor, isSample);
    box.replaceChildren(error ? failure(error) : numbersIn(tensor, found, true));
    if (found && found[0] < kindOf(tensor).elements) box.append(el("button", { onclick: () => ask(false) }, "read all numbers"));
  };
  ask(true);
  return box;
}

const failure = ({ code, text, next }) => el("div", { class: "failure" }, el("p", {}, el("b", { class: "bad" }, code), " ", el("span", { class: "text" }, text)),
  next ? el("p", { class: "dim" }, next) : null);

function numbersIn(tensor, [total, nan, infinite, zeros, subnormal, min, max, mean, std, bars], sampled) {
  if (!total) return el("p", { class: "dim" }, "no numbers");
  const share = (count) => `${formatCount(count)} (${formatShare(count / total)})`;
  const made = el("div", { class: "numbers" }, el("h3", {}, "Numbers"));
  if (bars) {
    const heights = [...bars].map((char) => "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_".indexOf(char));
    const chart = el("div", { class: "chart", role: "img", "aria-label": `histogram from ${short(min)} to ${short(max)}` }, heights.map(() => el("i")));
    heights.forEach((height, at) => { chart.children[at].style.height = `${(100 * height) / 63}%`; });
    made.append(chart, el("div", { class: "axis" }, el("span", {}, short(min)), el("span", {}, short(max))));
  }
  made.append(el("dl", {}, fact("min, max", `${short(min)}, ${short(max)}`), fact("mean, std", `${short(mean)}, ${short(std)}`),
    fact("zeros", share(zeros)), fact("subnormal", subnormal ? share(subnormal) : ""),
    fact("NaN", nan ? el("b", { class: "bad" }, share(nan)) : ""), fact("infinite", infinite ? el("b", { class: "bad" }, share(infinite)) : ""),
    fact("read", `${formatCount(total)}${sampled && total < kindOf(tensor).elements ? " in a sample" : ""}`)));
  return made;
}

// What is shown of the chosen row or tensor.
function details(chosen, select, zoom) {
  const { view, tensor } = chosen;
  const total = Number(data.nbytes) || 1;
  if (tensor === undefined) {
    const members = isTensor(view) ? tensorsOf(view) : [];
    const dtypes = new Map();
    for (const node of view.nodes) {
      for (let at = node; at < nodes.end[node]; at++) {
        const one = nodes.tensor[at];
        if (one >= 0 && !(tensors.flags[one] & REPEATS)) dtypes.set(kindOf(one).dtype, (dtypes.get(kindOf(one).dtype) || 0) + kindOf(one).nbytes);
      }
    }
    return [el("h2", { class: "path" }, view.parent ? pathText(view) : data.name),
      el("dl", {}, members.length ? [fact("dtype", dtypeOf(members[0])), fact("shape", shapeText(members[0]))] : [],
        fact("tensors", formatCount(view.count)), fact("size", `${formatBytes(view.bytes)} (${formatShare(view.bytes / total)})`),
        view.nodes.length > 1 ? fact("each", formatBytes(members.length ? kindOf(members[0]).nbytes : view.bytes / view.nodes.length)) : [],
        fact("bytes", formatCount(view.bytes))),
      members.length || dtypes.size < 2 ? null : el("ul", { class: "legend stacked" }, [...dtypes].sort((a, b) => b[1] - a[1]).map(([dtype, nbytes]) =>
        el("li", {}, swatch(colours[dtype]), el("b", {}, data.dtype_names[dtype]), ` ${formatBytes(nbytes)}`))),
      hasChildren(view) ? [el("h3", {}, "Largest parts"), el("ul", { class: "parts" }, [...modulesOf(view).keys()].map((part) =>
        el("li", {}, el("button", { class: "name", title: pathText(part), onclick: () => select({ view: part }) }, part.label || '""'),
          el("span", { class: "number" }, formatBytes(part.bytes)))))] : null,
      view.parent && hasChildren(view) ? el("button", { onclick: () => zoom(view) }, "show in the map") : null,
      members.length > 1 ? el("div", {}, el("h3", {}, `${formatCount(members.length)} tensors`),
        el("ul", { class: "members" }, members.slice(0, 200).map((one) => el("li", {}, link(one, select)))),
        members.length > 200 ? el("p", { class: "dim" }, `and ${formatCount(members.length - 200)} more`) : null) : null];
  }
  const kind = kindOf(tensor), flags = tensors.flags[tensor], file = data.files[tensors.file[tensor]];
  const others = (tiesOf.get(tensor) || []).filter((one) => one !== tensor);
  const name = nameOf(tensor);
  const copy = el("button", { onclick: () => {
    const done = () => { copy.textContent = "copied"; };
    // Where there is no clipboard, as in some pages from disk, the name is selected.
    const fall = () => getSelection().selectAllChildren(heading);
    if (navigator.clipboard) navigator.clipboard.writeText(name).then(done, fall);
    else fall();
  } }, "copy name");
  const heading = el("h2", { class: "path" }, name);
  return [heading,
    el("dl", {}, fact("dtype", [swatch(colours[kind.dtype]), dtypeOf(tensor)]), fact("shape", shapeText(tensor)),
      fact("elements", formatCount(kind.elements)),
      fact("size", `${formatBytes(kind.nbytes)} (${formatShare(kind.nbytes / total)})`), fact("bytes", formatCount(kind.nbytes)),
      kind.strides ? fact("strides", `[${kind.strides.join(", ")}]`) : [],
      fact("file", file ? file.name : data.files.length ? "joined from parts in several files" : ""),
      fact("storage", `number ${formatCount(tensors.storage[tensor])}${tensors.offset[tensor] ? `, from element ${formatCount(tensors.offset[tensor])}` : ""}`),
      fact("kind", flags & PARAMETER ? "parameter" : ""), fact("counted", flags & REPEATS ? "with an earlier name of the same tensor" : "")),
    copy,
    others.length ? el("div", {}, el("h3", {}, "Shares its storage with"), el("ul", { class: "members" }, others.slice(0, 200).map((one) => el("li", {}, link(one, select))))) : null,
    numbersOf(tensor)];
}
