// Reads the data, and makes the tree of names of it, folded as `rustload info` folds it or not.

const colours = data.dtype_names.map((dtype) => (COLOURS.find(([start]) => dtype.startsWith(start)) || [])[1] ?? OTHER);
const PARAMETER = 1, TIED = 2, REPEATS = 4;

// Differences of neighbours in runs: difference, length, ...
function fromRuns(runs, length) {
  const out = new Float64Array(length);
  let at = 0, value = 0;
  for (let i = 0; i < runs.length; i += 2) {
    for (let n = runs[i + 1]; n > 0; n--) out[at++] = value += Number(runs[i]);
  }
  return out;
}

const tensorCount = data.kind.length;
const tensors = {
  kind: data.kind,
  file: fromRuns(data.file, tensorCount),
  storage: fromRuns(data.storage, tensorCount),
  offset: fromRuns(data.offset, tensorCount),
  flags: fromRuns(data.flags, tensorCount),
};
const kinds = data.kinds.map(([dtype, shape, strides, nbytes]) => ({
  dtype, shape, strides,
  nbytes: Number(nbytes),
  elements: shape.reduce((product, size) => product * Number(size), 1),
}));
const kindOf = (tensor) => kinds[tensors.kind[tensor]];
const dtypeOf = (tensor) => data.dtype_names[kindOf(tensor).dtype];
const shapeText = (tensor) => `[${kindOf(tensor).shape.join(", ")}]`;
// Names of one tensor count once.
const countedBytes = (tensor) => (tensors.flags[tensor] & REPEATS ? 0 : kindOf(tensor).nbytes);
const tiesOf = new Map();
for (const group of data.tied) for (const tensor of group) tiesOf.set(tensor, group);

// The nodes of names in preorder: node 0 is the root, and the nodes below one are those up to its `end`.
const nodeCount = data.nodes.length / 2 + 1;
const nodes = {
  label: new Int32Array(nodeCount),
  parent: new Int32Array(nodeCount).fill(-1),
  end: new Int32Array(nodeCount),
  tensor: new Int32Array(nodeCount).fill(-1),
  fold: new Int32Array(nodeCount),
  bytes: new Float64Array(nodeCount),
  count: new Int32Array(nodeCount),
};
const nodeOfTensor = new Int32Array(tensorCount);

(function readNodes() {
  const folds = fromRuns(data.fold, nodeCount - 1);
  const open = [[0, data.roots]];
  let tensor = 0;
  for (let node = 1; node < nodeCount; node++) {
    while (open[open.length - 1][1] === 0) open.pop();
    const above = open[open.length - 1];
    above[1] -= 1;
    const shape = data.nodes[2 * node - 1];
    nodes.label[node] = data.nodes[2 * node - 2];
    nodes.parent[node] = above[0];
    nodes.fold[node] = folds[node - 1];
    if (shape & 1) {
      nodes.tensor[node] = tensor;
      nodes.bytes[node] = countedBytes(tensor);
      nodes.count[node] = 1;
      nodeOfTensor[tensor++] = node;
    }
    open.push([node, shape >> 1]);
  }
  for (let node = nodeCount - 1; node >= 0; node--) {
    if (nodes.end[node] === 0) nodes.end[node] = node + 1;
    const parent = nodes.parent[node];
    if (parent < 0) continue;
    nodes.end[parent] = Math.max(nodes.end[parent], nodes.end[node]);
    nodes.bytes[parent] += nodes.bytes[node];
    nodes.count[parent] += nodes.count[node];
  }
})();

function* childNodes(node) {
  for (let child = node + 1; child < nodes.end[node]; child = nodes.end[child]) yield child;
}

function nameOfNode(node) {
  const parts = [];
  for (; node > 0; node = nodes.parent[node]) parts.push(data.labels[nodes.label[node]]);
  return parts.reverse().join(".");
}
const nameOf = (tensor) => nameOfNode(nodeOfTensor[tensor]) || '""';

// A row of the tree: one node, or the nodes of equal subtrees that are folded together.
function makeView(label, members, parent, folded = parent.folded) {
  let bytes = 0, count = 0;
  for (const node of members) {
    bytes += nodes.bytes[node];
    count += nodes.count[node];
  }
  const times = parent ? members.length / parent.nodes.length : 1;
  return { label, nodes: members, parent, folded, bytes, count, times, depth: parent ? parent.depth + 1 : 0 };
}

// The label and the nodes of each child.
function childGroups(view) {
  const groups = new Map(), out = [];
  for (const child of childNodes(view.nodes[0])) {
    const fold = view.folded ? nodes.fold[child] : 0;
    if (fold && groups.has(fold)) {
      groups.get(fold).push(child);
      continue;
    }
    const members = [child];
    if (fold) groups.set(fold, members);
    out.push([fold ? data.folds[fold - 1] : data.labels[nodes.label[child]], members]);
  }
  for (const [, members] of out) {
    if (members.length > 1) members.sort((a, b) => data.labels[nodes.label[a]] - data.labels[nodes.label[b]]);
  }
  const models = out.map(([, members]) => members.slice());
  // Folded subtrees have the same names inside.
  for (const node of view.nodes.slice(1)) {
    const named = new Map();
    for (const child of childNodes(node)) named.set(nodes.label[child], child);
    models.forEach((members, at) => {
      for (const model of members) {
        const child = named.get(nodes.label[model]);
        if (child !== undefined) out[at][1].push(child);
      }
    });
  }
  return out;
}

// The rows below a row; a group that has nothing but one row is joined with it.
function childViews(view) {
  if (view.children) return view.children;
  view.children = childGroups(view).map(([label, members]) => {
    for (;;) {
      if (nodes.tensor[members[0]] >= 0) break;
      const inner = childGroups({ nodes: members, folded: view.folded });
      if (inner.length !== 1) break;
      label += `.${inner[0][0]}`;
      members = inner[0][1];
    }
    return makeView(label, members, view);
  });
  return view.children;
}

const isTensor = (view) => nodes.tensor[view.nodes[0]] >= 0;
const hasChildren = (view) => nodes.end[view.nodes[0]] > view.nodes[0] + 1;
const tensorsOf = (view) => view.nodes.map((node) => nodes.tensor[node]);
const roots = { folded: makeView("", [0], null, true), plain: makeView("", [0], null, false) };

// The row that has a node.
function viewOfNode(node, folded) {
  const path = new Set();
  for (let at = node; at >= 0; at = nodes.parent[at]) path.add(at);
  let view = folded ? roots.folded : roots.plain;
  while (!view.nodes.includes(node)) {
    const next = childViews(view).find((child) => child.nodes.some((at) => path.has(at)));
    if (!next) break;
    view = next;
  }
  return view;
}

function pathOf(view) {
  const path = [];
  for (; view; view = view.parent) path.push(view);
  return path.reverse();
}
const pathText = (view) => pathOf(view).slice(1).map((one) => one.label).join(".") || '""';

function formatBytes(nbytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (nbytes >= 1024 && at < units.length - 1) nbytes /= 1024, at++;
  // Half to even, as Python rounds, so that the page says what `rustload info` says.
  const tenths = nbytes * 10, low = Math.floor(tenths), rest = tenths - low;
  const number = rest > 0.5 || (rest === 0.5 && low % 2) ? low + 1 : low;
  return `${at ? (number / 10).toFixed(1) : nbytes.toFixed(0)} ${units[at]}`;
}
const formatCount = (number) => Number(number).toLocaleString("en-US");
const plural = (number, noun) => `${formatCount(number)} ${noun}${Number(number) === 1 ? "" : "s"}`;
function formatShare(share) {
  if (share > 0 && share < 0.001) return "<0.1%";
  return `${(share < 1 ? Math.min(share * 100, 99.9) : 100).toFixed(1)}%`;
}
function rounded(number) {
  for (const [unit, power] of [["T", 1e12], ["B", 1e9], ["M", 1e6]]) {
    if (number >= power) return `${(number / power).toFixed(1)} ${unit}`;
  }
  return formatCount(number);
}
