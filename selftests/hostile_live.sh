#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The second half of hostile_server.sh: what a hostile server does to a map that is live.
export HOSTILE_LIVE=1
# shellcheck source=selftests/hostile_server.sh
. "$(dirname "$0")/hostile_server.sh"
