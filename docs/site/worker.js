// Lets the search work in pages that were opened from a folder, where browsers refuse to start workers: the worker's script runs in a hidden
// frame instead. Pages from a server use real workers.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html><title>search</title>";
      this.frame.onload = () => this.start(new URL(url, location.href).href);
      document.body.append(this.frame);
    }

    start(url) {
      this.frame.onload = null;
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data: structuredClone(data) });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      inside.importScripts = (...urls) => urls.forEach((each) => this.load(each));
      this.load(url, () => {
        this.inside = inside;
        this.waiting.splice(0).forEach((data) => this.deliver(data));
      });
    }

    load(url, then) {
      const script = this.frame.contentDocument.createElement("script");
      script.src = url;
      script.onload = then || null;
      this.frame.contentDocument.head.append(script);
    }

    deliver(data) {
      const event = new this.inside.MessageEvent("message", { data });
      setTimeout(() => this.inside.dispatchEvent(event)); // not within the sender's call
    }

    postMessage(data) {
      const copy = structuredClone(data); // as a worker gets it
      if (this.inside) this.deliver(copy);
      else this.waiting.push(copy);
    }

    terminate() {
      this.frame.remove();
    }
  };
}
