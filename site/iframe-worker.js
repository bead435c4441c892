// Browsers start no workers from files. There the search runs in a hidden frame instead, so that the site works from a folder.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}));  // what the worker sends
      const script = frame.contentDocument.createElement("script");
      script.src = url;
      this.loaded = new Promise((done, failed) => Object.assign(script, {onload: done, onerror: failed}));
      frame.contentDocument.body.append(script);
    }
    postMessage(data) {
      this.loaded.then(() => this.inner.dispatchEvent(new MessageEvent("message", {data})));
    }
  };
}
