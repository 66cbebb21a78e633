#!/usr/bin/env bash
# Installs what is missing, and nothing else; run again, it looks and returns.
#   cmake/setup.sh build    Debian packages and LibTorch: all that building and testing need
#   cmake/setup.sh corpus   the English text of the quickstart
#   cmake/setup.sh          both
# Environment: LIBTORCH=/path  take that LibTorch instead of downloading one
#              CUDA=1          install LibTorch's CUDA libraries although there is no NVIDIA driver here
# Exit status: 0 all is there, 1 a step failed, 2 the user has to do something first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. cmake/versions.env

packages=(g++ make cmake ninja-build python3-pip ca-certificates
  libsentencepiece-dev libyaml-cpp-dev libspdlog-dev libfmt-dev catch2 libcli11-dev nlohmann-json3-dev
  libicu-dev zlib1g-dev gnuplot-nox fonts-dejavu-core)  # the font is for gnuplot's PNG terminal
third_party=build/third_party
libtorch=$third_party/libtorch-$TORCH_VERSION
corpus=build/data/foldoc.txt

say() { printf 'setup: %s\n' "$*"; }
stop() { local status=$1; shift; printf 'setup: %s\n' "$*" >&2; exit "$status"; }

scratch=  # where the step at hand works; gone when the script ends, however it ends
cleanup() { if [ -n "$scratch" ]; then rm -rf "$scratch"; fi; }
trap cleanup EXIT
trap 'exit 130' INT TERM

# Runs a command whose output matters only when it fails.
quietly() {
  local log
  log=$(mktemp)
  if "$@" >"$log" 2>&1; then rm -f "$log"; return 0; fi
  tail -n 15 "$log" >&2
  rm -f "$log"
  return 1
}

installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

setup_packages() {
  command -v dpkg-query >/dev/null ||
    stop 2 "this is no Debian system; install the counterparts of: ${packages[*]}, then run cmake by hand"
  local missing=() package
  for package in "${packages[@]}"; do
    installed "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  local install="apt-get install --no-install-recommends ${missing[*]}"
  [ "$(id -u)" = 0 ] || { echo "sudo $install"; exit 2; }
  say "installing ${#missing[@]} Debian packages"
  export DEBIAN_FRONTEND=noninteractive
  quietly apt-get update || stop 1 "'apt-get update' failed; is the network there?"
  # shellcheck disable=SC2086  # a list of words
  quietly $install --yes || stop 1 "'$install' failed"
}

# The folder with include/ and lib/ at or under $1, if it holds a LibTorch.
torch_folder() {
  local folder
  for folder in "$1" "$1/torch"; do
    if [ -f "$folder/include/torch/csrc/api/include/torch/version.h" ] && [ -f "$folder/lib/libtorch_cpu.so" ]; then
      realpath "$folder"
      return 0
    fi
  done
  return 1
}

torch_version() {
  cat "$1"/include/torch/{headeronly,csrc/api/include/torch}/version.h 2>/dev/null |
    sed -n 's/^#define TORCH_VERSION_\(MAJOR\|MINOR\|PATCH\) //p' | paste -sd.
}

# Puts a complete folder in the place of the old one; a reader sees either.
move_in() {
  rm -rf "$libtorch.old"
  if [ -e "$libtorch" ]; then mv "$libtorch" "$libtorch.old"; fi
  mv "$1" "$libtorch"
  rm -rf "$libtorch.old"
}

link_libtorch() {
  local folder version
  folder=$(torch_folder "$1") || stop 2 "LIBTORCH=$1 has no include/torch and lib/libtorch_cpu.so"
  version=$(torch_version "$folder" || true)  # older ones have one of the two files
  [ "$version" = "$TORCH_VERSION" ] ||
    stop 2 "LIBTORCH=$1 is version $version; this project needs $TORCH_VERSION"
  if [ "$(readlink "$libtorch/torch" || true)" = "$folder" ]; then return 0; fi
  scratch=$libtorch.partial
  rm -rf "$scratch"
  mkdir -p "$scratch"
  ln -s "$folder" "$scratch/torch"
  printf 'torch %s\nkind given\nfolder %s\n' "$version" "$folder" >"$scratch/installed.txt"
  move_in "$scratch"
  say "LibTorch $version is taken from $folder"
}

find_python() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -m pip --version >/dev/null 2>&1; then echo "$python"; return 0; fi
  done
  return 1
}

setup_libtorch() {
  if [ -n "${LIBTORCH:-}" ]; then link_libtorch "$LIBTORCH"; return 0; fi
  local kind=small marker=
  if [ "${CUDA:-0}" = 1 ] || [ -e /dev/nvidia0 ] || nvidia-smi -L >/dev/null 2>&1; then kind=full; fi
  if torch_folder "$libtorch" >/dev/null; then marker=$(cat "$libtorch/installed.txt" 2>/dev/null || true); fi
  case "$marker" in
    *"kind given"* | *"kind full"*) return 0 ;;
    *"kind small"*) if [ $kind = small ]; then return 0; fi ;;
  esac

  local python wheels=("nvidia-cuda-runtime==$CUDA_RUNTIME_VERSION" "nvidia-cuda-cupti==$CUDA_CUPTI_VERSION")
  local size='0.5 GB to download, 1.3 GB on disk'
  if [ $kind = full ]; then
    wheels=("cuda-toolkit[cublas,cudart,cufft,cufile,cupti,curand,cusolver,cusparse,nvjitlink,nvrtc,nvtx]==$CUDA_TOOLKIT_VERSION"
      "nvidia-cudnn-cu13==$CUDNN_VERSION" "nvidia-cusparselt-cu13==$CUSPARSELT_VERSION"
      "nvidia-nccl-cu13==$NCCL_VERSION" "nvidia-nvshmem-cu13==$NVSHMEM_VERSION")
    size='2 GB to download, 5 GB on disk'
  fi
  python=$(find_python) || stop 2 "no python3 with pip found; install python3-pip"
  say "installing LibTorch $TORCH_VERSION into $libtorch ($kind: $size)"
  scratch=$libtorch.partial
  rm -rf "$scratch"
  mkdir -p "$scratch/tmp"
  # pip unpacks in TMPDIR first: on the same disk that is a rename. Torch's Python dependencies stay out, so two calls;
  # CUDA first, since pip leaves a folder alone that is already there and the CUDA wheels share one.
  local pip=(env "TMPDIR=$PWD/$scratch/tmp" "$python" -m pip install --disable-pip-version-check --no-compile
    --root-user-action=ignore --target "$scratch/root") with_dependencies=()
  if [ ! -t 1 ]; then pip+=(-qq); fi  # progress bars are for people
  if [ $kind = small ]; then with_dependencies=(--no-deps); fi
  { "${pip[@]}" "${with_dependencies[@]}" "${wheels[@]}" && "${pip[@]}" --no-deps "torch==$TORCH_VERSION"; } ||
    stop 1 "LibTorch could not be downloaded; nothing was installed (LIBTORCH=/path takes one that you have)"
  torch_folder "$scratch/root" >/dev/null || stop 1 "the torch wheel holds no LibTorch; nothing was installed"
  printf '%s\n' "torch $TORCH_VERSION" "kind $kind" "${wheels[@]}" >"$scratch/root/installed.txt"
  move_in "$scratch/root"
  cleanup
}

setup_corpus() {
  [ ! -s "$corpus" ] || return 0
  local source=/usr/share/dictd/foldoc.dict.dz
  scratch=build/data/foldoc.partial
  rm -rf "$scratch"
  mkdir -p "$scratch"
  if [ ! -f $source ]; then
    say "fetching the Debian package dict-foldoc for its English text (2.4 MB)"
    fetch_foldoc() { (cd "$scratch" && apt-get -o APT::Sandbox::User=root download dict-foldoc); }
    if ! fetch_foldoc >/dev/null 2>&1; then
      # Package lists may be missing or old; only root may renew them.
      if [ "$(id -u)" = 0 ]; then quietly apt-get update || true; fi
      quietly fetch_foldoc || stop 2 "dict-foldoc cannot be fetched; try: sudo apt-get install dict-foldoc"
    fi
    dpkg-deb -x "$scratch"/dict-foldoc_*.deb "$scratch"
    source=$scratch$source
  fi
  gzip -dc <"$source" >"$scratch/raw.txt"
  iconv -f UTF-8 -t UTF-8 "$scratch/raw.txt" >"$scratch/foldoc.txt" 2>/dev/null ||
    iconv -f ISO-8859-1 -t UTF-8 "$scratch/raw.txt" >"$scratch/foldoc.txt"
  mv "$scratch/foldoc.txt" "$corpus"
  say "English text: $corpus ($(wc -c <"$corpus") bytes, GFDL)"
}

mkdir -p "$third_party"
exec 9>"$third_party/.lock"
flock 9  # one set-up at a time

case "${1:-all}" in
  build) setup_packages; setup_libtorch ;;
  corpus) setup_corpus ;;
  all) setup_packages; setup_libtorch; setup_corpus ;;
  *) stop 2 "unknown part '$1'; known are build and corpus" ;;
esac
