#!/usr/bin/env bash
# Makes build/peers, a virtual environment with the Python packages of requirements.txt and, on its path, the torch
# wheel that LibTorch comes from. Run again, it looks and returns.
# Exit status: 0 all is there, 1 a step failed, 2 the user has to do something first.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
cd "$here/../.."
. cmake/versions.env

peers=build/peers
scratch=$peers.partial
requirements=tests/peers/requirements.txt

say() { printf 'peers: %s\n' "$*"; }
stop() { local status=$1; shift; printf 'peers: %s\n' "$*" >&2; exit "$status"; }

mkdir -p build
exec 9>build/.peers.lock
flock 9  # one set-up at a time
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

torch=$(realpath "build/third_party/libtorch-$TORCH_VERSION/torch" 2>/dev/null) ||
  stop 2 "no LibTorch yet; run 'make setup'"
[ -f "$torch/__init__.py" ] ||
  stop 2 "the LibTorch in $torch has no Python part; the peers need the one that 'make setup' installs"

# A change of any of these makes a new environment.
marker=$(cat "$requirements" tests/peers/setup.sh | sha256sum | cut -d' ' -f1)" $torch"
if [ "$(cat "$peers/installed.txt" 2>/dev/null || true)" = "$marker" ]; then exit 0; fi

# The interpreter that the wheel's extension module was built for.
tag=$(basename "$torch"/_C.cpython-*.so | sed 's/_C\.cpython-\([0-9]*\)-.*/\1/')
python=
for candidate in python3 /usr/bin/python3 "python${tag:0:1}.${tag:1}"; do
  found=$("$candidate" -c 'import sys; print("%d%d" % sys.version_info[:2])' 2>/dev/null || true)
  if [ "$found" = "$tag" ]; then python=$candidate; break; fi
done
[ -n "$python" ] || stop 2 "the torch wheel needs Python ${tag:0:1}.${tag:1}, which is not there"
"$python" -c 'import ensurepip, venv' 2>/dev/null || stop 2 "sudo apt-get install --no-install-recommends python3-venv"

say "installing the Python packages to compare with into $peers (0.1 GB to download, 0.4 GB on disk)"
rm -rf "$scratch"
"$python" -m venv "$scratch"
# Without what they require: some require torch, which is there already.
"$scratch/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps --requirement "$requirements" ||
  stop 1 "the Python packages could not be installed; nothing was kept"

site=$("$scratch/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
dirname "$torch" >"$site/torch.pth"

# Without the CUDA libraries Python's torch does not load, though nothing here calls them. Empty libraries of the same
# names, opened first, satisfy the loader; lazy binding leaves their functions unresolved.
missing=$(ldd "$torch/lib/libtorch_python.so" | awk '/not found/ { print $1 }' | sort -u)
if [ -n "$missing" ]; then
  mkdir "$site/empty_libraries"
  for name in $missing; do
    gcc -shared -nostdlib -x c /dev/null -Wl,-soname,"$name" -o "$site/empty_libraries/$name"
  done
  cat >"$site/empty_libraries/__init__.py" <<'EOF'
import ctypes, glob, os, sys

for library in glob.glob(os.path.join(os.path.dirname(__file__), "*.so*")):
    ctypes.CDLL(library)
sys.setdlopenflags(os.RTLD_LAZY)
EOF
  echo 'import empty_libraries' >>"$site/torch.pth"
fi
"$scratch/bin/python" -W ignore -c 'import torch, transformers, tensorboard, performer_pytorch' ||
  stop 1 "the Python packages do not work together; nothing was kept"

printf '%s\n' "$marker" >"$scratch/installed.txt"
grep -rlI "$scratch" "$scratch/bin" "$scratch/pyvenv.cfg" | xargs -r sed -i "s|$scratch|$peers|g"
rm -rf "$peers"
mv "$scratch" "$peers"
