// Browsers start no worker from file://. There, what asks for a worker gets a hidden frame that runs the same script.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = (data) => setTimeout(() => this.dispatchEvent(new MessageEvent("message", { data })))
      this.started = new Promise((resolve) => {
        const script = inside.document.createElement("script")
        script.src = url
        script.onload = () => resolve(inside)
        inside.document.body.append(script)
      })
    }
    postMessage(data) {
      this.started.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })))
    }
  }
}
