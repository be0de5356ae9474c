# SPDX-License-Identifier: MIT
#
# Huge pages of memfds, without the module. Sourced by guest/init.

export TMESH_SWITCHES_HUGE=1 TMESH_MONITOR="$(echo /dev/vport*)" TMESH_TMESHCTL=/tests/tmeshctl TMESH_RUNTIME_DIR=/tmp/run CMOCKA_MESSAGE_OUTPUT=TAP
run huge /tests/huge
