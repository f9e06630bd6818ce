"""The cells of docs/notebooks.md run in a real kernel, one after the other, and say what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
from kernels import environment_in

# In a process of its own, as a program that runs notebooks is.
EXECUTE = """
import sys, nbformat, nbclient
notebook = nbformat.read(sys.argv[1], 4)
try:
    nbclient.NotebookClient(notebook, timeout=60).execute()
finally:
    nbformat.write(notebook, sys.argv[1])
"""


def test_every_cell_of_the_page(root: Path, tmp_path: Path) -> None:
    cells = re.findall(r"```python\n(.*?)```", (root / "docs" / "notebooks.md").read_text(), re.DOTALL)
    assert len(cells) > 5
    cells = [cell.replace("num_workers=2)", "num_workers=2, base_port=0)") for cell in cells]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    path = tmp_path / "notebook.ipynb"
    nbformat.write(notebook, path)
    command, environment = [sys.executable, "-c", EXECUTE, path], environment_in(tmp_path)
    done = subprocess.run(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    notebook = nbformat.read(path, 4)
    for cell in notebook.cells:
        shown = [
            output["text"].splitlines() if output["output_type"] == "stream" else [output["data"]["text/plain"]]
            for output in cell.outputs
            if output.get("name") != "stderr"
        ]
        promised = re.findall(r"  # (\S.*)$", cell.source, re.MULTILINE)
        assert [line for lines in shown for line in lines if re.match(r"[\d\[]", line)] == [
            text for text in promised if re.fullmatch(r"[\d\[].*", text)
        ], cell.source
    [shouted] = [cell for cell in notebook.cells if "def shout" in cell.source]
    assert sorted(shouted.outputs[0]["text"].splitlines()) == [f"task {n} of a worker" for n in range(3)]
    [table] = [cell for cell in notebook.cells if cell.source.strip() == "pool"]
    assert "<table>" in table.outputs[0]["data"]["text/html"]
    [bar] = [cell for cell in notebook.cells if "progress=True" in cell.source]
    assert "100/100" in bar.outputs[-1]["text"]
