#!/usr/bin/env bash
# peers.sh: model families there and back between scaletrain and Hugging Face's transformers, adapters in peft, and exports in transformers
# and llama.cpp (tests/peers). Builds the program, and installs the Python packages from PyPI into build/peers once; takes about 2 GiB of
# disk. No other script needs it. SCALETRAIN_PEERS_PYTHON=PYTHON: an interpreter that has them, in place of that environment.
# SCALETRAIN_SHARED_DATA: a folder with published tokenizers, else shared/data beside the source folder.
source "$(dirname "$0")/common.sh"
cd "$root"
[ $# -eq 0 ] || refuse "$1"
packages="peft safetensors sentencepiece tokenizers torch transformers xllamacpp"
python=${SCALETRAIN_PEERS_PYTHON:-build/peers/bin/python}
if [ -z "${SCALETRAIN_PEERS_PYTHON:-}" ] && ! "$python" -c "import ${packages// /, }" 2>/dev/null; then
  install python3-venv
  say "installing $packages into build/peers"
  python3 -m venv build/peers
  # shellcheck disable=SC2086
  build/peers/bin/pip install --quiet --disable-pip-version-check $packages
fi
say "building the program"
[ -e build/release/build.ninja ] || cmake --preset release >/dev/null
cmake --build --preset release --target scaletrain >/dev/null
say "model families there and back"
HF_HUB_OFFLINE=1 "$python" tests/peers/families.py build/release/bin/scaletrain
say "chat templates"
"$python" tests/peers/chat.py
say "adapters in peft"
HF_HUB_OFFLINE=1 "$python" tests/peers/adapters.py build/release/bin/scaletrain
say "exports in other programs"
HF_HUB_OFFLINE=1 "$python" tests/peers/exports.py build/release/bin/scaletrain "${SCALETRAIN_SHARED_DATA:-../shared/data}"
