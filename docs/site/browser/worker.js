// Runs the WebAssembly module in a worker, where a file can be read by slices while the module waits.

const reader = new FileReaderSync();
let module, exports, file;

// The bytes at an offset, written to the module's memory; whether all of them were.
function read(offset, start, length) {
  try {
    const bytes = new Uint8Array(reader.readAsArrayBuffer(file.slice(offset, offset + (length >>> 0))));
    if (bytes.length !== length >>> 0) return 0;
    new Uint8Array(exports.memory.buffer).set(bytes, start >>> 0);
    return 1;
  } catch {
    return 0;
  }
}

function answer() {
  const start = exports.answer_start() >>> 0, length = exports.answer_len() >>> 0;
  return JSON.parse(new TextDecoder().decode(new Uint8Array(exports.memory.buffer, start, length)));
}

onmessage = ({ data: { number, wasm, opened, tensor, isSample } }) => {
  try {
    if (wasm) {
      module = new WebAssembly.Module(wasm);
      return;
    }
    if (opened) {
      // An instance for each file: what an earlier one has left in memory goes with it.
      file = opened;
      ({ exports } = new WebAssembly.Instance(module, { page: { read } }));
      exports.describe(file.size);
    } else exports.numbers(tensor, isSample);
    postMessage({ number, found: answer() });
  } catch (error) {
    postMessage({ number, found: { error: { code: "Stopped", text: String(error), next: "report a bug of rustload" } } });
  }
};
