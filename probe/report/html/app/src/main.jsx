import { render } from "preact";
import { App } from "./app.jsx";
import { Report, unpacked } from "./model.js";
import { Run } from "./run.js";

const root = document.getElementById("app");
unpacked(document.getElementById("data").textContent)
  .then((doc) => {
    root.replaceChildren();
    render(<App report={doc.run ? new Run(doc) : new Report(doc)} />, root);
    requestAnimationFrame(() => setTimeout(() => {
      performance.mark("shown");
      root.dataset.state = "shown";
    }));
  })
  .catch((failure) => {
    root.textContent = `This report cannot be shown: ${failure.message}`;
    throw failure;
  });
