// Builds ../page.html, or the file that is named: style and script inside, each allowed by its hash and nothing else.

import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, "..", "page.html");

async function bundled(entry) {
  const result = await build({
    entryPoints: [join(here, "src", entry)],
    absWorkingDir: here,
    bundle: true,
    minify: true,
    write: false,
    format: "iife",
    target: "es2022",
    jsx: "automatic",
    jsxImportSource: "preact",
    legalComments: "inline",
    charset: "ascii",
  });
  return result.outputFiles[0].text.trim();
}

const hash = (text) => `sha256-${createHash("sha256").update(text).digest("base64")}`;
const script = (await bundled("main.jsx")).replaceAll("</script", "<\\/script");
const style = await bundled("style.css");
const parts = { "script-hash": hash(script), "style-hash": hash(style), style, script };
const page = readFileSync(join(here, "src", "page.html"), "utf8");
writeFileSync(target, page.replace(/<!--([a-z-]+)-->/g, (whole, name) => parts[name] ?? whole));
