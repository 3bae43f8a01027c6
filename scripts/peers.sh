#!/usr/bin/env bash
# peers.sh: model families there and back between scaletrain and Hugging Face's transformers, and adapters in peft (tests/peers). Builds the program, and
# installs the Python packages from PyPI into build/peers once; takes about 2 GiB of disk. No other script needs it.
# SCALETRAIN_PEERS_PYTHON=PYTHON: an interpreter that has torch, transformers, peft and safetensors, in place of that environment.
source "$(dirname "$0")/common.sh"
cd "$root"
[ $# -eq 0 ] || refuse "$1"
python=${SCALETRAIN_PEERS_PYTHON:-build/peers/bin/python}
if [ -z "${SCALETRAIN_PEERS_PYTHON:-}" ] && ! "$python" -c 'import peft, safetensors, torch, transformers' 2>/dev/null; then
  install python3-venv
  say "installing torch, transformers, peft and safetensors into build/peers"
  python3 -m venv build/peers
  build/peers/bin/pip install --quiet --disable-pip-version-check torch transformers peft safetensors
fi
say "building the program"
[ -e build/release/build.ninja ] || cmake --preset release >/dev/null
cmake --build --preset release --target scaletrain >/dev/null
say "model families there and back"
HF_HUB_OFFLINE=1 "$python" tests/peers/families.py build/release/bin/scaletrain
say "adapters in peft"
HF_HUB_OFFLINE=1 "$python" tests/peers/adapters.py build/release/bin/scaletrain
