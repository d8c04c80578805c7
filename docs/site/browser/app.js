// The page for browsers: a dropped file is opened in a worker, and shown as `rustload view` shows it. Nothing is sent anywhere.

const parts = JSON.parse(document.getElementById("data").textContent);
const none = { count: 0, items: [] };
const EMPTY = {
  rustload: parts.version, format: "", elements: 0, nbytes: 0, storage_nbytes: 0, dtypes: [], labels: [], roots: 0, nodes: [], folds: [],
  fold: [], dtype_names: [], kinds: [], kind: [], file: [], storage: [], offset: [], flags: [], tied: [], values: none, opaque: none,
  globals: none, metadata: none, notes: none, scan: null, stats: null,
};

// The worker's script is in this page: the policy makes no other address of a script.
const url = URL.createObjectURL(new Blob([parts.worker], { type: "text/javascript" }));
const policy = window.trustedTypes && trustedTypes.createPolicy("rustload", { createScriptURL: () => url });
const worker = new Worker(policy ? policy.createScriptURL("") : url);
const waiting = new Map();
let asked = 0;

worker.onmessage = ({ data: { number, found } }) => {
  waiting.get(number)?.(found);
  waiting.delete(number);
};

async function start() {
  const packed = Uint8Array.from(atob(parts.wasm), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const wasm = await new Response(stream).arrayBuffer();
  worker.postMessage({ wasm }, [wasm]);
}
const ready = start();

async function ask(question) {
  await ready;
  return new Promise((resolve) => {
    waiting.set(++asked, resolve);
    worker.postMessage({ number: asked, ...question });
  });
}

let shown = null;
async function open(file) {
  if (!file) return;
  if (shown) shown.abort();
  const { signal } = (shown = new AbortController());
  status.textContent = "opening ...";
  const begun = performance.now();
  const found = await ask({ opened: file });
  if (signal.aborted) return;
  // What has no form could reorder the line.
  const name = file.name.replace(/\p{C}/gu, "�");
  for (const one of found.scan ? found.scan.files : []) one.name = name;
  document.getElementById("app").replaceChildren();
  show({ ...EMPTY, ...found, name, files: [{ name, size: file.size }] },
    { signal, readNumbers: (tensor, isSample) => ask({ tensor, isSample }) });
  document.title = `${name} - rustload view`;
  status.textContent = `${formatted(performance.now() - begun)}; drop another file`;
}
const formatted = (milliseconds) => `opened in ${(milliseconds / 1000).toFixed(milliseconds < 1000 ? 2 : 1)} s`;

const input = el("input", { type: "file", id: "file", onchange: () => open(input.files[0]) });
const status = el("span", { class: "dim", role: "status" }, "It stays on this machine: nothing is uploaded.");
const drop = el("div", { class: "drop" }, el("label", { for: "file" }, "Drop a checkpoint here, or choose a file"), input, status);
document.body.prepend(drop);
document.documentElement.classList.add("ready");
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", kind === "dragenter" || kind === "dragover");
    if (kind === "drop") open(event.dataTransfer.files[0]);
  });
}
