import { render } from "preact";
import { App } from "./app.jsx";
import { flowOf } from "./graph/graph.jsx";
import { Report, unpacked, whenIdle } from "./model.js";
import { Run } from "./run.js";

const root = document.getElementById("app");
const SMALL = 4e6; // characters of a part of the document that take no time
unpacked("data")
  .then(async (doc) => {
    const report = doc.run ? new Run(doc) : new Report(doc);
    if (!report.isDetailed && document.getElementById("details").textContent.length < SMALL) await report.detailed(true);
    root.replaceChildren();
    render(<App report={report} />, root);
    requestAnimationFrame(() => setTimeout(() => {
      performance.mark("shown");
      root.dataset.state = "shown";
      if (doc.flow) whenIdle(() => flowOf(report)); // for the graph, which is opened next
    }));
  })
  .catch((failure) => {
    root.textContent = `This report cannot be shown: ${failure.message}`;
    throw failure;
  });
