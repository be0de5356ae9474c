#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Copy the project's pages to where MkDocs reads them, and make the references.

stage.py PAGES EBIN     PAGES is a folder that is made anew; EBIN has the compiled modules of Elixir

Pages keep their places, so that links between them work. A link to a file that is no page and no picture becomes plain text.
Manual pages become Markdown, Elixir's reference comes from its compiled documentation, and Python's from docstrings.
"""

from pathlib import Path
import os
import re
import shutil
import subprocess
import sys

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests"))
import tree

LINK = re.compile(r"\[([^]]*)\]\(([^)\s]+)\)")
PYTHON_PAGES = {
    "tmesh": "tmesh",
    "tmesh.torch": "tmesh.torch",
    "tmesh.arrow": "tmesh.arrow",
    "tmesh.safetensors": "tmesh.safetensors",
    "tmesh.engine": "tmesh.engine",
    "tmesh.generate": "tmesh.generate",
    "tmesh.cuda": "tmesh.cuda",
    "tmesh.net": "tmesh.net",
    "tmesh.errors": "tmesh.errors",
}
# Elixir: one page for each module that has documentation.
ELIXIR = """
[ebin, out] = System.argv()
for file <- Path.wildcard(Path.join(ebin, "Elixir.Tmesh*.beam")) do
  module = file |> Path.basename(".beam") |> String.to_atom()
  with {:docs_v1, _, _, _, %{"en" => text}, _, docs} <- Code.fetch_docs(file) do
    functions =
      for {{kind, _, _}, _, [signature | _], %{"en" => doc}, _} <- Enum.sort(docs), kind in [:function, :macro, :callback, :type] do
        "## `" <> signature <> "`\\n\\n" <> doc <> "\\n"
      end
    File.write!(Path.join(out, inspect(module) <> ".md"), ["# ", inspect(module), "\\n\\n", text, "\\n\\n", functions])
  end
end
"""


def page_names():
    return [path.relative_to(TOP) for path in tree.files(".md")]


def without_links_to_files(text, name, names):
    def link(match):
        target = match[2].partition("#")[0]
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        there = Path(os.path.normpath(name.parent / target))
        if there in names:
            return match[0]
        return match[1]

    return LINK.sub(link, text)


def manual_page(text):
    """Turn scdoc's markup into Markdown; both write headings, lists and literal blocks alike."""
    title, _, body = text.partition("\n")
    parts = re.split(r"(```.*?```)", body, flags=re.DOTALL)
    for i in range(0, len(parts), 2):
        plain = "\n".join(line for line in parts[i].split("\n") if not line.startswith(";"))
        plain = re.sub(r"\\(.)", r"\1", plain).replace("[", "\\[")
        plain = re.sub(r"(?<![\w*])\*([^*\n]+)\*(?!\*)", r"**\1**", plain)
        plain = re.sub(r"^\t+", "    ", plain, flags=re.MULTILINE)
        parts[i] = re.sub(r"^#(#*) (.*)$", lambda heading: f"#{heading[1]}# {heading[2].capitalize()}", plain, flags=re.MULTILINE)
    return f"# {title.split(' ')[0]}\n" + "".join(parts)


def main(pages, ebin):
    pages = Path(pages)
    shutil.rmtree(pages, ignore_errors=True)
    names = page_names()
    for name in names:
        there = pages / name
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(without_links_to_files((TOP / name).read_text(), name, set(names)))
    shutil.copy(TOP / "docs/site/tables.css", pages)
    (pages / "manual").mkdir()
    for source in sorted((TOP / "docs/man").glob("*.scd")):
        (pages / "manual" / f"{source.stem}.md").write_text(manual_page(source.read_text()))
    (pages / "python").mkdir()
    for module, title in PYTHON_PAGES.items():
        (pages / "python" / f"{title}.md").write_text(f"# {title}\n\n::: {module}\n")
    index = ["# Python", "", *(f"- [{title}]({title}.md)" for title in PYTHON_PAGES)]
    (pages / "python/README.md").write_text("\n".join(index) + "\n")
    (pages / "elixir").mkdir()
    subprocess.run(["elixir", "-e", ELIXIR, ebin, pages / "elixir"], check=True)
    for folder, title in (("elixir", "Elixir"), ("manual", "Manual pages")):
        index = [f"# {title}", "", *(f"- [{page.stem}]({page.name})" for page in sorted((pages / folder).glob("*.md")))]
        (pages / folder / "README.md").write_text("\n".join(index) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
