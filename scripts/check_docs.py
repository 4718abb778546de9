#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the Markdown files against the repository: check_docs.py [--write] [--flashprime PATH].

  links      relative links and their #anchors resolve
  paths      a `code span` that looks like a path of this repository exists
  snippets   a code block after <!-- snippet: FILE#NAME --> equals the lines of FILE between
             "[NAME]" and "[/NAME]" comments; --write copies them over
  generated  the text between <!-- generated: ARGS --> and <!-- /generated --> is what
             `flashprime ARGS` prints; --write copies it over
  variables  docs/cli.md lists exactly the FLASHPRIME_* environment variables that the code reads
"""
import argparse
import pathlib
import re
import subprocess
import sys
import textwrap

# Folders of the repository whose files documents may name; anything else with a slash is not
# taken for a path.
PATH_ROOTS = (".ci bench cli cmake data docs examples include kernels python scripts src tests").split()
SKIPPED_FOLDERS = {"build", ".git", ".venv", ".venv-clients", ".cache", ".peers"}

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE_SPAN = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
SNIPPET = re.compile(r"<!-- snippet: (\S+)#(\S+) -->\n```(\w+)\n(.*?)```\n", re.S)
GENERATED = re.compile(r"(<!-- generated: flashprime (.+?) -->\n)(.*?)(<!-- /generated -->)", re.S)
READ_VARIABLE = re.compile(r'"(FLASHPRIME_[A-Z0-9_]+)"')
VARIABLE_ROW = re.compile(r"^\| `(FLASHPRIME_[A-Z0-9_]+)`", re.M)


def markdown_files(root):
    for path in sorted(root.rglob("*.md")):
        if not SKIPPED_FOLDERS & set(path.relative_to(root).parts):
            yield path


def anchors(text):
    """The anchors that a Markdown viewer makes from headings."""
    for title in re.findall(r"^#+ +(.*)$", FENCE.sub("", text), re.M):
        title = re.sub(r"[^\w\- ]", "", title.lower())
        yield title.replace(" ", "-")


def check_links(root, path, text):
    for target in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            yield f"link to {target}: no such file"
        elif not file.is_relative_to(root):
            yield f"link to {target}: leaves the repository"
        elif anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
            yield f"link to {target}: no such heading"


def check_paths(root, path, text):
    for span in CODE_SPAN.findall(FENCE.sub("", text)):
        word = span.split()[0].removeprefix("./") if span.split() else ""
        if not re.fullmatch(r"[\w.*/+-]+", word) or word.split("/")[0] not in PATH_ROOTS:
            continue
        if "/" in word and not any(root.glob(word.rstrip("/"))):
            yield f"`{word}`: no such file"


def cut_snippet(root, file, name):
    """The lines between the two markers, or an error message."""
    if not (root / file).is_file():
        return None, f"snippet {file}#{name}: no such file"
    lines = (root / file).read_text(encoding="utf-8").splitlines()
    begin = [i for i, line in enumerate(lines) if line.strip() in (f"// [{name}]", f"# [{name}]")]
    end = [i for i, line in enumerate(lines) if line.strip() in (f"// [/{name}]", f"# [/{name}]")]
    if len(begin) != 1 or len(end) != 1 or end[0] < begin[0]:
        return None, f"snippet {file}#{name}: wants one [{name}] and one [/{name}] after it"
    return textwrap.dedent("\n".join(lines[begin[0] + 1 : end[0]]) + "\n"), None


def check_snippets(root, text):
    """The problems, and the text as it should be."""
    problems = []

    def replace(match):
        file, name, language, block = match.groups()
        wanted, error = cut_snippet(root, file, name)
        if error:
            problems.append(error)
            return match.group(0)
        if block != wanted:
            problems.append(f"snippet {file}#{name} differs from the code")
        return f"<!-- snippet: {file}#{name} -->\n```{language}\n{wanted}```\n"

    replaced = SNIPPET.sub(replace, text)
    if text.count("<!-- snippet:") != len(SNIPPET.findall(text)):
        problems.append("a snippet comment without a code block right after it")
    return problems, replaced


def check_generated(flashprime, text):
    problems = []

    def replace(match):
        opening, arguments, block, closing = match.groups()
        run = subprocess.run(
            [flashprime, *arguments.split()], capture_output=True, text=True, check=False
        )
        if run.returncode != 0:
            problems.append(f"`flashprime {arguments}` failed: {run.stderr.strip()}")
            return match.group(0)
        if block != run.stdout:
            problems.append(f"the output of `flashprime {arguments}` has changed")
        return opening + run.stdout + closing

    replaced = GENERATED.sub(replace, text) if flashprime else text
    if text.count("<!-- generated:") != len(GENERATED.findall(text)):
        problems.append("a generated comment without its closing twin")
    return problems, replaced


def variables_read(root):
    for folder in ("src", "cli", "python", "tests/cases", "tests/properties"):
        for file in (root / folder).rglob("*"):
            if file.suffix in {".cc", ".h", ".py"}:
                yield from READ_VARIABLE.findall(file.read_text(encoding="utf-8"))


def check_variables(root):
    page = root / "docs" / "cli.md"
    documented = set(VARIABLE_ROW.findall(page.read_text(encoding="utf-8")))
    read = set(variables_read(root))
    for name in sorted(read - documented):
        yield f"docs/cli.md: {name} is read by the code and not in the table"
    for name in sorted(documented - read):
        yield f"docs/cli.md: {name} is in the table and read by nothing"


def check_tree(root, flashprime=None, write=False):
    """All problems of a tree, in words."""
    root = root.resolve()
    problems = []
    files = list(markdown_files(root))
    for path in files:
        text = path.read_text(encoding="utf-8")
        found = [*check_links(root, path, text), *check_paths(root, path, text)]
        snippet_problems, replaced = check_snippets(root, text)
        generated_problems, replaced = check_generated(flashprime, replaced)
        if write and replaced != text:
            path.write_text(replaced, encoding="utf-8")
            print(f"wrote {path.relative_to(root)}")
        elif not write:
            found += snippet_problems + generated_problems
        problems += [f"{path.relative_to(root)}: {problem}" for problem in found]
    problems += check_variables(root)
    if not files:
        problems.append("found no Markdown file")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="bring snippets and tables up to date")
    parser.add_argument("--flashprime", help="the built command; without it, tables are not run")
    options = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parent.parent
    problems = check_tree(root, options.flashprime, options.write)
    print("\n".join(problems) if problems else "documents agree with the repository")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
