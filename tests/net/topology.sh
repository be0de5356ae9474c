#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Machines as network namespaces on one switch, each with one interface:
#
#   NAME-1  10.77.0.1  eth0 ---+
#   NAME-2  10.77.0.2  eth0 ---+-- NAME-switch (a bridge, in a namespace of its own)
#   ...                        |
#
#   topology.sh up NAME COUNT    make them
#   topology.sh down NAME COUNT  take them away, with all that runs in them
#   topology.sh cut NAME N       machine N's cable is pulled
#   topology.sh join NAME N      and put back
#
# Needs root, and a kernel with network namespaces, veth and bridge. Nothing outside the namespaces
# is touched.
set -eu

up() {
	ip netns add "$1-switch"
	ip -n "$1-switch" link add switch type bridge
	ip -n "$1-switch" link set switch up
	n=1
	while [ $n -le "$2" ]; do
		ip netns add "$1-$n"
		ip link add eth0 netns "$1-$n" type veth peer name "port$n" netns "$1-switch"
		ip -n "$1-switch" link set "port$n" master switch up
		ip -n "$1-$n" address add "10.77.0.$n/24" dev eth0
		ip -n "$1-$n" link set eth0 up
		ip -n "$1-$n" link set lo up
		n=$((n + 1))
	done
}

down() {
	n=1
	while [ $n -le "$2" ]; do
		ip netns del "$1-$n" 2>/dev/null || true
		n=$((n + 1))
	done
	ip netns del "$1-switch" 2>/dev/null || true
}

case ${1:-} in
up) up "$2" "$3" ;;
down) down "$2" "$3" ;;
cut) ip -n "$2-switch" link set "port$3" down ;;
join) ip -n "$2-switch" link set "port$3" up ;;
*)
	echo "usage: topology.sh up|down NAME COUNT, topology.sh cut|join NAME N" >&2
	exit 2
	;;
esac
