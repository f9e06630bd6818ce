#!/bin/sh
# Installs the missing packages of a list such as tools/debian-packages.txt. Without root, it prints the command that
# installs them.
set -eu
list=$1
missing=""
for package in $(cat "$list"); do
    dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
    echo "Some Debian packages are missing. Install them, then run make again:" >&2
    echo "    sudo apt-get install --no-install-recommends$missing" >&2
    exit 1
fi
echo "Installing$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >/dev/null
apt-get install -q -y --no-install-recommends $missing >/dev/null
