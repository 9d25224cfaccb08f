"""OpenResponses' compliance tests, on ours: `python -m tests.conformance.openresponses FOLDER`.

The folder is OpenResponses' sources. Its tests are TypeScript: they are bundled by esbuild, with
the package zod that their schemas need, and run by Node. The server is the demo model without
thoughts, whose events in a stream have OpenAI's names, which are not those of OpenResponses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.clients.environments import node_with
from tests.conformance.pool import ServerPool, template_without_thoughts
from tests.conformance.sorting import print_sorted

MODEL = "demo"
TESTS_S = 300.0
ENTRY = """
import { runAllTests } from "./src/lib/compliance-tests";
const [baseUrl, model] = process.argv.slice(2);
const auth = { apiKey: "none", authHeaderName: "Authorization", useBearerPrefix: true };
const results = await runAllTests({ baseUrl, model, ...auth }, () => {});
console.log(JSON.stringify(results));
"""


def bundled(folder: Path, packages: Path, parent: Path) -> Path:
    """The tests as one program for Node."""
    program = parent / "tests.mjs"
    command = [f"{packages}/node_modules/.bin/esbuild", "--bundle", "--platform=node"]
    command += ["--format=esm", "--loader=ts", "--log-level=warning", f"--outfile={program}"]
    environment = os.environ | {"NODE_PATH": str(packages / "node_modules")}
    subprocess.run(command, input=ENTRY, text=True, cwd=folder, env=environment, check=True)
    return program


def main(folder: Path) -> int:
    """Run the tests, and print what each says of its failure; returns how many are unsorted."""
    packages = node_with("zod@3", "esbuild")
    with tempfile.TemporaryDirectory() as parent:
        program = bundled(folder, packages, Path(parent))
        os.chdir(parent)  # the servers' log
        pool = ServerPool()
        try:
            template = template_without_thoughts(Path(parent))
            flags = ["--served-model-name", MODEL, "--chat-template", str(template)]
            server = pool.server(flags)
            command = ["node", str(program), f"{server.url}/v1", MODEL]
            printed = subprocess.run(command, capture_output=True, check=True, timeout=TESTS_S)
        finally:
            pool.close()
        results: list[dict[str, Any]] = json.loads(printed.stdout)
    for result in results:
        for error in result.get("errors") or ():
            print(f"{result['id']}: {error[:300]}")
    return print_sorted("openresponses", [(own["id"], own["status"]) for own in results])


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1]).resolve()), 255))
